"""A supervisor told to end while two workers compute, over REST and gRPC: nobody loses an answer."""

from __future__ import annotations

import json
import signal
import threading
import time
from pathlib import Path

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2_grpc

import castiron
from tests.loader import models
from tests.server import grpc_calls
from tests.server.workers import several

pytestmark = pytest.mark.xdist_group("workers")

_NUM_CALLS = 50
_DRAIN_S = 30.0
_WIDTH, _LAYERS = 1024, 100
_ROWS = 8  # half of the calls keep two workers busy for seconds, however late we look


def _build_slow(path: Path) -> Path:
    """An executable that adds one to rows of ``x``, for which it needs some 20 ms a row."""
    mixing = np.full((_WIDTH, _WIDTH), 1 / _WIDTH, np.float32)
    nodes = [models.node("MatMul", ["x", "wide"], ["h0"])]
    for layer in range(_LAYERS):
        nodes.append(models.node("MatMul", [f"h{layer}", "mixing"], [f"p{layer}"]))
        nodes.append(models.node("Tanh", [f"p{layer}"], [f"h{layer + 1}"]))
    nodes += [
        models.node("MatMul", [f"h{_LAYERS}", "narrow"], ["nothing"]),
        models.node("Add", ["nothing", "one"], ["nearly_one"]),
        models.node("Add", ["x", "nearly_one"], ["y"]),
    ]
    constants = {
        "wide": np.zeros((4, _WIDTH), np.float32), "mixing": mixing,
        "narrow": np.zeros((_WIDTH, 4), np.float32), "one": np.ones((1, 4), np.float32),
    }  # fmt: skip
    made = models.model(nodes, [models.value("x", ["n", 4])], ["y"], constants)
    castiron.build(made.SerializeToString(), path)
    return path


def _by_rest(server: several.Server, value: float) -> list[float]:
    shape = [_ROWS, 4]
    tensor = {"name": "x", "datatype": "FP32", "shape": shape, "data": [value] * 4 * _ROWS}
    body = json.dumps({"inputs": [tensor]}).encode()
    code, told = server.ask("POST", "/v2/models/slow/infer", body)
    assert code == 200, told
    found: list[float] = told["outputs"][0]["data"]
    return found


def _by_grpc(server: several.Server, value: float) -> list[float]:
    options = [("grpc.use_local_subchannel_pool", 1)]  # a connection of its own
    with grpc.insecure_channel(server.grpc, options) as channel:
        infer = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer
        values = [value] * 4 * _ROWS
        message = grpc_calls.message("slow", "FP32", [_ROWS, 4], fp32_contents=values)
        answer = infer(message, timeout=_DRAIN_S)
    raw = answer.raw_output_contents
    found = np.frombuffer(raw[0], np.float32) if raw else answer.outputs[0].contents.fp32_contents
    return [float(each) for each in found]


def test_fifty_calls_in_flight_over_rest_and_grpc_are_answered_and_nothing_is_left(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    several.publish(_build_slow(tmp_path / "slow.cast"), folder, "slow", 1)
    answers: dict[int, list[float]] = {}
    words = ("--grpc-port", "0", "--batch-rows", "1", "--drain-timeout-s", str(_DRAIN_S),
             "--drain-delay-s", "3")  # fmt: skip
    with several.serving(tmp_path, folder, *words) as server:
        workers = server.workers()

        def ask(index: int) -> None:
            by = _by_grpc if index % 2 else _by_rest
            answers[index] = by(server, float(index))

        threads = [threading.Thread(target=ask, args=(each,)) for each in range(_NUM_CALLS)]
        for thread in threads:
            thread.start()
        server.wait(lambda: server.total("castiron_requests_accepted_total") == _NUM_CALLS)
        told = time.monotonic()
        num_before = len(answers)
        server.process.send_signal(signal.SIGTERM)
        # Readiness is down before connections are refused.
        readiness: list[int] = []
        while not readiness or readiness[-1] == 200:
            readiness.append(server.ask("GET", "/v2/health/ready")[0])
            assert time.monotonic() < told + 2.9
        assert readiness[-1] == 503
        assert server.process.wait(2 * _DRAIN_S) == 0, server.log()
        took = time.monotonic() - told
        for thread in threads:
            thread.join()
        assert answers == {each: [each + 1.0] * 4 * _ROWS for each in range(_NUM_CALLS)}
        assert not [pid for pid in workers if Path(f"/proc/{pid}/cmdline").exists()]
        with pytest.raises(OSError, match="refused"):
            server.ask("GET", "/v2/health/ready")
    several.tell(
        f"{_NUM_CALLS - num_before} of {_NUM_CALLS} in flight, all ended {took:.2f} s later"
    )
    assert num_before < _NUM_CALLS - 25
