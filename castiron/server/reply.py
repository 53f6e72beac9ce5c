"""The answer to an infer request: outputs as JSON, raw after the JSON, or some of each.

Rendering happens inside the run's completion, while outputs may still lie in the run's arena.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import orjson

from castiron import errors
from castiron.registry import version as versions
from castiron.server import inference, values
from castiron.tensor import dtype as dtypes

_JSON = (b"content-type", b"application/json")
_RAW = (b"content-type", b"application/octet-stream")

# Below this, one copy costs less than one more part to send.
_JOINED_BYTES = 1 << 15


class Reply(NamedTuple):
    """Headers and body of an answer with status 200; large parts are sent as they lie.

    ``lines`` are headers too, written already.
    """

    headers: list[tuple[bytes, bytes]]
    parts: list[bytes | memoryview]
    lines: bytes = b""


def described(
    outputs: Mapping[str, np.ndarray],
    asked: inference.Inference,
    interface: inference.Interface,
    version: versions.Version,
) -> tuple[dict[str, Any], list[bytes | memoryview]]:
    """The wanted outputs, each in the form that was asked for: the JSON object, and raw tensors.

    InputError names an output that the asked form cannot hold.
    """
    raw: list[bytes | memoryview] = []
    listed: list[dict[str, Any]] = []
    for name, is_raw in asked.wanted.items():
        output, dtype = outputs[name], interface.outputs[name]
        item: dict[str, Any] = {
            "name": name, "datatype": dtype.oip, "shape": list(output.shape),
        }  # fmt: skip
        if is_raw:
            data = values.to_bytes(output, dtype)
            item["parameters"] = {"binary_data_size": len(data)}
            raw.append(data)
        else:
            item["data"] = values.to_json(output, dtype, f"outputs.{name}")
        listed.append(item)
    head: dict[str, Any] = {
        "model_name": version.model, "model_version": str(version.number), "outputs": listed,
    }  # fmt: skip
    if asked.id:
        head["id"] = asked.id
    return head, raw


def render(
    outputs: Mapping[str, np.ndarray],
    asked: inference.Inference,
    interface: inference.Interface,
    version: versions.Version,
) -> Reply:
    """The answer to one request. Raises as ``described``."""
    known = asked.template
    if known is not None and known.fixed is not None and outputs is known.fixed.outputs:
        return known.fixed.answer(asked, interface, version)
    if known is None or not all(asked.wanted.values()):
        head, raw = described(outputs, asked, interface, version)
        return joined(encoded(head), raw, version.digest)
    shapes = tuple([outputs[name].shape for name in asked.wanted])
    text = known.answers.get(shapes)
    if text is None:
        head, raw = described(outputs, asked, interface, version)
        text = encoded(head)
        if dtypes.STRING not in map(interface.outputs.__getitem__, asked.wanted):
            known.remember(shapes, text)
    else:
        raw = [values.to_bytes(outputs[name], interface.outputs[name]) for name in asked.wanted]
    return joined(text, raw, version.digest)


def encoded(head: dict[str, Any]) -> bytes:
    """The JSON of what ``described`` gave. InputError for an id that no JSON can hold."""
    try:
        return orjson.dumps(head)
    except orjson.JSONEncodeError:
        raise errors.InputError(
            "expected Unicode text, found half a surrogate pair", "id"
        ) from None


def joined(head: bytes, raw: list[bytes | memoryview], digest: str = "") -> Reply:
    """JSON and raw tensors in one body; small ones in one piece."""
    parts = [head, *raw]
    size = sum(map(len, parts))
    if size < _JOINED_BYTES:
        parts = [b"".join(parts)]
    headers = [_RAW if raw else _JSON, (b"content-length", b"%d" % size)]
    if raw:
        headers.append((b"inference-header-content-length", b"%d" % len(head)))
    if digest:
        headers.append((b"x-model-version", digest.encode()))
    return Reply(headers, parts)
