"""Odd bodies and odd requests: each answered with 4xx, a path, and an error that clients read."""

from __future__ import annotations

import gzip
import json
import re
import struct
import time
import zlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.server import live

X: dict[str, Any] = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}
LENGTH = "Inference-Header-Content-Length"


def body(*inputs: Any, **more: Any) -> bytes:
    return json.dumps({"inputs": list(inputs), **more}).encode()


def with_x(**change: Any) -> bytes:
    return body(X | change)


def without(key: str) -> bytes:
    return body({name: value for name, value in X.items() if name != key})


RAW = {"name": "x", "datatype": "FP32", "shape": [1, 4], "parameters": {"binary_data_size": 16}}
DEEP = b'{"inputs":' + b"[" * 100_000 + b"]" * 100_000 + b"}"

# name: body, path that the error must name, model where it is not add_one
BODIES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "body"),
    "white": (b"  ", "body"),
    "not json": (b"\x00\xff\x00", "body"),
    "half of it": (body(X)[:-5], "body"),
    "two of it": (body(X) * 2, "body"),
    "not utf-8": (b'{"inputs":"\xff"}', "body"),
    "null": (b"null", "body"),
    "a number": (b"1", "body"),
    "a list": (b"[]", "body"),
    "a text": (b'"x"', "body"),
    "deep": (DEEP, "body"),
    "deep with special words": (DEEP + b"NaN", "body"),
    "a huge number": (with_x()[:-3] + b"1e999]}]}", "body"),
    "a huge number with special words": (b'{"a":NaN,"inputs":[1e999]}', "body"),
    "a number of 5000 digits with special words": (b'{"a":NaN,"b":' + b"9" * 5000 + b"}", "body"),
    "no inputs": (b"{}", "inputs"),
    "inputs null": (b'{"inputs":null}', "inputs"),
    "inputs an object": (b'{"inputs":{}}', "inputs"),
    "inputs empty": (body(), "inputs"),
    "an input null": (body(None), "inputs[0]"),
    "an input a list": (body([]), "inputs[0]"),
    "no name": (without("name"), "inputs[0].name"),
    "name a number": (with_x(name=1), "inputs[0].name"),
    "name a list": (with_x(name=["x"]), "inputs[0].name"),
    "name unknown": (with_x(name="z"), "inputs[0].name"),
    "name very long": (with_x(name="z" * 10_000), "inputs[0].name"),
    "name twice": (body(X, X), "inputs[1].name"),
    "one too many": (body(X, X | {"name": "y"}), "inputs[1].name"),
    "no datatype": (without("datatype"), "inputs[0].datatype"),
    "datatype unknown": (with_x(datatype="FP8"), "inputs[0].datatype"),
    "datatype wrong": (with_x(datatype="INT32"), "inputs[0].datatype"),
    "datatype in small letters": (with_x(datatype="fp32"), "inputs[0].datatype"),
    "datatype a list": (with_x(datatype=["FP32"]), "inputs[0].datatype"),
    "no shape": (without("shape"), "inputs[0].shape"),
    "shape a number": (with_x(shape=4), "inputs[0].shape"),
    "shape null": (with_x(shape=None), "inputs[0].shape"),
    "shape of texts": (with_x(shape=["1", "4"]), "inputs[0].shape[0]"),
    "shape of fractions": (with_x(shape=[1, 4.0]), "inputs[0].shape[1]"),
    "shape of truth": (with_x(shape=[True, 4]), "inputs[0].shape[0]"),
    "a dim of -1": (with_x(shape=[-1, 4]), "inputs[0].shape[0]"),
    "a dim of 2^40": (with_x(shape=[1 << 40, 4]), "inputs[0].shape[0]"),
    "a dim of 2^80": (with_x(shape=[1 << 80]), "inputs[0].shape[0]"),
    "huge but allowed dims": (with_x(shape=[2147483647] * 4), "inputs[0].data"),
    "many dims": (with_x(shape=[1] * 1000), "inputs[0].shape"),
    "shape of another rank": (with_x(shape=[4]), "inputs.x"),
    "shape of other dims": (with_x(shape=[2, 2]), "inputs.x"),
    "no values for a shape of none": (with_x(shape=[1, 0], data=[]), "inputs.x"),
    "no data": (without("data"), "inputs[0]"),
    "data null": (with_x(data=None), "inputs[0].data"),
    "data a number": (with_x(data=1), "inputs[0].data"),
    "data an object": (with_x(data={"0": 1}), "inputs[0].data"),
    "data a text": (with_x(data="AACAPwAAAEA="), "inputs[0].data"),
    "too few values": (with_x(data=[1, 2, 3]), "inputs[0].data"),
    "too many values": (with_x(data=[1, 2, 3, 4, 5]), "inputs[0].data"),
    "a null value": (with_x(data=[1, 2, 3, None]), "inputs[0].data[3]"),
    "a text value": (with_x(data=[1, "2", 3, 4]), "inputs[0].data[1]"),
    "a true value": (with_x(data=[True, 2, 3, 4]), "inputs[0].data[0]"),
    "an overflowing value": (with_x(data=[1, 2, 3, 1e39]), "inputs[0].data[3]"),
    "ragged": (with_x(shape=[2, 2], data=[[1, 2, 3], [4]]), "inputs[0].data[0]"),
    "nested too little": (with_x(shape=[1, 2, 2], data=[[1, 2, 3, 4]]), "inputs[0].data[0]"),
    "nested too much": (with_x(data=[[[1, 2, 3, 4]]]), "inputs[0].data[0]"),
    "parameters a list": (with_x(parameters=[]), "inputs[0].parameters"),
    "raw size without raw data": (body(RAW), "inputs[0].parameters.binary_data_size"),
    "raw size and data": (with_x(parameters={"binary_data_size": 16}),
                          "inputs[0].parameters.binary_data_size"),
    "shared memory": (body(RAW | {"parameters": {"shared_memory_region": "r"}}),
                      "inputs[0].parameters.shared_memory_region"),
    "id a number": (body(X, id=1), "id"),
    "outputs an object": (body(X, outputs={}), "outputs"),
    "output unknown": (body(X, outputs=[{"name": "z"}]), "outputs[0].name"),
    "output without name": (body(X, outputs=[{}]), "outputs[0].name"),
    "output a text": (body(X, outputs=["y"]), "outputs[0]"),
    "output twice": (body(X, outputs=[{"name": "y"}, {"name": "y"}]), "outputs[1].name"),
    "output raw a number": (body(X, outputs=[{"name": "y", "parameters": {"binary_data": 1}}]),
                            "outputs[0].parameters.binary_data"),
    "classification": (body(X, outputs=[{"name": "y", "parameters": {"classification": 3}}]),
                       "outputs[0].parameters.classification"),
    "all raw a text": (body(X, parameters={"binary_data_output": "true"}),
                       "parameters.binary_data_output"),
    "a sequence": (body(X, parameters={"sequence_id": 7}), "parameters.sequence_id"),
    "a timeout of text": (body(X, parameters={"timeout": "1s"}), "parameters.timeout"),
    "a timeout below zero": (body(X, parameters={"timeout": -1}), "parameters.timeout"),
}  # fmt: skip


