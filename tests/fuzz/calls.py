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
    "/v2/models/words", "/v2/models/table/config",
)  # fmt: skip
_INFER = "/v2/models/{}/infer"

_WORDS = ["", "a", "caf\u00e9", "\U0001f600", "NaN", "a\x00b", "x" * 300]
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
    return Request(dice.choice(["GET", "GET", "HEAD"]), dice.choice(ROUTES))


def control(dice: random.Random) -> tuple[Request, dict[str, Any]]:
    """A right call that lists, loads or unloads models; its JSON as well."""
    verb = dice.choice(["index", "index", "models/spare/load", "models/spare/unload"])
    content: dict[str, Any] = {}
    if verb == "index" and dice.random() < 0.5:
        content["ready"] = dice.random() < 0.5
    if verb.endswith("/unload") and dice.random() < 0.5:
        content["parameters"] = {"unload_dependents": True}
    return of_json(f"/v2/repository/{verb}", content), content


def of_json(target: str, content: Any) -> Request:
    """A call of anything with this JSON."""
    return Request("POST", target, body=json.dumps(content).encode())


def batch(dice: random.Random) -> tuple[Request, dict[str, Any], bytes]:
    """A right call of many; its JSON and its raw part as well."""
    chosen, first = content(dice)
    requests, tail = [first], b""
    while len(requests) < dice.choice([1, 2, 5]):
        named, more = content(dice)
        if named == chosen:
            requests.append(more)
    for tensor in [each for request in requests for each in request["inputs"]]:
        if dice.random() < 0.3:
            data = packed(tensor["datatype"], tensor.pop("data"))
            tensor["parameters"] = {"binary_data_size": len(data)}
            tail += data
    whole = {"requests": requests}
    head = json.dumps(whole).encode()
    headers = [("Inference-Header-Content-Length", str(len(head)))]
    if dice.random() < 0.3:
        headers.append(("Accept", "multipart/mixed"))
    return Request("POST", f"/v2/models/{chosen}/batch", headers, head + tail), whole, tail


def predict(dice: random.Random) -> tuple[Request, dict[str, Any]]:
    """A right call with an application's values; the values as well."""
    rows = dice.choice([0, 1, 3, 16])
    values: dict[str, Any] = {"cells": [[dice.choice([0, -1.5, 100])] * 4 for _ in range(rows)]}
    if dice.random() < 0.3:
        values["note"] = {"text": dice.choice(["", "caf\u00e9"]), "language": "de"}
    if dice.random() < 0.3:
        values |= {"scale": 0.5, "flag": True}
    return of_values(values, is_form=dice.random() < 0.3), values


def of_values(values: dict[str, Any], *, is_form: bool) -> Request:
    """The call with these values, as JSON or as a form."""
    if not is_form:
        return of_json("/v2/models/table/predict", values)
    parts = [
        f'--b\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{json.dumps(value)}\r\n'
        for name, value in values.items()
    ]
    body = "".join([*parts, "--b--\r\n"]).encode("utf-8", "replace")
    kind = ("Content-Type", "multipart/form-data; boundary=b")
    return Request("POST", "/v2/models/table/predict", [kind], body)


def content(dice: random.Random) -> tuple[str, dict[str, Any]]:
    """A model, and the JSON content of a right call of it."""
    model = dice.choice(["add_one", "add_one", "every", "words"])
    inputs = {"add_one": _add_one, "every": _every, "words": _words}[model](dice)
    found: dict[str, Any] = {"inputs": inputs}
    if dice.random() < 0.3:
        found["id"] = dice.choice(["a", "", "\u00e9\U0001f600", "x" * 200])
    if dice.random() < 0.2:
        found["parameters"] = {"binary_data_output": dice.random() < 0.5}
    if dice.random() < 0.2:
        names = {"add_one": ["y"], "words": ["v"]}.get(
            model, [f"{name}_out" for name in served.DTYPES]
        )
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
    if datatype == "BYTES":
        texts = [str(value).encode() for value in values]
        return b"".join(struct.pack("<I", len(text)) + text for text in texts)
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


def _words(dice: random.Random) -> list[dict[str, Any]]:
    data = [dice.choice(_WORDS) for _ in range(dice.choice([0, 1, 2, 40]))]
    return [{"name": "w", "datatype": "BYTES", "shape": [len(data)], "data": data}]


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
