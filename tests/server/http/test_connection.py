"""A connection fed by hand: order, turns, parts, and applications that fail."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from castiron.server import meters, settings, status
from castiron.server.http import exchange, listener, port
from tests.server.http.wires import bodies, connected, echo, feed, opened, post, run, settle


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=40), st.integers(1, 500))
def test_requests_sent_together_in_pieces_of_any_size_are_answered_in_order(
    sent: list[bytes], size: int
) -> None:
    async def main() -> None:
        one, transport = opened(echo)
        feed(one, b"".join(map(post, sent)), size)
        await settle()
        assert bodies(transport.written) == sent
        assert not transport.ended

    run(main)


def test_one_client_that_sends_many_at_once_lets_others_have_their_turn() -> None:
    async def main() -> None:
        one, transport = opened(echo)
        answered: list[int] = []
        asyncio.get_running_loop().call_soon(
            lambda: answered.append(len(bodies(transport.written)))
        )
        feed(one, b"".join(post(b"%d" % number) for number in range(500)))
        await settle()
        assert answered[0] < 50
        assert bodies(transport.written) == [b"%d" % number for number in range(500)]

    run(main)


@pytest.mark.parametrize("waits", [False, True])
def test_an_application_that_raises_costs_its_own_connection_only(
    waits: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(asked: exchange.Exchange) -> None:
        del asked
        if waits:
            await asyncio.sleep(0)
        raise KeyError("a fault of ours")

    async def main() -> None:
        one, transport = opened(broken)
        feed(one, post(b""))
        await settle()
        assert transport.ended == "aborted"
        assert not transport.written

    run(main)
    assert "a fault of ours" in caplog.text


def test_an_answer_of_unknown_length_is_chunked_and_to_old_clients_ends_with_the_connection() -> (
    None
):
    async def parts(asked: exchange.Exchange) -> None:
        async def made() -> Any:
            yield b"one"
            yield b""
            yield memoryview(b"three")

        await asked.stream(200, [(b"content-type", b"text/plain")], made())

    async def main() -> None:
        one, transport = opened(parts)
        feed(one, post(b""))
        await asyncio.sleep(0)
        assert transport.written.endswith(b"\r\n\r\n3\r\none\r\n5\r\nthree\r\n0\r\n\r\n")
        assert b"transfer-encoding: chunked" in transport.written
        assert not transport.ended
        old, transport = opened(parts)
        feed(old, b"GET / HTTP/1.0\r\n\r\n")
        await asyncio.sleep(0)
        assert transport.written.endswith(b"\r\n\r\nonethree")
        assert b"chunked" not in transport.written
        assert transport.ended == "closed"

    run(main)


def test_a_client_that_leaves_is_told_of_to_who_reads_and_who_answers() -> None:
    async def main() -> None:
        told: list[str] = []

        async def reads(asked: exchange.Exchange) -> None:
            asked.on_gone = lambda: told.append("gone")
            try:
                await asked.part()
            finally:
                told.append("ended")
            asked.answer(200, [(b"content-length", b"0")], b"")

        one, transport = opened(reads)
        feed(one, post(b"0123456789")[:-10])
        one.connection_lost(None)
        await settle()
        assert told[0] == "gone"
        assert not transport.written

    run(main)


def test_who_reads_only_after_the_client_left_is_told_so_and_finds_no_empty_body() -> None:
    """Who may ask was looked up meanwhile, say; an empty body would be the client's fault."""
    told: list[str] = []

    async def reads_later(asked: exchange.Exchange) -> None:
        await has_left.wait()
        try:
            told.append("read" if asked.is_complete else str(await asked.part()))
        except status.ClientGone:
            told.append("gone")

    async def main() -> None:
        one, _ = opened(reads_later)
        feed(one, post(b"abc"))
        one.connection_lost(None)
        has_left.set()
        await settle()
        assert told == ["gone"]

    has_left = asyncio.Event()
    run(main)


def test_a_header_with_the_end_of_a_line_in_it_never_leaves() -> None:
    async def splits(asked: exchange.Exchange) -> None:
        asked.answer(200, [(b"content-length", b"0"), (b"x", b"a\r\nset-cookie: b")], b"")

    async def main() -> None:
        one, transport = opened(splits)
        feed(one, post(b""))
        assert b"set-cookie" not in transport.written
        assert transport.ended == "aborted"

    run(main)


def test_what_came_while_the_server_stood_still_is_read_before_its_client_is_late() -> None:
    async def main() -> None:
        shared = port.Port(echo, settings.Settings(), meters.Meters(dict))
        one, transport = connected(shared)
        sent = post(b"late")
        feed(one, sent[:20])
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        with ours, theirs:
            theirs.sendall(sent[20:])
            loop.add_reader(ours, lambda: feed(one, ours.recv(100)))
            listener.Listener(shared).tick(loop.time() + 1000)
            await settle()
            loop.remove_reader(ours)
        assert bodies(transport.written) == [b"late"]

    run(main)


def test_a_client_that_says_nothing_more_is_late() -> None:
    async def main() -> None:
        shared = port.Port(echo, settings.Settings(), meters.Meters(dict))
        one, transport = connected(shared)
        feed(one, post(b"late")[:20])
        listener.Listener(shared).tick(asyncio.get_running_loop().time() + 1000)
        await settle()
        assert transport.written.startswith(b"HTTP/1.1 408 ")

    run(main)