def refused(answer: live.Answer, path: str, code: int = 400) -> str:
    """The answer is a refusal with this code whose error names this path first."""
    found, headers, content = answer
    assert found == code, content
    assert headers["content-type"] == "application/json"
    error = json.loads(content)
    assert list(error) == ["error"]
    assert error["error"].startswith(f"{path}:"), error
    assert len(content) < 2000
    return str(error["error"])


@pytest.mark.parametrize("name", BODIES)
def test_odd_bodies_are_refused_at_their_path(server: live.Server, name: str) -> None:
    sent, path = BODIES[name]
    refused(server.ask("POST", "/v2/models/add_one/infer", sent), path)


@pytest.mark.parametrize(
    "datatype, value",
    [
        ("UINT8", 256), ("UINT8", -1), ("INT8", 128), ("UINT16", 65536), ("INT16", -32769),
        ("INT32", 1 << 31), ("UINT32", -1), ("INT64", 1 << 63), ("INT64", 1 << 70),
        ("UINT64", 1 << 64), ("UINT64", -1), ("INT64", 0.5), ("INT64", True), ("BOOL", 1),
        ("BOOL", "true"), ("FP16", 65520), ("FP64", "inf"), ("BYTES", 1), ("BYTES", None),
    ],
)  # fmt: skip
def test_values_that_a_datatype_cannot_hold_are_refused(
    server: live.Server, datatype: str, value: Any
) -> None:
    names = {"FP16": "float16", "FP64": "float64", "BYTES": "string", "BOOL": "bool"}
    model = f"identity_{names.get(datatype, datatype.lower())}"
    sent = body({"name": "x", "datatype": datatype, "shape": [1], "data": [value]})
    refused(server.ask("POST", f"/v2/models/{model}/infer", sent), "inputs[0].data[0]")


