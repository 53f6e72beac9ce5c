"""A server of several workers over two models, what it says of itself, and one request of each kind."""

from __future__ import annotations

import contextlib
import http.client
import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from bench.behaviour import processes
from bench.chaos import limits
from castiron import api

_ROOT = Path(__file__).resolve().parent.parent.parent
_START_S = 60.0
BODY = json.dumps(
    {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}
).encode()
REQUEST = (
    b"POST /v2/models/quick/infer HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(BODY)
) + BODY


def large_request(num_rows: int) -> tuple[bytes, dict[str, str]]:
    """Body and headers of a binary request with so many rows of four values."""
    size = num_rows * 16
    item = {"name": "x", "datatype": "FP32", "shape": [num_rows, 4],
            "parameters": {"binary_data_size": size}}  # fmt: skip
    head = json.dumps({"inputs": [item], "parameters": {"binary_data_output": True}}).encode()
    return head + bytes(size), {"Inference-Header-Content-Length": str(len(head))}


def large_json(num_rows: int) -> tuple[bytes, dict[str, str]]:
    """Body and headers of a JSON request with so many rows of four values."""
    data = ",".join(["1.25"] * (num_rows * 4))
    item = f'{{"name":"x","datatype":"FP32","shape":[{num_rows},4],"data":[{data}]}}'
    return f'{{"inputs":[{item}]}}'.encode(), {}


class Server:
    """A supervisor that runs, or a lone process; ``group`` is the control group that it is in."""

    def __init__(self, folder: Path, num_workers: int, group: limits.Group | None) -> None:
        self.models = folder / "models"
        self.num_workers = num_workers
        command = [
            sys.executable, "-m", "castiron", "serve", str(self.models), "--workers",
            str(num_workers), "--port", "0", "--admin-port", "0",
            "--audit-log", str(folder / "audit"), "--cache-dir", str(folder / "cache"),
        ]  # fmt: skip
        if group is not None:
            command = group.command(command)
        self.log = folder / "log.txt"
        self.processes = processes.Group(command, self.log, {}, _ROOT)
        self.port, self.admin_port = self._told("serving on http"), self._told("admin on http")

    def _told(self, words: str) -> int:
        """The port in the line that begins so, once it is printed."""

        def lines() -> list[str]:
            return [line for line in self.log.read_text().splitlines() if line.startswith(words)]

        try:
            self.wait(lambda: bool(lines()))
        except TimeoutError:
            self.processes.stop()
            raise
        return int(lines()[0].rsplit(":", 1)[1])

    def workers(self) -> list[int]:
        """The processes that serve now."""
        leader = self.processes.first
        if self.num_workers == 1:
            return [leader]
        found = Path(f"/proc/{leader}/task/{leader}/children").read_text()
        return [int(word) for word in found.split()]

    def ask(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
        port: int = 0,
    ) -> tuple[int, bytes]:
        """One request on a connection of its own: status and answer. Raises OSError."""
        port = port or self.port
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        with contextlib.closing(connection):
            try:
                connection.request(method, path, body, headers or {})
                response = connection.getresponse()
                return response.status, response.read()
            except http.client.HTTPException as fault:
                raise ConnectionError(repr(fault)) from fault

    def num_ready(self) -> int:
        """Workers that are ready, as one of them says."""
        return ready_in(*self.ask("GET", "/v2/health/ready"))

    def wait(self, is_met: Callable[[], bool], timeout_s: float = _START_S) -> float:
        """Until it is so; how long that took."""
        begun = time.monotonic()
        while True:
            with contextlib.suppress(OSError, ValueError):
                if is_met():
                    return time.monotonic() - begun
            if time.monotonic() > begun + timeout_s:
                raise TimeoutError(f"not within {timeout_s:.0f} s:\n{self.processes.log()}")
            time.sleep(0.01)

    def wait_ready(self) -> float:
        """Until all workers are."""
        return self.wait(lambda: self.num_ready() == self.num_workers)

    def total(self, family: str, *labels: str) -> float:
        """The sum of a metric over everything that has these labels."""
        lines = self.ask("GET", "/metrics")[1].decode().splitlines()
        return sum(
            float(line.split()[-1]) for line in lines
            if line.startswith((f"{family}{{", f"{family} ")) and all(each in line for each in labels)
        )  # fmt: skip

    def accounts(self) -> tuple[int, int]:
        """Requests accepted, and outcomes of requests, once nothing is in flight."""
        for _ in range(300):
            accepted = int(self.total("castiron_requests_accepted_total"))
            ended = int(self.total("castiron_requests_total"))
            if accepted == ended:
                break
            time.sleep(0.1)
        return accepted, ended


def ready_in(status: int, told: bytes) -> int:
    """Workers that are ready, by the answer to the question for readiness."""
    found: dict[str, Any] = json.loads(told)
    return int(found["workers"]["ready"]) if "workers" in found else int(status == 200)


@contextlib.contextmanager
def serving(
    folder: Path, num_workers: int = 2, group: limits.Group | None = None
) -> Iterator[Server]:
    """A server whose workers are ready; ended at the end."""
    folder.mkdir(parents=True, exist_ok=True)
    publish(quick(folder), folder / "models", "quick", 1)
    server = Server(folder, num_workers, group)
    try:
        server.wait_ready()
        yield server
    finally:
        server.processes.stop()


def quick(folder: Path) -> Path:
    """An executable that doubles rows of four."""
    twice = np.full((1, 4), 2, np.float32)
    nodes = [helper.make_node("Mul", ["x", "k"], ["y"])]
    return _built(folder / "quick.cast", nodes, ["n", 4], twice)


def wide(folder: Path, megabytes: int) -> Path:
    """An executable with so many weights, all of which each run reads."""
    weights = np.ones((4, megabytes * 65_536), np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "k"], ["wide"]),
        helper.make_node("ReduceMax", ["wide"], ["y"], keepdims=1),
    ]
    return _built(folder / f"wide-{megabytes}.cast", nodes, ["n", 1], weights)


def _built(
    path: Path, nodes: list[onnx.NodeProto], dims: list[str | int], weights: np.ndarray
) -> Path:
    if not path.exists():
        graph = helper.make_graph(
            nodes, path.stem,
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, dims)],
            [numpy_helper.from_array(weights, "k")],
        )  # fmt: skip
        opsets = [helper.make_opsetid("", 17)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
        api.build(model.SerializeToString(), path)
    return path


def publish(source: Path, models: Path, name: str, number: int) -> Path:
    """Copy beside, then rename into place: nobody sees half of it."""
    made = models / f".making-{name}-{number}"
    made.mkdir(parents=True)
    shutil.copy(source, made / "model.cast")
    (models / name).mkdir(exist_ok=True)
    return made.rename(models / name / str(number)) / "model.cast"
