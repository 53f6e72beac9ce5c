"""What fuzzing has found in the server, each in its smallest form."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Iterator

import grpc
import pytest
from tritonclient.grpc import service_pb2

from tests.fuzz import calls, frames, judge, served

X = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}


def answers(server: served.Server, sent: bytes) -> list[judge.Answer]:
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        connection.sendall(sent)
        data = b"".join(iter(lambda: connection.recv(65536), b""))
    return list(judge.answers(data, sent))


@pytest.mark.parametrize(
    "fault",
    [
        b"nonsense\r\n\r\n",
        b"POST /v2/models/add_one/infer HTTP/1.1\r\nContent-Length: x\r\n\r\n",
        b"POST /v2/models/add_one/infer HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n",
        b"GET /v2 HTTP/1.1\r\nX: " + b"a" * served.MAX_HEAD_BYTES + b"\r\n\r\n",
    ],
)
@pytest.mark.parametrize("before", [1, 2, 3])
def test_requests_before_a_malformed_one_get_their_own_answers_first(
    server: served.Server, before: int, fault: bytes
) -> None:
    right = calls.of_content("add_one", {"inputs": [X]}).encoded(close=False)
    found = answers(server, right * before + fault)
    assert [answer.code for answer in found[:-1]] == [200] * before
    assert json.loads(found[0].body)["outputs"][0]["data"] == [2, 3, 4, 5]
    assert found[-1].code in {400, 431}
    assert list(json.loads(found[-1].body)) == ["error"]


@pytest.mark.parametrize("data", [b"\xff\xff\xff", b"\x0a\x02\xff\xfe", b"\x0a\x7f"])
@pytest.mark.parametrize("name", ["ModelInfer", "ModelReady", "ServerMetadata"])
def test_what_is_no_message_is_told_as_the_fault_of_the_caller(
    server: served.Server, name: str, data: bytes
) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        call = channel.unary_unary(f"/inference.GRPCInferenceService/{name}")
        if name == "ServerMetadata" and data[:1] == b"\x0a" and len(data) == 4:
            call(data, timeout=20)  # a field that it does not know, which is right
            return
        with pytest.raises(grpc.RpcError) as caught:
            call(data, timeout=20)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.details().startswith("message: expected a ")


def test_a_broken_message_in_a_stream_is_told_in_its_place(server: served.Server) -> None:
    right = service_pb2.ModelInferRequest(model_name="add_one", id="a")
    tensor = right.inputs.add(name="x", datatype="FP32", shape=[1, 4])
    tensor.contents.fp32_contents.extend([1, 2, 3, 4])
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        call = channel.stream_stream(
            "/inference.GRPCInferenceService/ModelStreamInfer",
            response_deserializer=service_pb2.ModelStreamInferResponse.FromString,
        )
        sent: Iterator[bytes] = iter([b"\xff\xff", right.SerializeToString()])
        first, second = list(call(sent, timeout=20))
    assert first.error_message.startswith("message: expected a ")
    assert second.infer_response.id == "a"


@pytest.mark.parametrize("is_raw", [True, False])
def test_no_values_of_extents_that_no_array_has_are_refused(
    server: served.Server, is_raw: bool
) -> None:
    shape = [0, 2**31 - 1, 2**31 - 1, 2**31 - 1]
    tensor: dict[str, object] = {"name": "x", "datatype": "FP32", "shape": shape}
    given: dict[str, object] = {"parameters": {"binary_data_size": 0}} if is_raw else {"data": []}
    request = calls.of_raw("add_one", {"inputs": [tensor | given]}, b"")
    (found,) = answers(server, request.encoded())
    assert found.code == 400
    assert json.loads(found.body)["error"].startswith("inputs[0]")


@pytest.mark.parametrize("name", [b"M\xff", b"\xe5\x28", b"\xed\xa0\x80"])
def test_a_method_whose_name_is_no_text_does_not_close_the_port(
    server: served.Server, name: bytes
) -> None:
    """The library ends its server then; another one takes its place."""
    before = server.log().count("another one is started")
    block = frames.head("Mxx").replace(b"Mxx", name.ljust(3, b"x"))
    end_s = time.monotonic() + 30
    with socket.create_connection(("127.0.0.1", server.grpc_port), timeout=20) as connection:
        connection.sendall(frames.PREFACE + frames.frame(4, 0, 0) + frames.frame(1, 5, 1, block))
        while server.log().count("another one is started") == before:
            assert time.monotonic() < end_s
            time.sleep(0.01)
    while time.monotonic() < end_s:
        with (
            contextlib.suppress(grpc.RpcError),
            grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel,
        ):
            call = channel.unary_unary("/inference.GRPCInferenceService/ServerLive")
            assert call(b"", timeout=5) == b"\x08\x01"
            return
    raise AssertionError(server.log())


@pytest.mark.parametrize("is_raw", [True, False])
def test_strings_that_are_no_text_come_back_over_grpc(server: served.Server, is_raw: bool) -> None:
    """Also from a model that another process runs, as strings are."""
    words = [b"\xff\x00\x99", "gr\xf6\xdfe".encode(), b""]
    sent = service_pb2.ModelInferRequest(model_name="words")
    tensor = sent.inputs.add(name="w", datatype="BYTES", shape=[3])
    packed = b"".join(len(each).to_bytes(4, "little") + each for each in words)
    if is_raw:
        sent.raw_input_contents.append(packed)
    else:
        tensor.contents.bytes_contents.extend(words)
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        found = service_pb2.ModelInferResponse.FromString(
            call(sent.SerializeToString(), timeout=20)
        )
    if is_raw:
        assert found.raw_output_contents[0] == packed
    else:
        assert list(found.outputs[0].contents.bytes_contents) == words