RAW_DATA = struct.pack("<4f", 1, 2, 3, 4)
RAW_HEAD = body(RAW)
RAW_STRING = body({"name": "x", "datatype": "BYTES", "shape": [1],
                   "parameters": {"binary_data_size": 5}})  # fmt: skip
RAW_SIZE = "inputs[0].parameters.binary_data_size"


@pytest.mark.parametrize(
    "model, length, sent, path",
    [
        ("add_one", "0", RAW_HEAD + RAW_DATA, "headers.inference-header-content-length"),
        ("add_one", "-1", RAW_HEAD + RAW_DATA, "headers.inference-header-content-length"),
        ("add_one", "1e2", RAW_HEAD + RAW_DATA, "headers.inference-header-content-length"),
        ("add_one", "9" * 30, RAW_HEAD + RAW_DATA, "headers.inference-header-content-length"),
        ("add_one", "9999", RAW_HEAD + RAW_DATA, "headers.inference-header-content-length"),
        ("add_one", str(len(RAW_HEAD) - 1), RAW_HEAD + RAW_DATA, "body"),
        ("add_one", str(len(RAW_HEAD)), RAW_HEAD + RAW_DATA[:-1], RAW_SIZE),
        ("add_one", str(len(RAW_HEAD)), RAW_HEAD + RAW_DATA + b"x", "body"),
        ("add_one", str(len(body(X))), body(X) + RAW_DATA, "body"),
        ("add_one", None, RAW_HEAD + RAW_DATA, "body"),
        ("identity_string", str(len(RAW_STRING)), RAW_STRING + b"\2\0\0\0a", "inputs[0].parameters"),
        ("identity_string", str(len(RAW_STRING)), RAW_STRING + b"\0\0\0\0a", "inputs[0].parameters"),
        ("identity_string", str(len(RAW_STRING)), RAW_STRING + b"\xff\xff\xff\xffa",
         "inputs[0].parameters"),
    ],
)  # fmt: skip
def test_raw_tensors_that_do_not_fit_are_refused(
    server: live.Server, model: str, length: str | None, sent: bytes, path: str
) -> None:
    headers = {} if length is None else {LENGTH: length}
    refused(server.ask("POST", f"/v2/models/{model}/infer", sent, headers), path)


@pytest.mark.parametrize("size", [-1, 1.5, "16", True, 1 << 70])
def test_a_raw_size_is_a_count_of_bytes(server: live.Server, size: Any) -> None:
    head = body(RAW | {"parameters": {"binary_data_size": size}})
    answer = server.ask(
        "POST", "/v2/models/add_one/infer", head + RAW_DATA, {LENGTH: str(len(head))}
    )
    refused(answer, RAW_SIZE)


def test_bodies_may_be_compressed_and_are_bounded_by_what_comes_out(server: live.Server) -> None:
    path = "/v2/models/add_one/infer"
    for encoding, packed in (("gzip", gzip.compress(body(X))), ("deflate", zlib.compress(body(X)))):
        code, _, content = server.ask("POST", path, packed, {"Content-Encoding": encoding})
        assert code == 200, content
        for damaged in (packed[:-3], packed + b"x", b"x" + packed, b""):
            refused(server.ask("POST", path, damaged, {"Content-Encoding": encoding}), "body")
    bomb = gzip.compress(b" " * (100 << 20))
    refused(server.ask("POST", path, bomb, {"Content-Encoding": "gzip"}), "body", 413)
    answer = server.ask("POST", path, body(X), {"Content-Encoding": "br"})
    refused(answer, "headers.content-encoding", 415)


def test_a_body_above_the_limit_is_refused_before_it_is_read(server: live.Server) -> None:
    path = "/v2/models/add_one/infer"
    refused(server.ask("POST", path, b"x" * ((1 << 20) + 1)), "body", 413)
    head = b"POST %s HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999\r\n\r\n" % path.encode()
    with server.connect() as connection:
        connection.sendall(head)
        assert connection.recv(65536).startswith(b"HTTP/1.1 413 ")
    chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
    head = b"POST %s HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" % path.encode()
    with server.connect() as connection:
        connection.sendall(head + chunk * 17)
        assert connection.recv(65536).startswith(b"HTTP/1.1 413 ")


