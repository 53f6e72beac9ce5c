"""Clients that end their own side after they have asked: answered if they still read, else left."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import pytest

from tests.server import live

MODELS = {"slow/1/model.cast": "slow"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[live.Server]:
    folder = tmp_path_factory.mktemp("half")
    with live.serving(folder, MODELS) as running:
        yield running
        assert running.stop() == 0
        assert "Traceback" not in running.log()


def infer(delay_s: float, version: str = "1.1") -> bytes:
    """A request that takes so long."""
    head = {"name": "seconds", "datatype": "FP32", "shape": [1], "data": [delay_s]}
    body = json.dumps({"inputs": [head]}).encode()
    line = f"POST /v2/models/slow/infer HTTP/{version}\r\nHost: a\r\n"
    return line.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body


def half_closed(server: live.Server, sent: bytes) -> bytes:
    with server.connect() as client:
        client.sendall(sent)
        client.shutdown(socket.SHUT_WR)
        return live.until_closed(client)


GET = b"GET /v2 HTTP/1.1\r\nHost: a\r\n\r\n"


def test_what_was_asked_is_answered_in_order_and_then_the_connection_ends(
    server: live.Server,
) -> None:
    assert half_closed(server, GET).startswith(b"HTTP/1.1 200 ")
    answers = half_closed(server, GET + infer(0.01) + GET)
    assert answers.count(b"HTTP/1.1 200 ") == 3
    assert answers.count(b"connection: close") == 1


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_an_answer_that_takes_long_still_comes(server: live.Server, version: str) -> None:
    with server.connect() as client:
        with server.holding("slow"):
            client.sendall(infer(0.5, version))
            client.shutdown(socket.SHUT_WR)
            server.wait_in_flight(1)
            # Old clients know no interim answers, and nothing tells that none is to come.
            begun = b"" if version == "1.0" else client.recv(65536)
        answer = begun + live.until_closed(client)
    interim, _, last = answer.rpartition(b"HTTP/1.1 200 OK\r\n")
    assert last
    assert interim.replace(b"HTTP/1.1 100 Continue\r\n\r\n", b"") == b""
    assert bool(interim) == (version == "1.1")


def test_a_request_of_which_the_end_is_missing_is_given_up(server: live.Server) -> None:
    assert half_closed(server, infer(0.01)[:-3]) == b""


def test_a_client_that_has_gone_while_it_waited_is_found_out(server: live.Server) -> None:
    before = server.outcomes().get("cancelled", 0)
    with server.holding("slow"):
        with server.connect() as client:
            client.sendall(infer(0))
            server.wait_in_flight(1)
        live.until(lambda: server.outcomes().get("cancelled", 0) > before)
    assert server.outcomes()["cancelled"] == before + 1
