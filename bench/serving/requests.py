"""Requests as bytes: what a generator sends again and again is put together once."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence

import numpy as np

from castiron.tensor import dtype as dtypes


def post(path: str, body: bytes, headers: str = "Content-Type: application/json\r\n") -> bytes:
    """Any body to any path."""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{headers}Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def infer(model: str, shape: Sequence[int], *, is_binary: bool, name: str = "x") -> bytes:
    """An infer request of the Open Inference Protocol with one input of FP32, numbers from 0 on.

    Binary both ways, or JSON both ways.
    """
    size, path = math.prod(shape), _path(model)
    item: dict[str, object] = {"name": name, "datatype": "FP32", "shape": list(shape)}
    if not is_binary:
        item["data"] = list(range(size))
        return post(path, json.dumps({"inputs": [item]}).encode())
    data = struct.pack(f"<{size}f", *range(size))
    item["parameters"] = {"binary_data_size": len(data)}
    return _binary(path, [item], data)


def of_arrays(model: str, inputs: Mapping[str, np.ndarray]) -> bytes:
    """An infer request with these inputs, binary both ways."""
    items: list[dict[str, object]] = []
    for name, array in inputs.items():
        kind = dtypes.named(array.dtype.name).oip
        size = {"binary_data_size": array.nbytes}
        items.append(
            {"name": name, "datatype": kind, "shape": list(array.shape), "parameters": size}
        )
    return _binary(_path(model), items, b"".join(each.tobytes() for each in inputs.values()))


def _path(model: str) -> str:
    return f"/v2/models/{model}/infer"


def _binary(path: str, items: list[dict[str, object]], data: bytes) -> bytes:
    content = {"inputs": items, "parameters": {"binary_data_output": True}}
    head = json.dumps(content).encode()
    headers = (
        "Content-Type: application/octet-stream\r\n"
        f"Inference-Header-Content-Length: {len(head)}\r\n"
    )
    return post(path, head + data, headers)
