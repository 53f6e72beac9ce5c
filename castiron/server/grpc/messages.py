"""The protocol's messages, read from ``inference.binpb`` into a pool of their own.

A pool of their own, since the names belong to the protocol: a process that also holds a client's
copy would otherwise have two files that claim them. ``tools/make_proto.py`` writes the file.
"""

from __future__ import annotations

from importlib import resources
from typing import Any

from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    json_format,
    message,
    message_factory,
)
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from castiron import errors

SERVICE = "inference.GRPCInferenceService"


def _filled() -> descriptor_pool.DescriptorPool:
    pool = descriptor_pool.DescriptorPool()
    own = resources.files("castiron.server.grpc").joinpath("inference.binpb").read_bytes()
    for text in (own, *(each.DESCRIPTOR.serialized_pb for each in (health_pb2, reflection_pb2))):
        pool.Add(descriptor_pb2.FileDescriptorProto.FromString(text))
    return pool


POOL = _filled()


def read(kind: str, data: bytes) -> Any:
    """The message of this kind in ``data``. InputError when there is none."""
    try:
        return named(kind).FromString(data)
    except message.DecodeError as fault:
        raise errors.InputError(f"expected a {kind}: {fault}", "message") from None


def named(name: str) -> Any:
    """The class of a message of the protocol."""
    return message_factory.GetMessageClass(POOL.FindMessageTypeByName(f"inference.{name}"))


def filled(name: str, content: dict[str, Any]) -> Any:
    """A message of what ``describe`` says; what the protocol has no field for is left out."""
    return json_format.ParseDict(content, named(name)(), ignore_unknown_fields=True)


def parameters(given: Any) -> dict[str, Any]:
    """A map of parameters as plain values. InputError for one that holds nothing."""
    found: dict[str, Any] = {}
    for key, value in given.items():
        chosen = value.WhichOneof("parameter_choice")
        if chosen is None:
            raise errors.InputError("expected a value", f"parameters.{key[:80]}")
        found[key] = getattr(value, chosen)
    return found