def chunked(data: bytes, size: int) -> bytes:
    pieces = (data[at : at + size] for at in range(0, len(data), size))
    return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


def test_large_bodies_arrive_whole_however_they_are_sent(server: live.Server) -> None:
    data = struct.pack("<200000f", *range(200_000))
    head = body({"name": "x", "datatype": "FP32", "shape": [200_000],
                 "parameters": {"binary_data_size": len(data)}},
                parameters={"binary_data_output": True})  # fmt: skip
    start = (
        f"POST /v2/models/identity_float32/infer HTTP/1.1\r\nHost: a\r\n{LENGTH}: {len(head)}\r\n"
    ).encode()
    declared = start + b"Content-Length: %d\r\n" % (len(head) + len(data))
    in_chunks = start + b"Transfer-Encoding: chunked\r\n"
    last = b"Connection: close\r\n"
    one = declared + b"\r\n" + head + data
    for sent, count in (
        (one + one + declared + last + b"\r\n" + head + data, 3),
        (in_chunks + last + b"\r\n" + chunked(head + data, 70_001), 1),
        (
            in_chunks
            + b"\r\n"
            + chunked(head + data, 999)
            + declared
            + last
            + b"\r\n"
            + head
            + data,
            2,
        ),
    ):
        answers = server.send(sent)
        assert answers.count(b"HTTP/1.1 200 OK") == count
        assert answers.count(data) == count


def test_a_large_body_goes_straight_to_memory_of_its_own(server: live.Server) -> None:
    name = "castiron_direct_bodies_total{}"
    before = server.metrics()[name]
    for size in (100, 70_000, 1 << 20):
        server.ask("POST", "/v2/models/add_one/infer", b"x" * size)
    assert server.metrics()[name] == before + 2


def test_a_large_body_of_a_request_that_is_answered_at_once_is_read_and_forgotten(
    server: live.Server,
) -> None:
    size = 900_000
    large = b"POST /v2/models/none/infer HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % size
    small = b"GET /v2 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    with server.connect() as connection:
        connection.sendall(large + b"x" * 1000)
        assert connection.recv(65536).startswith(b"HTTP/1.1 404 ")
        connection.sendall(b"x" * (size - 1000) + small)
        assert live.until_closed(connection).startswith(b"HTTP/1.1 200 ")


def test_a_connection_goes_on_after_a_refused_body(server: live.Server) -> None:
    path = b"/v2/models/add_one/infer"
    size = (1 << 20) + 1
    large = b"POST %s HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % (path, size)
    small = b"GET /v2 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    answers = server.send(large + b"x" * size + small)
    assert re.findall(rb"HTTP/1.1 (\d+)", answers) == [b"413", b"200"]


@pytest.mark.parametrize(
    "method, path, code",
    [
        ("GET", "/", 404), ("GET", "/v1", 404), ("GET", "/v2/nothing", 404),
        ("GET", "/v2/models/none", 404), ("GET", "/v2/models/none/ready", 404),
        ("POST", "/v2/models/none/infer", 404), ("GET", "/v2/models/add_one/versions/9", 404),
        ("POST", "/v2/models/add_one/versions/x/infer", 404), ("GET", "/v2/models//ready", 404),
        ("POST", "/v2/models/..%2F..%2Fetc%2Fpasswd/infer", 404),
        ("POST", "/v2/models/../../etc/infer", 404), ("GET", "/v2/models/%FF%00", 404),
        ("GET", "/v2/models/add_one/versions/1/nothing", 404),
        ("GET", "/v2/models/add_one/versions//ready", 404),
        ("GET", "/v2/models/add_one/infer", 405), ("POST", "/v2/models/add_one", 405),
        ("DELETE", "/v2", 405), ("GET", "/v2/repository/index", 405), ("POST", "/metrics", 405),
        ("PUT", "/v2/health/live", 405), ("GET", "/v2/models/none/stats", 404),
    ],
)  # fmt: skip
def test_calls_that_do_not_exist_are_told_apart(
    server: live.Server, method: str, path: str, code: int
) -> None:
    found, _, content = server.ask(method, path, b"{}" if method == "POST" else None)
    assert found == code, content
    assert list(json.loads(content)) == ["error"]


