"""The gRPC side of a server's life: health, loading, draining, limits that both protocols share."""

from __future__ import annotations

import queue
import signal
import threading
import time
from pathlib import Path
from typing import Any

import grpc
import pytest
import tritonclient.grpc as triton
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tritonclient.utils import InferenceServerException

from tests.server import live
from tests.server.grpc_calls import ONE, refused, sleeping, telling

Code: Any = grpc.StatusCode


def test_models_are_unloaded_and_loaded(tmp_path: Path) -> None:
    models = {"m/1/model.cast": "add_one"}
    with live.serving(tmp_path, models, grpc_port=0) as server:  # noqa: SIM117  as above
        with triton.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
            client.unload_model("m")
            assert not client.is_model_ready("m")
            with pytest.raises(InferenceServerException) as refusal:
                client.infer("m", [ONE])
            assert refusal.value.status() == "StatusCode.UNAVAILABLE"
            client.load_model("m")
            assert client.infer("m", [ONE]).as_numpy("y").tolist() == [[2, 3, 4, 5]]
            with pytest.raises(InferenceServerException, match=r"parameters\.config"):
                client.load_model("m", config="{}")
            with pytest.raises(InferenceServerException, match="not in the folder"):
                client.load_model("none")


def test_the_standard_health_service_says_what_is_ready(tmp_path: Path) -> None:
    models = {"m/1/model.cast": "add_one"}
    with live.serving(tmp_path, models, grpc_port=0, drain_delay_s=3) as server:
        with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
            stub = health_pb2_grpc.HealthStub(channel)

            def check(name: str) -> int:
                state: int = stub.Check(health_pb2.HealthCheckRequest(service=name)).status
                return state

            serving = health_pb2.HealthCheckResponse.SERVING
            for name in ("", "inference.GRPCInferenceService", "m", "m/1"):
                assert check(name) == serving
            assert check("m/2") == health_pb2.HealthCheckResponse.NOT_SERVING
            unknown = health_pb2.HealthCheckRequest(service="none")
            assert refused(stub.Check, unknown).code() == Code.NOT_FOUND
            watched = stub.Watch(health_pb2.HealthCheckRequest(service=""))
            assert next(watched).status == serving
            server.process.send_signal(signal.SIGTERM)
            assert next(watched).status == health_pb2.HealthCheckResponse.NOT_SERVING
            watched.cancel()
        assert server.process.wait(10) == 0


def test_a_signal_lets_calls_in_flight_be_answered(tmp_path: Path) -> None:
    with live.serving(tmp_path, {"slow/1/model.cast": "slow"}, grpc_port=0) as server:
        with triton.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
            told: queue.Queue[Any] = queue.Queue()
            with server.holding("slow"):
                for _ in range(4):
                    client.async_infer("slow", sleeping(0), telling(told))
                server.wait_in_flight(4)
                server.process.send_signal(signal.SIGTERM)
                server.wait_closed()
            assert [told.get(timeout=10) for _ in range(4)] == [None] * 4
        assert server.process.wait(10) == 0
        assert "Traceback" not in server.log()


def test_a_second_signal_ends_calls_in_flight_at_once(tmp_path: Path) -> None:
    with live.serving(tmp_path, {"slow/1/model.cast": "slow"}, grpc_port=0) as server:
        with triton.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
            told: queue.Queue[Any] = queue.Queue()
            with server.holding("slow"):
                client.async_infer("slow", sleeping(0), telling(told))
                server.wait_in_flight(1)
                server.process.send_signal(signal.SIGTERM)
                server.wait_closed()
                time.sleep(0.3)  # HTTP has drained by now
                server.process.send_signal(signal.SIGTERM)
                assert told.get(timeout=10).status() in {
                    "StatusCode.UNAVAILABLE",
                    "StatusCode.CANCELLED",
                }
        assert server.process.wait(10) == 1


def test_what_takes_too_long_to_drain_is_told_so(tmp_path: Path) -> None:
    settings = {"grpc_port": 0, "drain_timeout_s": 0.3}
    with live.serving(tmp_path, {"slow/1/model.cast": "slow"}, **settings) as server:
        with triton.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
            told: queue.Queue[Any] = queue.Queue()
            with server.holding("slow"):
                client.async_infer("slow", sleeping(0), telling(told))
                server.wait_in_flight(1)
                server.process.send_signal(signal.SIGTERM)
                assert told.get(timeout=10).status() in {
                    "StatusCode.UNAVAILABLE",
                    "StatusCode.CANCELLED",
                }
        assert server.process.wait(10) == 0


def test_both_protocols_share_limits_and_one_sum_of_outcomes(tmp_path: Path) -> None:
    models = {"slow/1/model.cast": "slow"}
    with live.serving(tmp_path, models, grpc_port=0, max_in_flight=2) as server:
        x = {"name": "seconds", "datatype": "FP32", "shape": [1], "data": [0]}
        path = "/v2/models/slow/infer"
        with triton.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
            with server.holding("slow"):
                thread, answers = live.in_background(server.ask, "POST", path, {"inputs": [x]})
                other = threading.Thread(target=client.infer, args=("slow", sleeping(0)))
                other.start()
                server.wait_in_flight(2)
                with pytest.raises(InferenceServerException, match="2 requests are in") as full:
                    client.infer("slow", sleeping(0))
                assert full.value.status() == "StatusCode.RESOURCE_EXHAUSTED"
                assert server.ask("POST", path, {"inputs": [x]})[0] == 503
            other.join()
            thread.join()
        assert answers[0][0] == 200
        assert server.outcomes() == {"ok": 2, "overloaded": 2}
        assert server.metrics()["castiron_requests_accepted_total{}"] == 4
