"""What gRPC tells beside an answer or a refusal: what HTTP tells in headers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2_grpc

from tests.server import grpc_calls, live

pytestmark = pytest.mark.xdist_group("trailers")

_MODELS = {"add_one/1/model.cast": "add_one", "slow/1/model.cast": "slow"}
_TRACE = "0af7651916cd43dd8448eb211c80319c"
_PARENT = f"00-{_TRACE}-b7ad6b7169203331-01"
_SAME = {"x-model-version", "x-trace-id", "x-device-utilization", "x-memory-fragmentation",
         "server-timing"}  # fmt: skip


def asked(values: list[float]) -> Any:
    return grpc_calls.message("add_one", "FP32", [1, 4], fp32_contents=values)


def test_trailers_of_an_answer_are_the_headers_of_one(tmp_path: Path) -> None:
    with live.serving(tmp_path, _MODELS, grpc_port=0) as server:
        x = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}
        given = {"traceparent": _PARENT}
        code, headers, _ = server.ask("POST", "/v2/models/add_one/infer", {"inputs": [x]}, given)
        assert code == 200
        with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            _, call = stub.ModelInfer.with_call(
                asked([1, 2, 3, 4]), metadata=(("traceparent", _PARENT),)
            )
            trailers = dict(call.trailing_metadata())
        assert trailers.keys() >= _SAME
        assert headers.keys() >= _SAME
        for name in ("x-model-version", "x-trace-id"):
            assert trailers[name] == headers[name]
        assert trailers["x-trace-id"] == _TRACE
        assert trailers["server-timing"].startswith("queue;dur=")


def test_trailers_of_a_refusal_tell_the_trace_and_how_long_it_took(tmp_path: Path) -> None:
    with live.serving(tmp_path, _MODELS, grpc_port=0) as server:
        with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            sleeping = grpc_calls.message("slow", "FP32", [1], fp32_contents=[0])
            sleeping.inputs[0].name = "seconds"
            sleeping.parameters["timeout"].int64_param = 50_000
            trace = (("traceparent", _PARENT),)
            with server.holding("slow"):
                late = grpc_calls.refused(stub.ModelInfer, sleeping, metadata=trace)
            wrong = grpc_calls.refused(stub.ModelInfer, asked([1]), metadata=trace)
        for error, least_ms in ((late, 50), (wrong, 0)):
            told = dict(error.trailing_metadata())
            assert told["x-trace-id"] == _TRACE
            name, _, time_ms = told["server-timing"].partition(";dur=")
            assert name == "total"
            assert least_ms <= float(time_ms) < least_ms + 10_000
            assert "x-model-version" not in told
