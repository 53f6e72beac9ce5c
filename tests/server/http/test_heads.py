"""Heads and bodies that two programs could take in two ways: refused, whatever is asked."""

from __future__ import annotations

import asyncio
import re

import pytest

from castiron.server.http import exchange
from tests.server.http.wires import echo, feed, opened, run, settle

LINE = b"POST /p HTTP/1.1\r\n"
HOST = b"Host: a\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"
NEXT = b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"

REFUSED = {
    "both lengths": (LINE + HOST + CHUNKED + b"Content-Length: 3\r\n\r\n0\r\n\r\n", 400),
    "both the other way": (LINE + HOST + b"Content-Length: 3\r\n" + CHUNKED + b"\r\n0\r\n\r\n", 400),
    "one length twice": (LINE + HOST + b"Content-Length: 0\r\n" * 2 + b"\r\n", 400),
    "a list of lengths": (LINE + HOST + b"Content-Length: 3, 3\r\n\r\nabc", 400),
    "a length with a sign": (LINE + HOST + b"Content-Length: +3\r\n\r\nabc", 400),
    "two codings": (LINE + HOST + CHUNKED + CHUNKED + b"\r\n0\r\n\r\n", 400),
    "a coding inside": (LINE + HOST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 400),
    "no such coding": (LINE + HOST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", 400),
    "not chunked at last": (LINE + HOST + b"Transfer-Encoding: identity\r\n\r\n", 400),
    "chunks in 1.0": (b"POST /p HTTP/1.0\r\n" + CHUNKED + b"\r\n0\r\n\r\n", 400),
    "space before the colon": (LINE + HOST + b"Transfer-Encoding : chunked\r\n\r\n", 400),
    "a folded coding": (LINE + HOST + b"Transfer-Encoding:\r\n chunked\r\n\r\n", 400),
    "a folded line": (LINE + HOST + b"X: a\r\n b\r\n\r\n", 400),
    "a fold at first": (LINE + b" Host: a\r\n\r\n", 400),
    "a line that ends early": (LINE + b"Host: a\nContent-Length: 0\r\n\r\n", 400),
    "a head that ends early": (LINE + b"Host: a\r\n\n", 400),
    "half an end of a line": (LINE + b"Host: a\rX: b\r\n\r\n", 400),
    "a chunk's line that ends early": (LINE + HOST + CHUNKED + b"\r\n1\nx\r\n0\r\n\r\n", 400),
    "a chunk that is longer": (LINE + HOST + CHUNKED + b"\r\n1\r\nxX0\r\n\r\n", 400),
    "a chunk of another base": (LINE + HOST + CHUNKED + b"\r\n0x1\r\nx\r\n0\r\n\r\n", 400),
    "a length after chunks": (LINE + HOST + CHUNKED + b"\r\n0\r\nContent-Length: 5\r\n\r\n", 400),
    "no host": (LINE + b"Content-Length: 0\r\n\r\n", 400),
    "two hosts": (LINE + HOST + HOST + b"Content-Length: 0\r\n\r\n", 400),
    "two lengths of JSON": (
        LINE + HOST + b"Inference-Header-Content-Length: 1\r\n" * 2 + b"Content-Length: 0\r\n\r\n",
        400,
    ),
    "two encodings": (
        LINE + HOST + b"Content-Encoding: gzip\r\n" * 2 + b"Content-Length: 0\r\n\r\n", 400
    ),
    "another version": (b"POST /p HTTP/2.0\r\nHost: a\r\nContent-Length: 0\r\n\r\n", 400),
    "a version before all": (b"GET /p\r\n\r\n", 400),
    "a body after an offer that came in two pieces": (
        LINE + HOST + b"Connection: upgrade\r\nUpg|rade: h2c\r\nContent-Length: 3\r\n\r\nabc", 400
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("size", [1, 1 << 16], ids=["by byte", "whole"])
def test_what_could_be_read_in_two_ways_is_refused_and_nothing_behind_it_is_read(
    name: str, size: int
) -> None:
    sent, code = REFUSED[name]

    async def main() -> None:
        asked: list[bytes] = []

        async def noted(each: exchange.Exchange) -> None:
            asked.append(each.raw_path)
            await echo(each)

        one, transport = opened(noted)
        for piece in (sent + NEXT).split(b"|"):
            feed(one, piece, size)
        await settle()
        assert re.findall(rb"HTTP/1.1 (\d+)", transport.written) == [b"%d" % code]
        assert b"connection: close" in transport.written
        assert b"\r\ndate: " in transport.written
        assert b"/smuggled" not in asked

    run(main)


def test_white_space_around_a_value_is_no_part_of_it() -> None:
    async def main() -> None:
        found: list[exchange.Headers] = []

        async def noted(each: exchange.Exchange) -> None:
            found.append(each.header_lines)
            await echo(each)

        one, _ = opened(noted)
        feed(one, LINE + b"Host:  a \t\r\nContent-Length: 2 \r\n\r\nhi")
        assert found == [[(b"host", b"a"), (b"content-length", b"2")]]

    run(main)


@pytest.mark.parametrize("end", [b"x", b"x: " + b"y" * 100, b"0;" + b"y" * 100])
def test_lines_after_a_body_and_beside_chunks_are_bounded(end: bytes) -> None:
    async def main() -> None:
        one, transport = opened(echo)
        start = b"" if end.startswith(b"0") else b"0\r\n"
        feed(one, LINE + HOST + CHUNKED + b"\r\n" + start + end)
        for _ in range(4):
            feed(one, b"z" * (1 << 16))
        assert transport.written.startswith(b"HTTP/1.1 4")

    run(main)


def test_an_old_client_is_told_nothing_in_between() -> None:
    async def main() -> None:
        one, transport = opened(echo)
        feed(one, b"POST /p HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n")
        await asyncio.sleep(0)
        assert not transport.written
        feed(one, b"hi")
        await settle()
        assert transport.written.startswith(b"HTTP/1.1 200 ")

    run(main)


def test_a_body_that_was_asked_about_and_not_wanted_ends_the_connection() -> None:
    """Whether it comes is the client's choice, so what follows could be it or a request."""

    async def at_once(asked: exchange.Exchange) -> None:
        asked.answer(200, [(b"content-length", b"0")], b"")

    async def main() -> None:
        one, transport = opened(at_once)
        feed(one, LINE + HOST + b"Expect: 100-continue\r\nContent-Length: 40\r\n\r\n")
        assert b"connection: close" in transport.written
        feed(one, NEXT)
        assert transport.written.count(b"HTTP/1.1") == 1

    run(main)
