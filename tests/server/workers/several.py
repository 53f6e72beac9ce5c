"""Several workers for tests: real executables, a real ``castiron serve --workers N``, and a load."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import castiron
from tests.loader import models

BODY = json.dumps(
    {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}
).encode()


def build(path: Path, factor: float = 2, width: int = 4) -> Path:
    """An executable that multiplies rows of ``x`` by a number."""
    constants = {"k": np.full((1, width), factor, np.float32)}
    node = models.node("Mul", ["x", "k"], ["y"])
    made = models.model([node], [models.value("x", ["n", width])], ["y"], constants)
    path.parent.mkdir(parents=True, exist_ok=True)
    castiron.build(made.SerializeToString(), path)
    return path


def build_wide(path: Path, width: int) -> Path:
    """An executable with four times ``width`` weights, all of which each run reads."""
    table = np.ones((4, width), np.float32)
    nodes = [
        models.node("MatMul", ["x", "k"], ["wide"]),
        models.node("ReduceMax", ["wide"], ["y"], keepdims=1),
    ]
    made = models.model(nodes, [models.value("x", ["n", 4])], ["y"], {"k": table})
    path.parent.mkdir(parents=True, exist_ok=True)
    castiron.build(made.SerializeToString(), path)
    return path


def publish(source: Path, folder: Path, model: str, number: int) -> None:
    """Copy beside, then rename into place: nobody sees half of it."""
    made = folder / f".making-{model}-{number}"
    made.mkdir()
    shutil.copy(source, made / "model.cast")
    (folder / model).mkdir(exist_ok=True)
    made.rename(folder / model / str(number))


class Server:
    """A running supervisor."""

    def __init__(self, folder: Path, models_dir: Path, *words: str) -> None:
        command = [
            sys.executable, "-m", "castiron", "serve", str(models_dir), "--port", "0",
            "--admin-port", "0", "--audit-log", str(folder / "audit"), "--threads", "1",
            "--cache-dir", str(folder / "cache"), *words,
        ]  # fmt: skip
        self._log = folder / "log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log)
        assert self.process.stdout is not None
        lines: list[str] = []
        while not lines or not lines[-1].startswith("admin on"):
            lines.append(self.process.stdout.readline().decode().strip())
            assert lines[-1], self.log()
        self.port = int(lines[0].rsplit(":", 1)[1])
        self.admin_port = int(lines[-1].rsplit(":", 1)[1])
        self.grpc = lines[1].removeprefix("serving on grpc://")

    def log(self) -> str:
        """Its log and that of its workers."""
        return self._log.read_text()

    def events(self) -> list[dict[str, Any]]:
        """The lines of the log that are of ours."""
        found = []
        for line in self.log().splitlines():
            with contextlib.suppress(json.JSONDecodeError):
                found.append(json.loads(line))
        return found

    def workers(self) -> list[int]:
        """The processes that serve now."""
        found = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [int(word) for word in found.split()]

    def ask(
        self, method: str, path: str, body: bytes | None = None, port: int = 0
    ) -> tuple[int, dict[str, Any]]:
        """One request on a connection of its own, and the JSON of its answer."""
        code, content = self._ask(method, path, body, port or self.port)
        return code, json.loads(content)

    def text(self, path: str) -> tuple[int, str]:
        """A GET whose answer is text."""
        code, content = self._ask("GET", path, None, self.port)
        return code, content.decode()

    def _ask(self, method: str, path: str, body: bytes | None, port: int) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        with contextlib.closing(connection):
            connection.request(method, path, body)
            response = connection.getresponse()
            return response.status, response.read()

    def admin(self, model: str, action: str, **given: Any) -> tuple[int, dict[str, Any]]:
        """One admin call."""
        body = json.dumps(given).encode()
        return self.ask("POST", f"/v1/models/{model}/{action}", body, self.admin_port)

    def ready(self) -> dict[str, Any]:
        """What the server says about its readiness."""
        return self.ask("GET", "/v2/health/ready")[1]

    def wait(self, is_met: Callable[[], bool], timeout_s: float = 60) -> float:
        """Until it is so; how long that took."""
        begun = time.monotonic()
        while True:
            with contextlib.suppress(OSError, http.client.HTTPException):
                if is_met():
                    return time.monotonic() - begun
            assert time.monotonic() < begun + timeout_s, self.log()
            time.sleep(0.01)

    def wait_ready(self, num_workers: int) -> float:
        """Until so many workers are ready."""
        return self.wait(lambda: self.ready()["workers"]["ready"] == num_workers)

    def total(self, name: str) -> float:
        """The sum of a metric's samples over all workers."""
        _, text = self.text("/metrics")
        lines = [line for line in text.splitlines() if line.startswith(name)]
        return sum(float(line.split()[-1]) for line in lines)

    def wait_in_flight(self, count: int) -> None:
        """Until so many requests are."""
        self.wait(lambda: self.total("castiron_requests_in_flight") == count)

    def wait_closed(self) -> None:
        """Until nobody can connect."""
        self.wait(self._is_closed)

    def _is_closed(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=20).close()
        except ConnectionRefusedError:
            return True
        return False

    def wait_replaced(self, gone: int, num_workers: int = 2) -> None:
        """Until another worker is ready in the place of this one."""
        self.wait(lambda: gone not in self.workers() and len(self.workers()) == num_workers)
        self.wait_ready(num_workers)

    def stop(self) -> int:
        """SIGTERM, and the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


@contextlib.contextmanager
def serving(folder: Path, models_dir: Path, *words: str, num_workers: int = 2) -> Iterator[Server]:
    """A supervisor whose workers are ready; none of its processes is left afterwards."""
    server = Server(folder, models_dir, "--workers", str(num_workers), *words)
    workers: list[int] = []
    try:
        server.wait_ready(num_workers)
        yield server
    finally:
        with contextlib.suppress(OSError):
            workers = server.workers()
        if server.process.poll() is None:
            server.stop()
        assert server.process.stdout is not None
        server.process.stdout.close()
    assert not [pid for pid in workers if Path(f"/proc/{pid}/cmdline").exists()], server.log()


class Load:
    """Clients that ask one after the other, each on a connection that it keeps, until ``stop``."""

    def __init__(self, server: Server, model: str, num_clients: int, pause_s: float = 0.0) -> None:
        self.failures: list[tuple[float, str]] = []
        self.times: list[tuple[float, float]] = []  # when it was sent, how long it took
        self.answers: set[bytes] = set()
        self._is_over = False
        self._path = f"/v2/models/{model}/infer"
        self._server = server
        self._pause_s = pause_s
        self._threads = [threading.Thread(target=self._ask) for _ in range(num_clients)]
        for thread in self._threads:
            thread.start()

    def _ask(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._server.port, timeout=20)
        while not self._is_over:
            begun = time.monotonic()
            try:
                connection.request("POST", self._path, BODY)
                response = connection.getresponse()
                content = response.read()
                if response.status == 200:
                    self.times.append((begun, time.monotonic() - begun))
                    self.answers.add(content)
                else:
                    self.failures.append((begun, f"{response.status} {content!r}"))
            except (OSError, http.client.HTTPException) as fault:
                self.failures.append((begun, repr(fault)))
                connection.close()
            time.sleep(self._pause_s)
        connection.close()

    def stop(self) -> None:
        """No more requests."""
        self._is_over = True
        for thread in self._threads:
            thread.join()

    def p99_ms(self, begin: float, end: float) -> float:
        """Of the requests sent between."""
        took = [each for at, each in self.times if begin <= at < end]
        return float(np.percentile(took, 99)) * 1e3


def memory_kb(pid: int, word: str) -> int:
    """A sum of ``/proc/PID/smaps_rollup``."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    line = next(line for line in text.splitlines() if line.startswith(f"{word}:"))
    return int(line.split()[1])


def tell(text: str) -> None:
    """A measured number, for whoever runs the tests with -s."""
    sys.stdout.write(f"{text}\n")


def end(pid: int, number: int) -> None:
    """Send a signal."""
    os.kill(pid, number)
