"""Tensors of every datatype and any value come back bit for bit, in JSON and raw, amid each other."""

from __future__ import annotations

import http.client
import json
import struct
from typing import Any

import hypothesis
import numpy as np
from hypothesis import strategies as st

from tests.fuzz import served

_WIDTHS = {"BOOL": 1, "INT8": 1, "UINT8": 1, "INT16": 2, "UINT16": 2, "FP16": 2, "BF16": 2,
           "INT32": 4, "UINT32": 4, "FP32": 4, "INT64": 8, "UINT64": 8, "FP64": 8}  # fmt: skip
_NUMPY = {"INT8": np.int8, "UINT8": np.uint8, "INT16": np.int16, "UINT16": np.uint16,
          "FP16": np.float16, "INT32": np.int32, "UINT32": np.uint32, "FP32": np.float32,
          "INT64": np.int64, "UINT64": np.uint64, "FP64": np.float64}  # fmt: skip


@st.composite
def tensors(draw: st.DrawFn) -> dict[str, bytes]:
    """Raw values of each datatype, all of one length."""
    count = draw(st.integers(0, 5))
    found = {}
    for name, width in _WIDTHS.items():
        data = draw(st.binary(min_size=count * width, max_size=count * width))
        found[name] = bytes(byte & 1 for byte in data) if name == "BOOL" else data
    return found


def ask(server: served.Server, head: dict[str, Any], tail: bytes) -> tuple[dict[str, Any], bytes]:
    text = json.dumps(head).encode()
    headers = {"Inference-Header-Content-Length": str(len(text))}
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    connection.request("POST", "/v2/models/every/infer", text + tail, headers)
    response = connection.getresponse()
    body = response.read()
    connection.close()
    assert response.status == 200, body
    size = int(response.getheader("inference-header-content-length", len(body)))
    answer: dict[str, Any] = json.loads(body[:size])
    return answer, body[size:]


def described(values: dict[str, bytes]) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "datatype": name,
            "shape": [len(data) // _WIDTHS[name]],
            "parameters": {"binary_data_size": len(data)},
        }
        for name, data in values.items()
    ]


@hypothesis.given(values=tensors(), raw=st.sets(st.sampled_from(sorted(served.DTYPES))))
def test_what_is_sent_raw_comes_back_the_same_raw_or_as_json(
    server: served.Server, values: dict[str, bytes], raw: set[str]
) -> None:
    wanted = [
        {"name": f"{name}_out", "parameters": {"binary_data": name in raw}} for name in values
    ]
    head = {"inputs": described(values), "outputs": wanted}
    answer, tail = ask(server, head, b"".join(values.values()))
    for output in answer["outputs"]:
        name = output["name"].removesuffix("_out")
        if name in raw:
            size = output["parameters"]["binary_data_size"]
            assert tail[:size] == values[name], name
            tail = tail[size:]
        else:
            assert_same(name, output["data"], values[name])
    assert not tail


@hypothesis.given(values=tensors())
def test_the_json_of_an_answer_is_a_request_with_the_same_answer(
    server: served.Server, values: dict[str, bytes]
) -> None:
    first, _ = ask(server, {"inputs": described(values)}, b"".join(values.values()))
    again = [{**output, "name": output["name"].removesuffix("_out")} for output in first["outputs"]]
    second, _ = ask(server, {"inputs": again}, b"")
    assert second["outputs"] == first["outputs"]


def assert_same(name: str, listed: list[Any], data: bytes) -> None:
    """The values of a JSON list are those of the bytes; a NaN may lose its payload."""
    if name == "BOOL":
        assert listed == [bool(byte) for byte in data]
        return
    if name == "BF16":
        words = struct.unpack(f"<{len(data) // 2}H", data)
        data = struct.pack(f"<{len(words)}I", *(word << 16 for word in words))
        name = "FP32"
    expected = np.frombuffer(data, _NUMPY[name])
    numbers = [float(value) if isinstance(value, str) else value for value in listed]
    found = np.array(numbers, _NUMPY[name])
    nan = np.isnan(expected)
    assert (np.isnan(found) == nan).all(), (name, listed)
    assert found[~nan].tobytes() == expected[~nan].tobytes(), (name, listed)
