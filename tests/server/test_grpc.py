"""The protocol over gRPC, judged by the reference client, its asynchronous form, and bare calls."""

from __future__ import annotations

import asyncio
import queue
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import ml_dtypes
import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
from grpc_reflection.v1alpha import proto_reflection_descriptor_database as reflected
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

import castiron
from tests import numpy_instance
from tests.server import live
from tests.server.grpc_calls import ONE, given, ignored, message, refused, sleeping, telling

pytestmark = pytest.mark.xdist_group("grpc")

Code: Any = grpc.StatusCode


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[live.Server]:
    models = {f"{name}/1/model.cast": name for name in numpy_instance.models()}
    models |= {"add_one/2/model.onnx": "add_one", "broken/1/model.cast": "nothing of ours"}
    folder = tmp_path_factory.mktemp("grpc")
    with live.serving(folder, models, grpc_port=0, max_body_bytes=1 << 20) as running:
        yield running


@pytest.fixture
def client(server: live.Server) -> Iterator[Any]:
    with triton.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as made:
        yield made


@pytest.fixture
def stub(server: live.Server) -> Iterator[Any]:
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        yield service_pb2_grpc.GRPCInferenceServiceStub(channel)


def test_health_and_metadata_calls(client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("add_one")
    assert client.is_model_ready("add_one", "2")
    assert not client.is_model_ready("add_one", "3")
    assert not client.is_model_ready("broken")
    assert not client.is_model_ready("none")
    assert client.get_server_metadata().version == castiron.__version__
    told = client.get_model_metadata("sum_and_difference", as_json=True)
    assert told["inputs"][1] == {"name": "b", "datatype": "FP32", "shape": ["-1", "2"]}
    assert client.get_model_metadata("add_one").versions == ["1", "2"]


def test_configuration_statistics_and_index_calls(client: Any) -> None:
    configured = client.get_model_config("add_one", "1", as_json=True)["config"]
    assert configured["input"] == [{"name": "x", "data_type": "TYPE_FP32", "dims": ["1", "4"]}]
    client.infer("add_one", [ONE], model_version="1")
    (entry,) = client.get_inference_statistics("add_one", "1").model_stats
    assert entry.inference_stats.success.count >= 1
    assert entry.inference_stats.compute_infer.ns > 0
    assert entry.batch_stats[0].batch_size == 1
    assert len(client.get_inference_statistics("add_one").model_stats) == 2
    assert len(client.get_inference_statistics().model_stats) > 10
    states = {(e.name, e.version): e.state for e in client.get_model_repository_index().models}
    assert states[("add_one", "2")] == "READY"
    assert states[("broken", "1")] == "UNAVAILABLE"


def test_infer_gives_back_what_was_asked_for(client: Any) -> None:
    a = np.array([[1, 2], [3, np.nan], [np.inf, -0.0]], np.float32)
    b = np.array([[0.5, -2], [1e-45, 1], [1, 0.0]], np.float32)
    answer = client.infer(
        "sum_and_difference",
        [given("b", b), given("a", a)],
        outputs=[triton.InferRequestedOutput("difference"), triton.InferRequestedOutput("sum")],
        request_id="mine",
        priority=1,
        timeout=10_000_000,
        client_timeout=10,
        headers={"x-client-key": "me"},
        parameters={"of_my_own": "text"},
        compression_algorithm="gzip",
    )
    response = answer.get_response()
    assert (response.id, response.model_version) == ("mine", "1")
    assert [output.name for output in response.outputs] == ["difference", "sum"]
    assert answer.as_numpy("sum").tobytes() == (a + b).tobytes()
    assert answer.as_numpy("difference").tobytes() == (a - b).tobytes()
    assert client.infer("add_one", [ONE]).get_response().model_version == "2"


NUMERIC = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64".split()


def extremes(kind: str) -> np.ndarray:
    dtype = np.dtype(kind)
    if kind == "bool":
        return np.array([True, False])
    if dtype.kind == "f":
        limits = np.finfo(dtype)
        odd = [np.nan, np.inf, -np.inf, limits.max, limits.smallest_subnormal, -0.0, 0.1]
        return np.array(odd, dtype)
    return np.array([np.iinfo(dtype).min, np.iinfo(dtype).max, 7], dtype)


@pytest.mark.parametrize("kind", NUMERIC)
def test_the_extremes_of_every_datatype_come_back_raw(client: Any, kind: str) -> None:
    for x in (extremes(kind), np.zeros(0, kind)):
        found = client.infer(f"identity_{kind}", [given("x", x)]).as_numpy("y")
        assert found.dtype == x.dtype
        assert found.shape == x.shape
        assert found.tobytes() == x.tobytes()


def test_bfloat16_comes_back(client: Any) -> None:
    x = np.array([1.5, 3.0e38, 0.1, -0.0, np.inf, np.nan], ml_dtypes.bfloat16)
    answer = client.infer("identity_bfloat16", [given("x", x, "BF16")])
    assert answer.as_numpy("y").astype(x.dtype).tobytes() == x.tobytes()


def test_strings_of_any_bytes_come_back(client: Any, stub: Any) -> None:
    strings = [b"", "pä\0y ☃".encode(), b"\xff\xfe\x00"]
    x = np.array(strings, object)
    assert client.infer("identity_string", [given("x", x)]).as_numpy("y").tolist() == strings
    typed = stub.ModelInfer(message("identity_string", "BYTES", [3], bytes_contents=strings))
    assert list(typed.outputs[0].contents.bytes_contents) == strings


LISTS = {
    "bool": "bool_contents", "int8": "int_contents", "int16": "int_contents",
    "int32": "int_contents", "int64": "int64_contents", "uint8": "uint_contents",
    "uint16": "uint_contents", "uint32": "uint_contents", "uint64": "uint64_contents",
    "float32": "fp32_contents", "float64": "fp64_contents",
}  # fmt: skip


@pytest.mark.parametrize("kind", LISTS)
def test_the_extremes_of_every_datatype_come_back_typed(stub: Any, kind: str) -> None:
    x, datatype = extremes(kind), np_to_triton_dtype(np.dtype(kind))
    sent = message(f"identity_{kind}", datatype, [len(x)], **{LISTS[kind]: x.tolist()})
    answer = stub.ModelInfer(sent)
    assert not answer.raw_output_contents
    found = np.array(getattr(answer.outputs[0].contents, LISTS[kind]), kind)
    assert found.tobytes() == x.tobytes()
    empty = stub.ModelInfer(message(f"identity_{kind}", datatype, [0]))
    assert list(empty.outputs[0].shape) == [0]


def wrong() -> list[tuple[str, Any, Any, str]]:
    """What is wrong, the request, its status, and how its details begin."""
    raw = message("identity_int8", "INT8", [2])
    raw.raw_input_contents.extend([b"12", b"3"])
    both = message("identity_int8", "INT8", [2], int_contents=[1, 2])
    both.raw_input_contents.append(b"12")
    short = message("identity_int32", "INT32", [2])
    short.raw_input_contents.append(b"12")
    twice = message("identity_int8", "INT8", [1], int_contents=[1])
    twice.inputs.append(twice.inputs[0])
    output = message("identity_int8", "INT8", [1], int_contents=[1])
    output.outputs.add(name="z")
    memory = message("identity_int8", "INT8", [1], int_contents=[1])
    memory.inputs[0].parameters["shared_memory_region"].string_param = "r"
    hollow = message("identity_int8", "INT8", [1], int_contents=[1])
    hollow.parameters["nothing"].SetInParent()
    late = message("identity_int8", "INT8", [1], int_contents=[1])
    late.parameters["timeout"].string_param = "soon"
    bad = Code.INVALID_ARGUMENT
    return [
        ("two raw", raw, bad, "raw_input_contents: expected none, or one for each of 1 inputs"),
        ("both", both, bad, "inputs[0].contents: expected none beside raw_input_contents"),
        ("short", short, bad, "raw_input_contents[0]: expected 8 bytes for INT32"),
        ("twice", twice, bad, "inputs[1].name: input 'x' is given twice"),
        ("output", output, bad, "outputs[0].name: expected the name of an output"),
        ("memory", memory, bad, "inputs[0].parameters.shared_memory_region: is not offered"),
        ("hollow", hollow, bad, "parameters.nothing: expected a value"),
        ("timeout", late, bad, "parameters.timeout: expected whole microseconds"),
        ("range", message("identity_int8", "INT8", [1], int_contents=[300]), bad,
         "inputs[0].contents.int_contents[0]: expected INT8 from -128 to 127"),
        ("list", message("identity_int8", "INT8", [1], fp32_contents=[1]), bad,
         "inputs[0].contents: expected INT8 in int_contents, found fp32_contents"),
        ("half", message("identity_float16", "FP16", [1], fp32_contents=[1]), bad,
         "inputs[0].contents: FP16 has no typed form; send it raw"),
        ("count", message("identity_int8", "INT8", [3], int_contents=[1]), bad,
         "inputs[0].contents.int_contents: expected 3 values"),
        ("strings", message("identity_string", "BYTES", [3], bytes_contents=[b""]), bad,
         "inputs[0].contents.bytes_contents: expected 3 values"),
        ("datatype", message("identity_int8", "INT9", [1]), bad, "inputs[0].datatype: expected"),
        ("dim", message("identity_int8", "INT8", [-1]), bad, "inputs[0].shape[0]: expected"),
        ("huge", message("identity_int8", "INT8", [2**31 - 1] * 4), bad, "inputs[0].contents"),
        ("none", service_pb2.ModelInferRequest(model_name="add_one"), bad, "inputs: missing 'x'"),
        ("model", message("nobody", "INT8", [1]), Code.NOT_FOUND, "model 'nobody' is not served"),
        ("ready", message("broken", "INT8", [1]), Code.UNAVAILABLE, "no version of model"),
        ("fails", message("fragile", "FP32", [1], fp32_contents=[-1]), Code.INTERNAL,
         "the server failed on this request"),
    ]  # fmt: skip


@pytest.mark.parametrize("sent, code, text", [case[1:] for case in wrong()],
                         ids=[case[0] for case in wrong()])  # fmt: skip
def test_wrong_requests_are_refused_with_their_path(
    stub: Any, sent: Any, code: Any, text: str
) -> None:
    error = refused(stub.ModelInfer, sent)
    assert error.code() == code
    assert error.details().startswith(text)


def test_messages_that_are_too_large_are_refused(client: Any, server: live.Server) -> None:
    with pytest.raises(InferenceServerException) as error:
        client.infer("identity_uint8", [given("x", np.zeros((1 << 20) + 1, np.uint8))])
    assert error.value.status() == "StatusCode.INVALID_ARGUMENT"
    with pytest.raises(InferenceServerException) as error:
        client.infer(
            "identity_uint8", [given("x", np.zeros(64 << 20, np.uint8))],
            compression_algorithm="gzip",
        )  # fmt: skip
    assert error.value.status() == "StatusCode.RESOURCE_EXHAUSTED"
    assert server.process.poll() is None


def test_bytes_that_are_no_message_are_refused(server: live.Server) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        for data in (b"\xff", b"\x0a\xff\xff", bytes(1000)):
            assert refused(infer, data, timeout=20).code() == Code.INVALID_ARGUMENT
        unknown = channel.unary_unary("/inference.GRPCInferenceService/Nothing")
        assert refused(unknown, b"", timeout=20).code() == Code.UNIMPLEMENTED


def test_deadlines_and_cancelled_calls_end_the_work_in_the_queue(tmp_path: Path) -> None:
    with live.serving(tmp_path, {"slow/1/model.cast": "slow"}, grpc_port=0) as server:
        with triton.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
            with server.holding("slow"):
                held = [client.async_infer("slow", sleeping(0), ignored)
                        for _ in range(2)]  # fmt: skip
                server.wait_in_flight(2)
                with pytest.raises(InferenceServerException) as late:
                    client.infer("slow", sleeping(0), client_timeout=0.5)
                assert late.value.status() == "StatusCode.DEADLINE_EXCEEDED"
                server.wait_in_flight(2)
                told: queue.Queue[Any] = queue.Queue()
                leaving = [client.async_infer("slow", sleeping(0), telling(told))
                           for _ in range(3)]  # fmt: skip
                server.wait_in_flight(5)
                for call in leaving:
                    call.cancel()
                assert {told.get(timeout=20).status() for _ in leaving} == {"StatusCode.CANCELLED"}
                server.wait_in_flight(2)
            server.wait_in_flight(0)
            assert len(held) == 2
        assert server.outcomes() == {"ok": 2, "timeout": 1, "cancelled": 3}
        (entry,) = server.get("/v2/models/slow/stats")["model_stats"]
        assert entry["execution_count"] == 2


def test_the_timeout_parameter_is_kept_by_the_server(stub: Any, server: live.Server) -> None:
    sent = message("slow", "FP32", [1], fp32_contents=[0])
    sent.inputs[0].name = "seconds"
    sent.parameters["timeout"].int64_param = 50_000
    begun = time.monotonic()
    with server.holding("slow"):
        error = refused(stub.ModelInfer, sent)
    assert error.code() == Code.DEADLINE_EXCEEDED
    assert time.monotonic() - begun < 10  # without, it is thirty seconds


def test_refusals_say_why_and_when_to_come_back(tmp_path: Path) -> None:
    models = {"add_one/1/model.cast": "add_one"}
    with live.serving(tmp_path, models, grpc_port=0, rate_per_s=0.1, rate_burst=1) as server:  # noqa: SIM117  the second needs the first
        with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            sent = message("add_one", "FP32", [1, 4], fp32_contents=[1, 2, 3, 4])
            stub.ModelInfer(sent)
            error: Any = refused(stub.ModelInfer, sent)
            assert error.code() == Code.RESOURCE_EXHAUSTED
            told = dict(error.trailing_metadata())
            assert told["x-refusal-reason"] == "rate"
            assert 5000 <= int(told["retry-after-ms"]) <= 13_000
            another = (("x-client-key", "another"),)
            assert stub.ModelInfer(sent, metadata=another).model_name == "add_one"


def test_a_stream_answers_in_order_and_tells_each_fault_in_its_place(client: Any) -> None:
    told: queue.Queue[Any] = queue.Queue()
    client.start_stream(lambda result, error: told.put((result, error)))
    for number in range(40):
        client.async_stream_infer("add_one", [ONE], request_id=str(number))
    client.async_stream_infer("none", [ONE], request_id="bad")
    client.async_stream_infer("add_one", [ONE], request_id="last", enable_empty_final_response=True)
    found = [told.get(timeout=20) for _ in range(42)]
    client.stop_stream()
    assert [result.get_response().id for result, _ in found[:40]] == [str(n) for n in range(40)]
    assert "is not served here" in str(found[40][1])
    last = found[41][0]
    assert last.as_numpy("y").tolist() == [[2, 3, 4, 5]]
    assert last.get_response().parameters["triton_final_response"].bool_param


def test_a_stream_that_is_cancelled_cancels_its_requests(tmp_path: Path) -> None:
    with live.serving(tmp_path, {"slow/1/model.cast": "slow"}, grpc_port=0) as server:
        address = f"127.0.0.1:{server.grpc_port}"
        with triton.InferenceServerClient(address) as client, server.holding("slow"):
            client.start_stream(ignored)
            for _ in range(5):
                client.async_stream_infer("slow", sleeping(0))
            server.wait_in_flight(5)
            client.stop_stream(cancel_requests=True)
            live.until(lambda: server.outcomes() == {"cancelled": 5})
        server.wait_in_flight(0)
        assert server.outcomes() == {"cancelled": 5}
        (entry,) = server.get("/v2/models/slow/stats")["model_stats"]
        assert entry["execution_count"] <= 2


def test_the_asynchronous_form_of_the_client(server: live.Server) -> None:
    async def body() -> None:
        async with triton_aio.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
            assert await client.is_server_live()
            assert await client.is_server_ready()
            assert await client.is_model_ready("add_one")
            assert (await client.get_model_metadata("add_one")).name == "add_one"
            assert (await client.get_model_config("add_one")).config.backend == "castiron"
            assert (await client.get_inference_statistics("add_one")).model_stats
            assert (await client.get_model_repository_index()).models
            inputs = [np.full((1, 4), number, np.float32) for number in range(20)]
            calls = [client.infer("add_one", [given("x", x)]) for x in inputs]
            for x, answer in zip(inputs, await asyncio.gather(*calls), strict=True):
                assert np.array_equal(answer.as_numpy("y"), x + 1)
            with pytest.raises(InferenceServerException, match="is not served here"):
                await client.infer("none", [ONE])

            async def requests() -> Any:
                for number in range(3):
                    yield {"model_name": "add_one", "inputs": [ONE], "request_id": str(number)}

            answers = client.stream_infer(requests())
            assert [result.get_response().id async for result, _ in answers] == ["0", "1", "2"]

    asyncio.run(body())


def test_tools_can_ask_what_the_server_offers(server: live.Server) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        offered = reflected.ProtoReflectionDescriptorDatabase(channel)
        assert set(offered.get_services()) == {
            "inference.GRPCInferenceService", "grpc.health.v1.Health",
            "grpc.reflection.v1alpha.ServerReflection",
        }  # fmt: skip
        file = offered.FindFileContainingSymbol("inference.GRPCInferenceService")
        assert "ModelStreamInfer" in {method.name for method in file.service[0].method}
