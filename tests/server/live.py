"""A server process for tests: started, asked, stopped; and raw HTTP where no client goes."""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from prometheus_client import parser

from tests import numpy_instance

_START_S = 30.0
_PATIENCE_S = 20.0
Answer = tuple[int, dict[str, str], bytes]


class Server:
    """A running server; ``port`` is where."""

    def __init__(self, folder: Path, models: dict[str, str], settings: dict[str, Any]) -> None:
        self._models = folder / "models"
        for name, text in models.items():
            path = self._models / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        self._models.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "tests.server.numpy_server", self._models,
                   folder / "cache", json.dumps(settings)]  # fmt: skip
        with (folder / "log").open("wb") as log:
            self.process = subprocess.Popen(
                [*map(str, command)], stdout=subprocess.PIPE, stderr=log
            )
        self._log = folder / "log"
        assert self.process.stdout is not None
        line = self.process.stdout.readline().decode()
        assert line.startswith("serving on http://127.0.0.1:"), (line, self.log())
        self.port = int(line.rsplit(":", 1)[1])
        self.grpc_port = 0
        if "grpc_port" in settings:
            line = self.process.stdout.readline().decode()
            assert line.startswith("serving on grpc://127.0.0.1:"), (line, self.log())
            self.grpc_port = int(line.rsplit(":", 1)[1])

    def log(self) -> str:
        """What it wrote to its error stream."""
        return self._log.read_text()

    def wait_settled(self) -> None:
        """Until nothing is building or loading."""
        end = time.monotonic() + _START_S
        while time.monotonic() < end:
            _, _, body = self.ask("POST", "/v2/repository/index")
            if all(entry["state"] != "LOADING" for entry in json.loads(body)):
                return
            time.sleep(0.02)
        raise AssertionError(self.log())

    def ask(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> Answer:
        """One request on a connection of its own; an object as body goes as JSON."""
        if isinstance(body, dict | list):
            body = json.dumps(body).encode()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        with contextlib.closing(connection):
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            names = {name.lower(): value for name, value in response.getheaders()}
            return response.status, names, response.read()

    def get(self, path: str) -> Any:
        """The JSON answer to a GET that must succeed."""
        code, _, body = self.ask("GET", path)
        assert code == 200, body
        return json.loads(body)

    def connect(self) -> socket.socket:
        """A bare connection."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=20)

    def send(self, data: bytes) -> bytes:
        """Send raw bytes on a connection of their own; all that came until it was closed."""
        with self.connect() as connection:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connection.sendall(data)
            return until_closed(connection)

    def metrics(self) -> dict[str, float]:
        """Every sample by its name and labels, as ``name{label=value,...}``."""
        _, _, body = self.ask("GET", "/metrics")
        return {
            f"{sample.name}{{{','.join(f'{k}={v}' for k, v in sorted(sample.labels.items()))}}}":
            sample.value
            for family in parser.text_string_to_metric_families(body.decode())
            for sample in family.samples
        }  # fmt: skip

    def outcomes(self) -> dict[str, float]:
        """Ended requests by outcome, over all models, without those at zero."""
        found: dict[str, float] = {}
        for name, value in self.metrics().items():
            if name.startswith("castiron_requests_total{") and value:
                outcome = name.split("outcome=")[1].split(",")[0].rstrip("}")
                found[outcome] = found.get(outcome, 0) + value
        return found

    def wait_in_flight(self, count: int) -> None:
        """Until so many requests are."""
        until(lambda: self.metrics()["castiron_requests_in_flight{}"] == count)

    def wait_closed(self) -> None:
        """Until nobody can connect."""
        until(self._is_closed)

    def _is_closed(self) -> bool:
        try:
            self.connect().close()
        except ConnectionRefusedError:
            return True
        return False

    @contextlib.contextmanager
    def holding(self, model: str, value: float | None = None) -> Iterator[None]:
        """No run of the model's version 1 ends in this block, or none whose input is the value."""
        mark = self._models / model / "1" / numpy_instance.HELD
        mark.write_text("" if value is None else str(value))
        try:
            yield
        finally:
            mark.unlink()

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Signal it and return its exit status."""
        self.process.send_signal(number)
        return self.process.wait(20)


@contextlib.contextmanager
def serving(folder: Path, models: dict[str, str], **settings: Any) -> Iterator[Server]:
    """A server over ``models``: path below the folder to the text of the file."""
    server = Server(folder, models, settings)
    try:
        server.wait_settled()
        yield server
    finally:
        if server.process.poll() is None:
            server.stop()
        assert server.process.stdout is not None
        server.process.stdout.close()


def until(is_so: Callable[[], Any], within_s: float = _PATIENCE_S) -> None:
    """Wait for what must come, however long the machine takes."""
    end = time.monotonic() + within_s
    while not is_so():
        assert time.monotonic() < end, "it did not come true"
        time.sleep(0.02)


def until_closed(connection: socket.socket) -> bytes:
    """Everything the other side sends until it closes."""
    parts = []
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(65536):
            parts.append(part)
    return b"".join(parts)


def in_background(target: Any, *arguments: Any) -> tuple[threading.Thread, list[Any]]:
    """Call it in a thread; the list holds what it returned."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(target(*arguments)))
    thread.start()
    return thread, results
