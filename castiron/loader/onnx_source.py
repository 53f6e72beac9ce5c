"""The source of a model: a path, bytes or a ModelProto, read into a ModelProto and its folder.

Only the file's form is judged here; what the nodes mean is the business of ``onnx_check``.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib

import onnx
from google.protobuf import message  # type: ignore[import-untyped]

from castiron import errors
from castiron.loader import external

Given = str | os.PathLike[str] | bytes | onnx.ModelProto


@dataclasses.dataclass(frozen=True, slots=True)
class Source:
    """A parsed model, the name that messages use for it, and where its external data lies."""

    name: str
    proto: onnx.ModelProto
    folder: external.ExternalFolder


def read(given: Given) -> Source:
    """Parse the model; LoadError when there is no file or it is no ONNX model."""
    if isinstance(given, onnx.ModelProto):
        return _checked("<model>", given, None)
    if isinstance(given, bytes | bytearray | memoryview):
        return _checked("<bytes>", _parse("<bytes>", bytes(given)), None)
    path = pathlib.Path(given)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise errors.LoadError(str(path), [f"cannot be read: {error.strerror}"]) from error
    return _checked(str(path), _parse(str(path), data), path.resolve().parent)


def _parse(name: str, data: bytes) -> onnx.ModelProto:
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except (message.DecodeError, ValueError, RecursionError) as error:
        problem = f"expected an ONNX model, found {len(data)} bytes that are no protobuf of one"
        raise errors.LoadError(name, [f"{problem} ({error}); export the model again"]) from error
    return proto


def _checked(name: str, proto: onnx.ModelProto, folder: pathlib.Path | None) -> Source:
    if not proto.HasField("graph"):
        problem = "expected an ONNX model with a graph, found none; is this file an ONNX model?"
        raise errors.LoadError(name, [problem])
    return Source(name, proto, external.ExternalFolder(folder))
