"""The ways to ask a server, with one face: REST here in each dialect, gRPC in ``grpc_way.py``.

An Answer tells what came and when; a call whose client left has the code ``gone``.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from dataclasses import dataclass
from typing import Any, Protocol

from bench.behaviour import servers

# No call of ours takes longer on a healthy server; what does is reported as a hang.
PATIENCE_S = 30.0
GONE = "gone"
HANG = "hang"

Rows = list[list[float]] | list[list[int]]


@dataclass(frozen=True, slots=True)
class Answer:
    """``code`` as the protocol has it; ``rows`` when the call went well."""

    code: str
    took_s: float
    rows: Rows | None = None
    text: str = ""

    @property
    def is_ok(self) -> bool:
        """Whether rows came."""
        return self.rows is not None


class Way(Protocol):
    """How probes ask."""

    name: str

    def another(self) -> Way:
        """A client of its own, whose calls wait until it is connected."""

    def ask(self, model: str, rows: Rows, deadline_s: float | None = None) -> Answer:
        """One call; with a deadline, told to the server where the protocol can, else left then."""

    def abandon(self, model: str, rows: Rows) -> None:
        """Send a call and go away."""

    def sequence(self, model: str, rows: Rows) -> Callable[[], None]:
        """A function that makes one more call over one connection; raises unless it went well."""

    def is_refusal(self, answer: Answer) -> bool:
        """Whether the server said, in a form that its clients can read, that the call is wrong."""


def at_once(calls: Sequence[Callable[[], Answer]], apart_s: float = 0.0) -> list[Answer]:
    """All calls side by side, each begun a moment after the one before."""
    with futures.ThreadPoolExecutor(len(calls)) as pool:
        begun = []
        for call in calls:
            begun.append(pool.submit(call))
            time.sleep(apart_s)
        return [each.result() for each in begun]


class Rest:
    """HTTP with JSON bodies."""

    name = "REST"

    def __init__(self, server: servers.Server) -> None:
        self.server = server
        self.port = server.http_port
        self._is_oip = server.speaks == "oip"

    def another(self) -> Rest:
        """Each of its calls connects anew."""
        return Rest(self.server)

    def path(self, model: str) -> str:
        """Where a model is asked."""
        return f"/v2/models/{model}/infer" if self._is_oip else f"/{model}"

    def body(self, model: str, rows: Rows, deadline_s: float | None = None) -> bytes:
        """A right body in the server's dialect."""
        return json.dumps(self._content(model, rows, deadline_s)).encode()

    def wrapped(self, row: Any) -> bytes:
        """A body of a dialect around what stands for one row of the quick model."""
        return json.dumps({"x": row if self.server.speaks == "litserve" else [row]}).encode()

    def _content(self, model: str, rows: Rows, deadline_s: float | None) -> dict[str, Any]:
        if self.server.speaks == "litserve":
            assert len(rows) == 1, "its requests are single rows, which it merges"
            return {"x": rows[0]}
        if self.server.speaks == "bentoml":
            return {"x": rows}
        content: dict[str, Any] = {
            "inputs": [
                {
                    "name": "x",
                    "datatype": "INT64" if model.startswith("picky") else "FP32",
                    "shape": [len(rows), len(rows[0])],
                    "data": [value for row in rows for value in row],
                }
            ]
        }
        if deadline_s is not None:
            content["parameters"] = {"timeout": int(deadline_s * 1e6)}
        return content

    def ask(self, model: str, rows: Rows, deadline_s: float | None = None) -> Answer:
        """One call on a connection of its own; at its deadline a client closes it."""
        return self.post(self.path(model), self.body(model, rows, deadline_s), {}, deadline_s)

    def post(
        self, path: str, body: bytes, headers: dict[str, str], leave_s: float | None = None
    ) -> Answer:
        """Any bytes to any path."""
        begun_s = time.monotonic()
        # A little later than told: a server that holds deadlines answers in between.
        patience_s = PATIENCE_S if leave_s is None else leave_s + 0.05
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=patience_s)
        try:
            headers = {"Content-Type": "application/json", **headers}
            connection.request("POST", path, body, headers)
            response = connection.getresponse()
            content = response.read()
        except TimeoutError:
            return Answer(HANG if leave_s is None else GONE, time.monotonic() - begun_s)
        except (http.client.HTTPException, OSError) as fault:
            return Answer("closed", time.monotonic() - begun_s, text=repr(fault))
        finally:
            connection.close()
        took_s = time.monotonic() - begun_s
        rows = None
        if response.status == 200:
            with contextlib.suppress(ValueError, LookupError, TypeError):
                rows = self._rows(content)
        return Answer(str(response.status), took_s, rows, content.decode(errors="replace"))

    def _rows(self, content: bytes) -> Rows:
        found = json.loads(content)
        if self.server.speaks == "litserve":
            return [found["y"]]
        if self.server.speaks == "bentoml":
            rows: Rows = found
            return rows
        output = found["outputs"][0]
        width = output["shape"][-1]
        flat = output["data"]
        return [flat[first : first + width] for first in range(0, len(flat), width)]

    def abandon(self, model: str, rows: Rows) -> None:
        """Send and close."""
        body = self.body(model, rows)
        head = (
            f"POST {self.path(model)} HTTP/1.1\r\nHost: localhost\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        with socket.create_connection(("127.0.0.1", self.port)) as connection:
            connection.sendall(head.encode() + body)
            time.sleep(0.05)  # it has surely been read

    def sequence(self, model: str, rows: Rows) -> Callable[[], None]:
        """Calls over one kept connection."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        path, body = self.path(model), self.body(model, rows)

        def call() -> None:
            connection.request("POST", path, body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            content = response.read()
            if response.status != 200:
                raise RuntimeError(f"{path}: {response.status} {content[:200]!r}")

        return call

    def is_refusal(self, answer: Answer) -> bool:
        """A 4xx whose body says why under ``error``, or, in a dialect, ``detail``."""
        if not answer.code.startswith("4"):
            return False
        try:
            said = json.loads(answer.text)
        except ValueError:
            return False
        if self._is_oip:
            return isinstance(said, dict) and isinstance(said.get("error"), str)
        return isinstance(said, dict) and bool(said.keys() & {"error", "detail"})


def ways(server: servers.Server) -> Iterator[Way]:
    """Each protocol that the server speaks."""
    yield Rest(server)
    if server.grpc_port is not None:
        from bench.behaviour import grpc_way

        yield grpc_way.Grpc(server)
