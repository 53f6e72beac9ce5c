"""A short run of the fuzzer, and proof that it would see what it looks for."""

from __future__ import annotations

import contextlib
import json
import random
import socket
import socketserver
import threading
from collections.abc import Iterator
from typing import cast

import pytest

from tests.fuzz import calls, campaign, judge, mutations, report, served


def test_four_thousand_odd_requests_are_each_answered_as_they_should(
    server: served.Server,
) -> None:
    found = campaign.run(server, seed=2, numbers=range(2000))
    assert not found.complaints, found.text()
    for code in ("200", "400", "OK", "INVALID_ARGUMENT"):
        assert found.codes[code] > 300, found.text()
    assert len(found.families) == 18 + 6 + 5


def test_the_same_numbers_are_the_same_cases() -> None:
    assert mutations.case(1, 77) == mutations.case(1, 77)
    assert mutations.case(1, 77) != mutations.case(1, 78)


def response(code: int, body: bytes, *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {code} X", f"content-length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


JSON = "content-type: application/json"
ERROR = json.dumps({"error": "the limit"}).encode()


@pytest.mark.parametrize(
    "data, complaint",
    [
        (b"", "closed without"),
        (response(500, ERROR, JSON), "status 500"),
        (response(504, ERROR, JSON), "no timeout"),
        (response(503, ERROR, JSON), "without Retry-After"),
        (response(400, b"oops", JSON), "JSON that is none"),
        (response(400, b'{"error": 1}', JSON), "no error body"),
        (response(400, ERROR), "no error body"),
        (response(200, b"[NaN]", JSON), "JSON that is none"),
    ],
)
def test_the_judge_sees_each_fault(data: bytes, complaint: str) -> None:
    case = mutations.Case("made", [b"GET / HTTP/1.1\r\n\r\n"])
    found = list(judge.complaints(case, list(judge.answers(data, b""))))
    assert any(complaint in line for line in found), found


@pytest.mark.parametrize("data", [b"HTTP/1.1 200 OK\r\n", response(200, b"ab")[:-1], b"x\r\n\r\n"])
def test_the_judge_refuses_what_no_client_could_read(data: bytes) -> None:
    with pytest.raises(judge.UnreadableError):
        list(judge.answers(data, b""))


class Mute(socketserver.BaseRequestHandler):
    """Keeps a connection open and says nothing."""

    def handle(self) -> None:
        connection = cast("socket.socket", self.request)
        while connection.recv(65536):
            pass


@contextlib.contextmanager
def mute_server() -> Iterator[int]:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Mute) as listening:
        thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield listening.server_address[1]
        listening.shutdown()
        thread.join()


def test_a_server_that_never_answers_is_a_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served, "DEADLINE_S", 0.3)
    with mute_server() as port:
        found = report.Report()
        campaign.send(port, 1, range(4), found)
    assert any("stays open" in line for line in found.complaints), found.text()


def test_right_requests_of_every_kind_are_right(server: served.Server) -> None:
    dice = random.Random(5)
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        texts = [calls.infer(dice).encoded(close=False) for _ in range(20)]
        texts += [calls.infer_raw(dice)[0].encoded(close=False) for _ in range(20)]
        texts.append(calls.question(dice).encoded())
        sent = b"".join(texts)
        connection.sendall(sent)
        data = b"".join(iter(lambda: connection.recv(65536), b""))
    found = list(judge.answers(data, texts[-1]))
    assert [answer.code for answer in found] == [200] * 41
