"""An early refusal reaches a client that is still sending, and costs the server little."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server import live

MODELS = {"add_one/1/model.cast": "add_one"}
INFER = b"POST /v2/models/add_one/infer HTTP/1.1\r\nHost: a\r\n"
BATCH = INFER.replace(b"infer", b"batch")  # of which the rate takes no notice
PIECE = bytes(64 << 10)
LARGE = 20 << 20


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[live.Server]:
    folder = tmp_path_factory.mktemp("lingering")
    settings = {"max_body_bytes": 8 << 20, "rate_per_s": 0.001, "rate_burst": 1}
    with live.serving(folder, MODELS, **settings) as running:
        body = b'{"inputs": []}'  # the one infer call that the rate allows
        assert running.ask("POST", "/v2/models/add_one/infer", body)[0] == 400
        yield running
        assert running.stop() == 0
        assert "Traceback" not in running.log()


HEADS = {
    413: BATCH + b"Content-Length: %d\r\n\r\n" % (2 * LARGE),
    429: INFER + b"Content-Length: %d\r\nConnection: close\r\n\r\n" % (7 << 20),
    431: BATCH + b"X: %b\r\nContent-Length: %d\r\n\r\n" % (b"x" * 70_000, LARGE),
    400: BATCH + b"Content-Length: x\r\n\r\n",
}


def answer_after(server: live.Server, head: bytes, size: int, pause_s: float) -> bytes:
    """What a client reads that sends everything first."""
    with server.connect() as connection:
        connection.sendall(head)
        for _ in range(size // len(PIECE)):
            connection.sendall(PIECE)
            time.sleep(pause_s)
        connection.shutdown(socket.SHUT_WR)
        return live.until_closed(connection)


@pytest.mark.parametrize("code", HEADS)
@pytest.mark.parametrize("pause_s", [0.0, 0.012], ids=["fast", "slowly"])
def test_a_client_that_sends_20_mb_first_gets_its_refusal(
    server: live.Server, code: int, pause_s: float
) -> None:
    size = LARGE if code != 429 else 7 << 20
    answer = answer_after(server, HEADS[code], size, pause_s)
    assert answer.startswith(b"HTTP/1.1 %d " % code), answer[:100]
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"connection: close" in head
    assert b"content-length: %d" % len(body) in head
    assert body.startswith(b'{"error":')


def test_a_refusal_of_a_body_that_is_worth_reading_keeps_the_connection(
    server: live.Server,
) -> None:
    """The rest of it is read and forgotten, and the next request is answered."""
    size = 1 << 20
    with server.connect() as connection:
        connection.sendall(INFER + b"Content-Length: %d\r\n\r\n" % size)
        time.sleep(0.1)
        connection.sendall(
            bytes(size) + b"GET /v2 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
        )
        answers = live.until_closed(connection)
    assert answers.startswith(b"HTTP/1.1 429 ")
    assert b"HTTP/1.1 200 OK" in answers


def test_a_client_that_never_ends_is_not_read_for_ever(tmp_path: Path) -> None:
    with live.serving(tmp_path, MODELS, max_body_bytes=1 << 20) as server:
        with server.connect() as connection:
            connection.sendall(INFER + b"Content-Length: %d\r\n\r\n" % (1 << 40))
            sent = 0
            with contextlib.suppress(ConnectionError):
                while sent < 64 << 20:
                    connection.sendall(PIECE)
                    sent += len(PIECE)
        assert 4 << 20 <= sent < 64 << 20
        assert server.ask("GET", "/v2/health/ready")[0] == 200


def test_a_client_that_stays_and_says_nothing_is_left(server: live.Server) -> None:
    with server.connect() as connection:
        connection.sendall(HEADS[413])
        assert connection.recv(65536).startswith(b"HTTP/1.1 413 ")
        assert connection.recv(65536) == b"", "our side has ended"
        live.until(lambda: not is_open(connection))
        connection.sendall(b"x")
        live.until(lambda: is_refused(connection))


def is_open(connection: socket.socket) -> bool:
    """Whether the server's process still holds the other end of this connection."""
    own = connection.getsockname()[1]
    found = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    # The kernel may hold it on for a while, but then as nobody's file.
    return any(int(line[2].split(":")[1], 16) == own and line[9] != "0" for line in found)


def is_refused(connection: socket.socket) -> bool:
    try:
        connection.sendall(b"x")
    except ConnectionError:
        return True
    return False
