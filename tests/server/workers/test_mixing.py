"""Many clients on two workers whose versions turn: each gets what its own values make, and no other's.

Each sends heads and texts that came before, all in one piece, so that what is known of them is used.
"""

from __future__ import annotations

import json
import random
import socket
import threading
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest

from tests.server.workers import several

pytestmark = pytest.mark.xdist_group("workers")

_FACTORS = {"1": 2.0, "2": 3.0}
_ROWS = (1, 3, 2048)  # the last so large that its raw outputs may be sent as they lie
_END = b"\r\n\r\n"
_ACCEPTED = "castiron_requests_accepted_total"
_LENGTH = "Inference-Header-Content-Length"


def text(rows: int, data: dict[str, Any], **more: Any) -> bytes:
    item = {"name": "x", "datatype": "FP32", "shape": [rows, 4], **data}
    return json.dumps({"inputs": [item], **more}).encode()


def message(values: np.ndarray, *, is_raw: bool, wants_raw: bool, name: str) -> bytes:
    """A request with these values in one of its forms; ``name`` is its id if it has one."""
    more: dict[str, Any] = {"parameters": {"binary_data_output": wants_raw}}
    more |= {"id": name} if name else {}
    if is_raw:
        sent = values.tobytes()
        body = text(len(values), {"parameters": {"binary_data_size": len(sent)}}, **more)
        line = f"{_LENGTH}: {len(body)}\r\n"
        body += sent
    else:
        body = text(len(values), {"data": values.ravel().tolist()}, **more)
        line = ""
    head = f"POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\n{line}Content-Length: {len(body)}"
    return head.encode() + _END + body


def answer(read: BinaryIO) -> tuple[int, dict[str, Any], np.ndarray]:
    """The code of the next answer, its JSON, and the values of its output."""
    head = read.readline().decode()
    lines: dict[str, str] = {}
    while line := read.readline().decode().strip():
        name, _, value = line.lower().partition(": ")
        lines[name] = value
    body = read.read(int(lines["content-length"]))
    size = int(lines.get(_LENGTH.lower(), len(body)))
    told = json.loads(body[:size])
    code = int(head.split()[1])
    if code != 200:
        return code, told, np.zeros(0)
    data = told["outputs"][0].get("data")
    raw = np.frombuffer(body[size:], np.float32) if data is None else np.array(data, np.float32)
    return code, told, raw


class Client:
    """Asks in all forms, one after the other or some at once, until ``stop``; keeps what was wrong."""

    def __init__(self, port: int, number: int) -> None:
        self.wrong: list[str] = []
        self.seen: set[str] = set()
        self.is_over = False
        self._port = port
        self._random = random.Random(number)
        self._number = number
        self.thread = threading.Thread(target=self._ask)
        self.thread.start()

    def _ask(self) -> None:
        address = "127.0.0.1", self._port
        with (
            socket.create_connection(address, timeout=60) as connection,
            connection.makefile("rb") as read,
        ):
            while not self.is_over:
                several_at_once = [self._drawn() for _ in range(self._random.choice((1, 1, 1, 2)))]
                connection.sendall(b"".join(sent for sent, _, _ in several_at_once))
                for _, values, name in several_at_once:
                    self._check(answer(read), values, name)

    def _drawn(self) -> tuple[bytes, np.ndarray, str]:
        draw = self._random
        rows = draw.choice(_ROWS) if draw.random() < 0.5 else 1
        own = [round(draw.uniform(-99, 99), 3) for _ in range(rows * 4)]
        values = np.array(own, np.float32).reshape(rows, 4)
        name = f"{self._number}-{draw.random()}" if draw.random() < 0.1 else ""
        is_raw, wants_raw = draw.random() < 0.5, draw.random() < 0.5
        return message(values, is_raw=is_raw, wants_raw=wants_raw, name=name), values, name

    def _check(
        self, found: tuple[int, dict[str, Any], np.ndarray], values: np.ndarray, name: str
    ) -> None:
        code, told, outputs = found
        if code != 200:
            self.wrong.append(f"{code} {told}")
            return
        self.seen.add(told["model_version"])
        factor = np.float32(_FACTORS[told["model_version"]])
        if told.get("id", "") != name or not np.array_equal(outputs, values.ravel() * factor):
            self.wrong.append(f"{name} {values[:1]}: {told.get('id')} {outputs[:4]}")


def wait_for_more(server: several.Server, count: int) -> None:
    """Until so many more requests have come."""
    most = server.total(_ACCEPTED) + count
    server.wait(lambda: server.total(_ACCEPTED) > most)


def test_each_client_gets_what_its_own_values_make(tmp_path: Path) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    (folder / "models.toml").write_text('[default]\nserve = "latest"\nkeep = 2\n')
    first, second = (
        several.build(tmp_path / "built" / f"{number}.cast", factor)
        for number, factor in _FACTORS.items()
    )
    several.publish(first, folder, "m", 1)
    with several.serving(tmp_path, folder, "--inline-us", "5000") as server:
        several.publish(second, folder, "m", 2)
        assert server.admin("m", "load")[0] == 200
        clients = [Client(server.port, number) for number in range(6)]
        try:
            for _ in range(20):
                code, told = server.admin("m", "rollback")
                assert code == 200, told
                wait_for_more(server, 100)  # so that each version's kinds of them come again
        finally:
            for each in clients:
                each.is_over = True
            for each in clients:
                each.thread.join()
        assert [each.wrong for each in clients] == [[]] * len(clients)
        assert set().union(*(each.seen for each in clients)) == set(_FACTORS)
        assert server.total("castiron_inline_runs") > 0
        server.wait_in_flight(0)
        assert server.total(_ACCEPTED) == server.total("castiron_requests_total")
