"""Compiled models behind ``castiron serve``: merged, run inline, asked by both protocols at once."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
from onnx import TensorProto, helper, numpy_helper

import castiron
from tests.server import live

pytestmark = pytest.mark.xdist_group("merging")

WIDTH = 512
WEIGHTS = np.random.default_rng(7).standard_normal((WIDTH, WIDTH)).astype(np.float32) / 16


def save(path: Path, nodes: list[Any], dims: list[Any], constants: dict[str, np.ndarray]) -> None:
    """A compiled model from x to y of the same dims."""
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name in "xy"]
    held = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], held)
    opsets = [helper.make_opsetid("", 20)]
    path.parent.mkdir(parents=True)
    castiron.build(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)


def layers(count: int) -> list[Any]:
    nodes, value = [], "x"
    for number in range(count):
        last = "y" if number == count - 1 else f"h{number}"
        nodes += [
            helper.make_node("MatMul", [value, "w"], [f"p{number}"]),
            helper.make_node("Tanh", [f"p{number}"], [last]),
        ]
        value = last
    return nodes


def expected(x: np.ndarray, count: int) -> np.ndarray:
    for _ in range(count):
        x = np.tanh(x @ WEIGHTS)
    return x


@contextlib.contextmanager
def served(folder: Path, *words: str) -> Iterator[tuple[live.Server, Any]]:
    """The server and a client for gRPC."""
    command = [sys.executable, "-m", "castiron", "serve", str(folder / "models"), "--port", "0",
               "--grpc-port", "0", "--threads", "1", *words]  # fmt: skip
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log)
    assert process.stdout is not None
    lines = [process.stdout.readline().decode().strip() for _ in range(2)]
    addresses = dict(line.removeprefix("serving on ").split("://") for line in lines)
    grpc_client = triton_grpc.InferenceServerClient(addresses["grpc"])
    server = live.Server.__new__(live.Server)
    server.process, server.port = process, int(addresses["http"].rsplit(":", 1)[1])
    try:
        end = time.monotonic() + 60
        while not grpc_client.is_server_ready():
            assert time.monotonic() < end, (folder / "log").read_text()
            time.sleep(0.05)
        yield server, grpc_client
    finally:
        grpc_client.close()
        process.kill()
        process.wait(20)
        process.stdout.close()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("merging")
    save(folder / "models/deep/1/model.cast", layers(24), ["rows", WIDTH], {"w": WEIGHTS})
    add = [helper.make_node("Add", ["x", "one"], ["y"])]
    save(folder / "models/tiny/1/model.cast", add, [1, 4], {"one": np.ones(1, np.float32)})
    axis = {"axis": np.zeros(1, np.int64)}
    centre = [
        helper.make_node("ReduceMean", ["x", "axis"], ["m"]),
        helper.make_node("Sub", ["x", "m"], ["y"]),
    ]
    save(folder / "models/centre/1/model.cast", centre, ["rows", 4], axis)
    with served(folder) as found:
        yield found


def given(x: np.ndarray) -> list[Any]:
    made = triton_grpc.InferInput("x", list(x.shape), "FP32")
    made.set_data_from_numpy(x)
    return [made]


def infer(
    server: live.Server, model: str, x: np.ndarray, **parameters: Any
) -> tuple[int, np.ndarray]:
    """Over HTTP, with raw tensors; the array is empty when it was refused."""
    item = {"name": "x", "datatype": "FP32", "shape": x.shape,
            "parameters": {"binary_data_size": x.nbytes}}  # fmt: skip
    asked = {"inputs": [item], "parameters": {"binary_data_output": True, **parameters}}
    head = json.dumps(asked).encode()
    length = {"Inference-Header-Content-Length": str(len(head))}
    path = f"/v2/models/{model}/infer"
    code, headers, content = server.ask("POST", path, head + x.tobytes(), length)
    if code != 200:
        return code, np.zeros(0)
    split = int(headers["inference-header-content-length"])
    shape = json.loads(content[:split])["outputs"][0]["shape"]
    return code, np.frombuffer(content[split:], np.float32).reshape(shape)


def test_merged_requests_of_both_protocols_get_their_own_rows(running: Any) -> None:
    server, grpc_client = running
    random = np.random.default_rng(1)
    xs = [random.standard_normal((1 + n % 3, WIDTH)).astype(np.float32) for n in range(48)]
    wanted = [expected(x, 24) for x in xs]

    def ask(number: int) -> np.ndarray:
        x = xs[number]
        if number % 2:
            found: np.ndarray = grpc_client.infer("deep", given(x)).as_numpy("y")
            return found
        return infer(server, "deep", x)[1]

    largest = num_rounds = 0
    with futures.ThreadPoolExecutor(16) as pool:
        while largest <= 3 and num_rounds < 20:  # who meets whom is the machine's choice
            num_rounds += 1
            for right, found in zip(wanted, pool.map(ask, range(48)), strict=True):
                np.testing.assert_allclose(found, right, rtol=1e-3, atol=1e-4)
            (entry,) = server.get("/v2/models/deep/stats")["model_stats"]
            largest = max(each["batch_size"] for each in entry["batch_stats"])
    assert entry["inference_count"] == 48 * num_rounds
    assert largest > 3


def test_rows_that_depend_on_each_other_are_not_merged(running: Any) -> None:
    server, _ = running
    slope = np.array([[1], [3]], np.float32)
    xs = [np.full((2, 4), number, np.float32) * slope for number in range(24)]
    with futures.ThreadPoolExecutor(12) as pool:
        asked = pool.map(lambda x: infer(server, "centre", x)[1], xs)
        for x, answer in zip(xs, asked, strict=True):
            np.testing.assert_allclose(answer, x - x.mean(axis=0), atol=1e-5)


def test_short_runs_are_made_by_the_loop_once_they_are_known(running: Any) -> None:
    server, _ = running
    x = np.array([[1, 2, 3, 4]], np.float32)
    asked = inline = 0
    while not inline and asked < 4000:  # short is what the machine lets be short
        for _ in range(200):
            assert infer(server, "tiny", x)[1].tolist() == [[2, 3, 4, 5]]
        asked += 200
        found = server.metrics()
        inline = found["castiron_inline_runs{model=tiny,version=1}"]
    assert inline > 0
    assert found["castiron_requests_total{model=tiny,outcome=ok,version=1}"] == asked
    assert found["castiron_runs_total{model=tiny,version=1}"] == asked


def test_it_refuses_wrong_shapes_inline_as_well(running: Any) -> None:
    server, _ = running
    assert {infer(server, "tiny", np.zeros((2, 4), np.float32))[0] for _ in range(20)} == {400}


def test_every_call_over_its_deadline_is_told_in_time_and_sums_agree(running: Any) -> None:
    """About three times what the server bears, with random deadlines."""
    server, _ = running
    x = np.random.default_rng(2).standard_normal((32, WIDTH)).astype(np.float32)
    random = np.random.default_rng(3)
    limits_us = random.integers(2_000, 60_000, 600).tolist()
    late: list[float] = []

    def ask(limit_us: int) -> int:
        begun = time.perf_counter()
        code, _ = infer(server, "deep", x, timeout=limit_us)
        late.append(time.perf_counter() - begun - limit_us / 1e6)
        return code

    with futures.ThreadPoolExecutor(32) as pool:
        codes = list(pool.map(ask, limits_us))
    assert set(codes) <= {200, 503, 504}
    # Of the client's clock: threads of this test and other programs share the processors.
    assert np.quantile(late, 0.9) < 0.1
    server.wait_in_flight(0)
    found = server.metrics()
    ended = sum(v for k, v in found.items() if k.startswith("castiron_requests_total{"))
    assert found["castiron_requests_accepted_total{}"] == ended


def test_a_native_model_is_unloaded_and_loaded_under_load(running: Any) -> None:
    server, _ = running
    x = np.ones((1, WIDTH), np.float32)
    with futures.ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(infer, server, "deep", x) for _ in range(40)]
        for change in ("unload", "load"):
            assert server.ask("POST", f"/v2/repository/models/deep/{change}")[0] == 200
        assert {call.result()[0] for call in asked} <= {200, 503}
    np.testing.assert_allclose(infer(server, "deep", x)[1], expected(x, 24), rtol=1e-3, atol=1e-4)


def test_the_lane_leaves_the_first_cpu_to_the_loop_when_it_is_told_to(tmp_path: Path) -> None:
    add = [helper.make_node("Add", ["x", "one"], ["y"])]
    save(tmp_path / "models/tiny/1/model.cast", add, [1, 4], {"one": np.ones(1, np.float32)})
    with served(tmp_path, "--place-lane") as (server, _):
        (lane,) = [
            thread
            for thread in Path(f"/proc/{server.process.pid}/task").iterdir()
            if (thread / "comm").read_text().strip() == "castiron-lane"
        ]
        # What computes gives way to what answers.
        assert os.getpriority(os.PRIO_PROCESS, int(lane.name)) == 5
        assert os.getpriority(os.PRIO_PROCESS, server.process.pid) == 0
        allowed = sorted(os.sched_getaffinity(0))
        assert os.sched_getaffinity(int(lane.name)) == set(allowed[1:] or allowed)
        assert infer(server, "tiny", np.ones((1, 4), np.float32))[0] == 200


def test_batches_that_take_long_to_put_together_become_smaller(tmp_path: Path) -> None:
    """Rows of a megabyte: sixteen are not merged in the half millisecond allowed."""
    width = 1 << 18
    add = [helper.make_node("Add", ["x", "one"], ["y"])]
    one = {"one": np.ones(1, np.float32)}
    save(tmp_path / "models/wide/1/model.cast", add, ["rows", width], one)
    limit = "castiron_lane_batch_limit_rows{model=wide,version=1}"
    with served(tmp_path, "--max-launch-ms", "0.5", "--batch-rows", "16") as (server, _):
        assert server.metrics()[limit] == 16
        with futures.ThreadPoolExecutor(16) as pool:
            x = np.ones((1, width), np.float32)
            for _ in range(20):  # until enough of them have met
                for code, y in pool.map(lambda _: infer(server, "wide", x), range(96)):
                    assert code == 200
                    assert y[0, -1] == 2
                if server.metrics()[limit] < 16:
                    break
        assert server.metrics()[limit] < 16


def test_it_ends_with_status_0(running: Any) -> None:
    server, _ = running
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(20) == 0
