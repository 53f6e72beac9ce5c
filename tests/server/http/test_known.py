"""Heads that came before: read once, and never for a request that only begins like them."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from castiron.server import meters, settings
from castiron.server.http import connection, exchange, known, port
from tests.server.http.wires import connected, echo, feed, opened, post, run, settle


async def tell(asked: exchange.Exchange) -> None:
    """All that the application sees of a request."""
    body = b""
    while not asked.is_complete:
        body += bytes(await asked.part())
    body += bytes(asked.take())
    seen = [asked.method, asked.raw_path.decode(), [[n.decode(), v.decode()] for n, v in
            asked.header_lines], body.decode("latin-1")]  # fmt: skip
    text = json.dumps(seen).encode()
    asked.answer(200, [(b"content-length", b"%d" % len(text))], text)


def heads_of(of: connection.Connection) -> known.Heads:
    return of._port.heads


def answers(written: bytes) -> bytes:
    """Without the date and without interim answers."""
    final = written.replace(b"HTTP/1.1 100 Continue\r\n\r\n", b"")
    return re.sub(rb"date: [^\r]*\r\n", b"", final)


_PATHS = st.sampled_from(["/a", "/b?x=1", "/a"])
_MORE = st.sampled_from(["", "X-One: 1\r\n", "Connection: keep-alive\r\n", "X-One:  1 \r\n",
                         "Expect: 100-continue\r\n"])  # fmt: skip


def request(path: str, more: str, body: bytes, *, is_chunked: bool) -> bytes:
    if is_chunked:
        length = "Transfer-Encoding: chunked"
        body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if body else b"0\r\n\r\n"
    else:
        length = f"Content-Length: {len(body)}"
    return f"POST {path} HTTP/1.1\r\nHost: a\r\n{more}{length}\r\n\r\n".encode() + body


@given(
    st.lists(st.tuples(_PATHS, _MORE, st.binary(max_size=3), st.booleans()), max_size=30),
    st.lists(st.integers(1, 400), min_size=1, max_size=6),
)
def test_what_is_known_changes_no_answer(
    asked: list[tuple[str, str, bytes, bool]], sizes: list[int]
) -> None:
    """Whole, in pieces, several at once: as by a server that has seen nothing before."""
    sent = [request(path, more, body, is_chunked=chunked) for path, more, body, chunked in asked]

    async def main() -> None:
        one, transport = opened(tell)
        for index, each in enumerate(sent):
            feed(one, each, sizes[index % len(sizes)])
            await asyncio.sleep(0)
        feed(one, b"".join(sent))
        await settle()
        wanted = b""
        for each in (*sent, *sent):
            fresh, told = opened(tell)
            feed(fresh, each)
            await asyncio.sleep(0)
            wanted += told.written
        assert answers(transport.written) == answers(wanted)
        assert not transport.ended

    run(main)


def test_the_same_head_is_read_once_for_all_connections_of_a_port() -> None:
    seen: list[known.Head] = []

    async def note(asked: exchange.Exchange) -> None:
        seen.append(asked.head)
        await echo(asked)

    async def main() -> None:
        shared = port.Port(note, settings.Settings(), meters.Meters(dict))
        for _ in range(3):
            one, transport = connected(shared)
            for _ in range(2):
                feed(one, post(b"abc"))
            assert transport.written.count(b"abc") == 2
        assert len({id(head) for head in seen}) == 1
        assert len(shared.heads) == 1

    run(main)


@pytest.mark.parametrize(
    "sent",
    [
        b"POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 1\r\n\r\nx",
        b"POST / HTTP/1.0\r\nContent-Length: 1\r\n\r\nx",
        b"POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\nx",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nX: " + b"y" * 3000 + b"\r\nContent-Length: 1\r\n\r\nx",
        b"POST / HTTP/1.1\r\nHost: a\r\nHost: b\r\nContent-Length: 1\r\n\r\nx",
        b"POST / HTTP/1.1\r\nContent-Length: 1\r\n\r\nx",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nx",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nx",
        b"CONNECT a:80 HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n",
    ],
)
def test_what_leaves_something_to_decide_is_read_each_time(sent: bytes) -> None:
    async def main() -> None:
        one, _ = opened(echo)
        feed(one, sent)
        await asyncio.sleep(0)
        assert len(heads_of(one)) == 0

    run(main)


def test_empty_lines_while_an_answer_is_written_are_no_head_of_its_request() -> None:
    """Its body came after the answer began, so the connection waits for the next head already."""

    async def stream(asked: exchange.Exchange) -> None:
        async def parts() -> AsyncGenerator[bytes, None]:
            yield b"x"
            await release.wait()

        await asked.stream(200, [], parts())

    async def main() -> None:
        one, transport = opened(stream)
        feed(one, post(b"ab")[:-1])
        await settle()
        feed(one, b"b")
        feed(one, b"\r\n" * 3)  # as if the first two were a head, and the last its body
        release.set()
        await settle()
        assert transport.written.endswith(b"0\r\n\r\n")
        assert len(heads_of(one)) == 0

    release = asyncio.Event()
    run(main)


def test_the_body_of_a_refused_request_is_not_kept_until_the_next_one() -> None:
    seen: list[exchange.Exchange] = []

    async def refuse(asked: exchange.Exchange) -> None:
        seen.append(asked)
        asked.answer(404, [(b"content-length", b"0")], b"")

    async def main() -> None:
        one, transport = opened(refuse)
        for _ in range(3):
            feed(one, post(b"abc"))
        assert transport.written.count(b"HTTP/1.1 404") == 3
        assert len({id(each.head) for each in seen}) == 1
        assert [each.take() for each in seen] == [b""] * 3

    run(main)


def test_two_at_once_and_a_part_of_one_are_no_request_of_a_known_head() -> None:
    async def main() -> None:
        one, transport = opened(echo)
        feed(one, post(b"ab"))
        feed(one, post(b"cd") + post(b"ef"))
        await settle()
        feed(one, post(b"gh")[:-1])
        assert transport.written.count(b"HTTP/1.1 200") == 3
        feed(one, b"h" + post(b"ij"))
        await settle()
        assert [transport.written.count(each) for each in (b"gh", b"ij")] == [1, 1]

    run(main)


def test_only_so_many_are_kept_whatever_clients_send() -> None:
    async def main() -> None:
        one, _ = opened(echo)
        for number in range(1000):
            feed(one, post(b"x", f"/{number}"))
            assert len(heads_of(one)) <= 128
        feed(one, post(b"x", "/999"))

    run(main)


def test_what_the_application_reads_from_a_head_is_kept_with_it() -> None:
    """And only with it: a head that is read anew begins without."""
    found: list[Any] = []

    async def count(asked: exchange.Exchange) -> None:
        found.append(asked.head.reading)
        asked.head.reading = len(found)
        await echo(asked)

    async def main() -> None:
        one, _ = opened(count)
        for path in ("/a", "/a", "/b", "/a", "/b"):
            feed(one, post(b"x", path))

    run(main)
    assert found == [None, 1, None, 2, 3]