@pytest.mark.parametrize(
    "sent",
    [
        b"\0\0\0\0\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\x16\x03\x01\x02\0\x01",
        b"GET / HTTP/1.1\r\nContent-Length: x\r\n\r\n", b" GET /v2 HTTP/1.1\r\n\r\n",
        b"POST /v2 HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"POST /v2 HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n",
        b"GET http://[ HTTP/1.1\r\n\r\n", "GET /ü HTTP/1.1\r\n\r\n".encode("latin-1"),
        b"GET / HTTP/1.1\r\nX: a\0b\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
)  # fmt: skip
def test_what_is_no_http_is_refused_with_the_same_error_body(
    server: live.Server, sent: bytes
) -> None:
    head, _, content = server.send(sent).partition(b"\r\n\r\n")
    assert re.match(rb"HTTP/1.1 4\d\d ", head), head
    assert list(json.loads(content)) == ["error"]


def test_a_request_without_a_length_is_refused(server: live.Server) -> None:
    sent = b"POST /v2/models/add_one/infer HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    assert server.send(sent).startswith(b"HTTP/1.1 411 ")


def test_heads_are_bounded(server: live.Server) -> None:
    line = b"X-%d: " + b"a" * 1000 + b"\r\n"
    many = b"".join(line % index for index in range(80))
    for sent in (
        b"GET /v2 HTTP/1.1\r\n" + many + b"\r\n",
        b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n",
        b"GET /v2 HTTP/1.1\r\nX: " + b"a" * 600_000,
    ):
        answer = server.send(sent)
        assert answer == b"" or answer.startswith(b"HTTP/1.1 431 "), answer[:100]
    assert server.send(
        b"GET /v2 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n" + line % 1 + b"\r\n"
    ).startswith(b"HTTP/1.1 200 ")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


@given(key=st.sampled_from([*X, "parameters"]), value=JSON)
@settings(max_examples=150)
def test_any_json_in_any_field_is_answered_below_500(
    server: live.Server, key: str, value: Any
) -> None:
    code, _, content = server.ask("POST", "/v2/models/add_one/infer", with_x(**{key: value}))
    assert code in {200, 400}, content
    assert isinstance(json.loads(content), dict)


@given(data=st.data())
@settings(max_examples=150)
def test_any_change_of_bytes_is_answered_below_500(
    server: live.Server, data: st.DataObject
) -> None:
    head = body(RAW | {"parameters": {"binary_data_size": 16}}, id="q")
    sent = bytearray(head + RAW_DATA)
    for _ in range(data.draw(st.integers(1, 4))):
        sent[data.draw(st.integers(0, len(sent) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(sent)) | st.just(len(sent)))
    length = data.draw(st.integers(0, len(sent)) | st.just(len(head)))
    code, _, content = server.ask(
        "POST", "/v2/models/add_one/infer", bytes(sent[:cut]), {LENGTH: str(length)}
    )
    assert code in {200, 400}, content


@given(data=st.data())
def test_any_change_of_framing_is_answered_below_500_or_waited_for(
    server: live.Server, data: st.DataObject
) -> None:
    content = body(X)
    head = b"POST /v2/models/add_one/infer HTTP/1.1\r\nHost: a\r\n"
    kind = data.draw(
        st.sampled_from([b"Content-Length: %d\r\n\r\n", b"", b"Expect: 100-continue\r\n"])
    )
    if kind.startswith(b"Content"):
        sent = bytearray(head + kind % len(content) + content)
    else:
        sent = bytearray(head + kind + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(content, 50))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(sent) - 1))
        piece = data.draw(
            st.binary(max_size=3) | st.sampled_from([b"\r\n", b"\r\n\r\n", b":", b" "])
        )
        sent[at : at + data.draw(st.integers(0, 3))] = piece
    with server.connect() as connection:
        connection.settimeout(0.05)
        connection.sendall(bytes(sent))
        try:
            answer = connection.recv(65536)
        except (TimeoutError, ConnectionResetError):
            return  # it is waited for; the bounds on slow clients end that
    assert answer == b"" or re.match(rb"HTTP/1.1 [1-4]\d\d ", answer), answer


def test_after_all_of_this_every_request_has_had_exactly_one_outcome(server: live.Server) -> None:
    end = time.monotonic() + 10
    while server.metrics()["castiron_requests_in_flight{}"] and time.monotonic() < end:
        time.sleep(0.05)  # clients of the test before have just left
    metrics = server.metrics()
    assert metrics["castiron_requests_accepted_total{}"] == sum(server.outcomes().values())
    assert metrics["castiron_requests_in_flight{}"] == 0
    assert "failed" not in server.outcomes()
    assert "Traceback" not in server.log()
