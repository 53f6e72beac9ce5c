"""Calls that no server should answer with anything but a refusal, in the words of each protocol.

Kinds of fault that users reported of some server, or that a client's mistake makes. Each is asked of the
quick model, whose input is FP32 rows of four.
"""

from __future__ import annotations

import copy
import gzip
import json
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bench.behaviour import grpc_way

_DEEP = 100_000
_RIGHT = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}


@dataclass(frozen=True, slots=True)
class Call:
    """What is wrong with it, and its body."""

    fault: str
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)


def of_json() -> Iterator[Call]:
    """Bodies that are wrong in every dialect."""
    yield Call("no body", b"")
    yield Call("no JSON", b"hello")
    yield Call("JSON that ends early", b'{"inputs": [{"name": "x", "da')
    yield Call("a list", b"[]")
    yield Call("null", b"null")
    yield Call("an empty object", b"{}")
    yield Call("brackets nested deeply", b"[" * _DEEP + b"]" * _DEEP)
    yield Call("bytes that are not UTF-8", b'{"x": "\xff\xfe"}')
    yield Call("gzip that is none", b"hello", {"Content-Encoding": "gzip"})


def of_values(row: Callable[[Any], bytes]) -> Iterator[Call]:
    """Values that are no row of four numbers; ``row`` puts them into a body."""
    yield Call("text for numbers", row(["a", "b", "c", "d"]))
    yield Call("null for a number", row([1, None, 3, 4]))
    yield Call("an object for a number", row([1, {}, 3, 4]))
    yield Call("a ragged row", row([1, [2, 3], 4]))
    yield Call("too few values", row([1, 2, 3]))
    yield Call("too many values", row([1, 2, 3, 4, 5]))
    yield Call("a number for a list", row(7))


def of_protocol() -> Iterator[Call]:
    """Bodies that only the Open Inference Protocol has."""
    yield from of_values(lambda row: _with(data=row))
    changed: dict[str, dict[str, Any]] = {
        "no name": {"name": None},
        "an unknown name": {"name": "z"},
        "no datatype": {"datatype": None},
        "an unknown datatype": {"datatype": "FP99"},
        "another datatype": {"datatype": "INT64"},
        "no shape": {"shape": None},
        "text in a shape": {"shape": [1, "4"]},
        "a negative dim": {"shape": [-1, 4]},
        "another rank": {"shape": [4]},
        "another extent": {"shape": [2, 2]},
        "a shape of 10^10 values": {"shape": [100_000, 100_000]},
        "a shape of 2^80 values": {"shape": [1 << 40, 1 << 40]},
        "no data": {"data": None},
    }
    for fault, changes in changed.items():
        yield Call(fault, _with(**changes))
    yield Call("no inputs", json.dumps({"inputs": []}).encode())
    yield Call("inputs that are an object", json.dumps({"inputs": _RIGHT}).encode())
    yield Call("an input twice", json.dumps({"inputs": [_RIGHT, _RIGHT]}).encode())
    yield Call("an unknown output", _with({"outputs": [{"name": "nothing"}]}))
    raw = json.dumps({"inputs": [{**_RIGHT, "data": None}]}).encode()
    yield Call("a JSON length beyond the body", raw, {"Inference-Header-Content-Length": "100000"})
    yield Call("half of gzip", gzip.compress(_with())[:-12], {"Content-Encoding": "gzip"})


def _with(around: dict[str, Any] | None = None, **changes: Any) -> bytes:
    """A right body but for these changes; None leaves the field out."""
    tensor = copy.deepcopy(_RIGHT) | changes
    kept = {key: value for key, value in tensor.items() if value is not None}
    return json.dumps({"inputs": [kept], **(around or {})}).encode()


def messages(way: grpc_way.Grpc) -> Iterator[tuple[str, Any]]:
    """The same for gRPC."""

    def changed(change: Callable[[Any], object]) -> Any:
        message = way.request("quick", [[1.0, 2.0, 3.0, 4.0]])
        change(message)
        return message

    def raw(data: bytes) -> Callable[[Any], None]:
        def change(message: Any) -> None:
            message.inputs[0].ClearField("contents")
            message.raw_input_contents.append(data)

        return change

    def shape(*dims: int) -> Callable[[Any], None]:
        def change(message: Any) -> None:
            message.inputs[0].ClearField("shape")
            message.inputs[0].shape.extend(dims)

        return change

    def field(name: str, value: str) -> Callable[[Any], None]:
        return lambda message: setattr(message.inputs[0], name, value)

    four = struct.pack("<4f", 1, 2, 3, 4)
    yield "an unknown model", changed(lambda m: setattr(m, "model_name", "nothing"))
    yield "an unknown version", changed(lambda m: setattr(m, "model_version", "77"))
    yield "no inputs", changed(lambda m: m.ClearField("inputs"))
    yield "an input twice", changed(lambda m: m.inputs.append(m.inputs[0]))
    yield "an unknown name", changed(field("name", "z"))
    yield "an unknown datatype", changed(field("datatype", "FP99"))
    yield "another datatype", changed(field("datatype", "INT64"))
    yield "no shape", changed(shape())
    yield "a negative dim", changed(shape(-1, 4))
    yield "another rank", changed(shape(4))
    yield "another extent", changed(shape(2, 2))
    yield "a shape of 10^10 values", changed(shape(100_000, 100_000))
    yield "a shape of 2^80 values", changed(shape(1 << 40, 1 << 40))
    yield "no contents", changed(lambda m: m.inputs[0].ClearField("contents"))
    yield "too few values", changed(lambda m: m.inputs[0].contents.fp32_contents.pop())
    yield "too many values", changed(lambda m: m.inputs[0].contents.fp32_contents.append(5))
    yield "raw and typed", changed(lambda m: m.raw_input_contents.append(four))
    yield "too few raw bytes", changed(raw(four[:-1]))
    yield "too many raw bytes", changed(raw(four + four))
    yield "an unknown output", changed(lambda m: m.outputs.add(name="nothing"))
