"""Right requests as parts that can be changed: a line, headers, a body; and what they look like sent.

What is done to them is ``mutations.py``.
"""

from __future__ import annotations

import gzip
import json
import random
import struct
import zlib
from dataclasses import dataclass, field
from typing import Any

from tests.fuzz import served

ROUTES = (
    "/v2", "/v2/health/live", "/v2/health/ready", "/v2/models", "/v2/models/add_one",
    "/v2/models/every", "/v2/models/add_one/versions/1", "/v2/models/add_one/config",
    "/v2/models/add_one/ready", "/v2/models/add_one/stats", "/v2/models/stats", "/metrics",
)  # fmt: skip
_INFER = "/v2/models/{}/infer"

_FORMATS = {"BOOL": "?", "INT8": "b", "INT16": "h", "INT32": "i", "INT64": "q", "UINT8": "B",
            "UINT16": "H", "UINT32": "I", "UINT64": "Q", "FP16": "e", "FP32": "f",
            "FP64": "d", "BF16": "H"}  # fmt: skip
assert _FORMATS.keys() == served.DTYPES.keys()


@dataclass(slots=True)
class Request:
    """One HTTP request before it is bytes. ``length`` adds the right Content-Length."""

    method: str
    target: str
    headers: list[tuple[str, str]] = field(default_factory=list)
    body: bytes = b""
    length: bool = True

    def encoded(self, *, close: bool = True) -> bytes:
        """As it is sent; with ``close`` the server ends the connection after its answer."""
        lines = [f"{self.method} {self.target} HTTP/1.1", "Host: localhost"]
        lines += [f"{name}: {value}" for name, value in self.headers]
        if close:
            lines.append("Connection: close")
        if self.length and (self.body or self.method == "POST"):
            lines.append(f"Content-Length: {len(self.body)}")
        return "\r\n".join([*lines, "", ""]).encode("latin-1", "replace") + self.body


def question(dice: random.Random) -> Request:
    """A call without a body."""
    if dice.random() < 0.1:
        return Request("POST", "/v2/repository/index")
    return Request(dice.choice(["GET", "GET", "HEAD"]), dice.choice(ROUTES))


def content(dice: random.Random) -> tuple[str, dict[str, Any]]:
    """A model, and the JSON content of a right call of it."""
    model = dice.choice(["add_one", "add_one", "every"])
    inputs = _add_one(dice) if model == "add_one" else _every(dice)
    found: dict[str, Any] = {"inputs": inputs}
    if dice.random() < 0.3:
        found["id"] = dice.choice(["a", "", "\u00e9\U0001f600", "x" * 200])
    if dice.random() < 0.2:
        found["parameters"] = {"binary_data_output": dice.random() < 0.5}
    if dice.random() < 0.2:
        names = ["y"] if model == "add_one" else [f"{name}_out" for name in served.DTYPES]
        names = dice.sample(names, dice.randint(1, len(names)))
        raw = {"parameters": {"binary_data": dice.random() < 0.5}}
        found["outputs"] = [
            {"name": name, **(raw if dice.random() < 0.5 else {})} for name in names
        ]
    return model, found


def infer(dice: random.Random) -> Request:
    """A right call with a JSON body."""
    model, found = content(dice)
    return of_content(model, found)


def of_content(model: str, found: Any) -> Request:
    """The call whose body is this JSON."""
    return Request("POST", _INFER.format(model), body=json.dumps(found).encode())


def infer_raw(dice: random.Random) -> tuple[Request, dict[str, Any], bytes]:
    """A right call with some raw tensors; its JSON and the raw part as well."""
    model, found = content(dice)
    tail = b""
    for tensor in found["inputs"]:
        if dice.random() < 0.8:
            data = packed(tensor["datatype"], tensor.pop("data"))
            tensor["parameters"] = {"binary_data_size": len(data)}
            tail += data
    return of_raw(model, found, tail), found, tail


def of_raw(model: str, found: Any, tail: bytes, told: int | None = None) -> Request:
    """The call with this JSON and these raw bytes; ``told`` is the JSON's length if it lies."""
    head = json.dumps(found).encode()
    size = len(head) if told is None else told
    headers = [("Inference-Header-Content-Length", str(size))]
    return Request("POST", _INFER.format(model), headers, head + tail)


def packed(datatype: str, values: list[Any]) -> bytes:
    """Raw little-endian values; BF16 as the upper halves of FP32."""
    if datatype == "BF16":
        words = struct.unpack(f"<{len(values)}I", struct.pack(f"<{len(values)}f", *values))
        values = [word >> 16 for word in words]
    return struct.pack(f"<{len(values)}{_FORMATS[datatype]}", *values)


def compressed(request: Request, dice: random.Random) -> Request:
    """The same body, compressed."""
    name = dice.choice(["gzip", "deflate"])
    body = gzip.compress(request.body, 1) if name == "gzip" else zlib.compress(request.body, 1)
    headers = [*request.headers, ("Content-Encoding", name)]
    return Request(request.method, request.target, headers, body)


def chunked(request: Request, dice: random.Random) -> bytes:
    """The same request with its body in chunks."""
    head = Request(
        request.method, request.target, [*request.headers, ("Transfer-Encoding", "chunked")],
        length=False,
    )  # fmt: skip
    parts, rest = [], request.body
    while rest:
        size = dice.randint(1, len(rest))
        parts.append(b"%x\r\n%s\r\n" % (size, rest[:size]))
        rest = rest[size:]
    return head.encoded() + b"".join(parts) + b"0\r\n\r\n"


def _add_one(dice: random.Random) -> list[dict[str, Any]]:
    rows = dice.choice([0, 1, 1, 2, 7, 300])
    data = [dice.choice([0.5, -1, 3, 1e30, 1e-40]) for _ in range(rows * 4)]
    return [{"name": "x", "datatype": "FP32", "shape": [rows, 4], "data": data}]


def _every(dice: random.Random) -> list[dict[str, Any]]:
    size = dice.choice([0, 1, 3])
    return [
        {
            "name": name,
            "datatype": name,
            "shape": [size],
            "data": [dice.choice([True, False] if name == "BOOL" else [0, 1, 100])] * size,
        }
        for name in served.DTYPES
    ]
