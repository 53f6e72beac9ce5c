"""Clients that ask much and read little, or say that they ask no more: what they cost."""

from __future__ import annotations

import asyncio
import time

from hypothesis import given
from hypothesis import strategies as st

from castiron.server import meters, settings
from castiron.server.http import exchange, listener, port
from tests.server.http.wires import bodies, connected, echo, feed, opened, post, run, settle

GET = b"GET /p HTTP/1.1\r\nHost: a\r\n\r\n"
LARGE = 20_000


async def large(asked: exchange.Exchange) -> None:
    asked.answer(200, [(b"content-length", b"%d" % LARGE)], bytes(LARGE))


def test_a_client_that_reads_no_answers_gets_few_and_all_once_it_reads() -> None:
    async def main() -> None:
        one, transport = opened(large)
        transport.is_held = True
        feed(one, GET * 100)
        await settle()
        assert transport.is_paused
        assert transport.most_held_bytes < 200_000
        for _ in range(100):
            transport.read(1 << 20)
            await asyncio.sleep(0)
        assert len(bodies(transport.written)) == 100
        assert not transport.is_paused

    run(main)


def test_more_is_read_only_when_all_that_was_asked_ahead_is_on_its_way() -> None:
    """Else each answer would let in a thousand requests more."""

    async def slowly(asked: exchange.Exchange) -> None:
        await asyncio.sleep(0)
        asked.answer(200, [(b"content-length", b"0")], b"")

    async def main() -> None:
        one, transport = opened(slowly)
        feed(one, GET * 1000)
        while transport.written.count(b"HTTP/1.1") < 990:
            assert transport.is_paused
            await asyncio.sleep(0)
        await settle()
        assert not transport.is_paused
        assert len(bodies(transport.written)) == 1000

    run(main)


def test_a_slow_reader_is_kept_while_it_reads_and_dropped_when_it_does_not() -> None:
    async def main() -> None:
        async def huge(asked: exchange.Exchange) -> None:
            asked.answer(200, [(b"content-length", b"%d" % (8 << 20))], bytes(8 << 20))

        one, transport = opened(huge, body_timeout_s=10, min_body_rate=1e5)
        transport.is_held = True
        now_s = asyncio.get_running_loop().time()
        feed(one, GET)
        transport.read(2 << 20)
        one.check_time(now_s + 11)
        assert not transport.ended
        transport.read(1_200_000)
        one.check_time(now_s + 22)
        assert not transport.ended
        transport.read(800_000)
        one.check_time(now_s + 33)
        assert "aborted" in transport.ended

    run(main)


def test_a_body_in_small_chunks_costs_no_more_the_more_there_are() -> None:
    async def main() -> None:
        one, transport = opened(echo)
        head = b"POST /p HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
        begun_s = time.thread_time()
        feed(one, head + b"1\r\nx\r\n" * 10_000 + b"0\r\n\r\n")
        await asyncio.sleep(0)
        assert time.thread_time() - begun_s < 0.3
        await settle()
        assert bodies(transport.written) == [b"x" * 10_000]

    run(main)


def test_a_head_that_began_while_another_was_answered_has_its_own_time_and_bound() -> None:
    async def main() -> None:
        release = asyncio.Event()

        async def waits(asked: exchange.Exchange) -> None:
            await release.wait()
            asked.answer(200, [(b"content-length", b"0")], b"")

        one, transport = opened(waits, head_timeout_s=10, keep_alive_s=75)
        now_s = asyncio.get_running_loop().time()
        feed(one, GET + b"GET /p HT")
        release.set()
        await settle()
        one.check_time(now_s + 9)
        assert not transport.ended
        one.check_time(now_s + 20)
        assert b"HTTP/1.1 408 " in transport.written

    run(main)


def test_a_connection_that_is_idle_after_an_early_answer_ends_without_a_word() -> None:
    """A client that just asks again would take a 408 for its answer."""

    async def at_once(asked: exchange.Exchange) -> None:
        asked.answer(404, [(b"content-length", b"0")], b"")

    async def main() -> None:
        one, transport = opened(at_once, keep_alive_s=75)
        feed(one, post(b"0123456789")[:-10])
        feed(one, b"0123456789")
        one.check_time(asyncio.get_running_loop().time() + 80)
        assert transport.ended == "closed"
        assert transport.written.count(b"HTTP/1.1") == 1

    run(main)


def test_what_was_asked_ahead_is_answered_when_the_server_stops() -> None:
    async def main() -> None:
        release = asyncio.Event()

        async def waits(asked: exchange.Exchange) -> None:
            await release.wait()
            asked.answer(200, [(b"content-length", b"0")], b"")

        one, transport = opened(waits)
        feed(one, GET * 3)
        one.shut_down()
        release.set()
        await settle()
        assert transport.written.count(b"HTTP/1.1 200 ") == 3
        assert transport.written.count(b"connection: close") == 1
        assert transport.ended == "closed"

    run(main)


def test_an_end_at_once_tells_also_those_who_have_just_asked() -> None:
    async def waits(asked: exchange.Exchange) -> None:
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            asked.answer(503, [(b"content-length", b"0")], b"")
            raise

    async def main() -> None:
        shared = port.Port(waits, settings.Settings(), meters.Meters(dict))
        one, transport = connected(shared)

        def in_one_turn() -> None:
            feed(one, GET)
            listener.Listener(shared).hurry()

        asyncio.get_running_loop().call_soon(in_one_turn)
        await settle()
        assert transport.written.startswith(b"HTTP/1.1 503 ")
        assert not transport.ended

    run(main)


def test_memory_for_a_large_body_is_given_back_when_its_request_is_refused() -> None:
    async def at_once(asked: exchange.Exchange) -> None:
        asked.answer(401, [(b"content-length", b"0")], b"")

    async def main() -> None:
        one, _ = opened(at_once)
        feed(one, b"POST /p HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % (32 << 20))
        assert len(one.get_buffer(-1)) <= 1 << 16

    run(main)


BEHAVIOURS = st.sampled_from(["at once", "in a while", "before its body", "large"])


@given(
    st.lists(st.tuples(BEHAVIOURS, st.sampled_from([0, 5, 3000, 70_000])), min_size=1, max_size=12),
    st.sampled_from([50, 4000, 1 << 16]),
    st.lists(st.booleans(), min_size=1, max_size=8),
)
def test_whatever_the_order_of_asking_answering_and_reading_nothing_is_lost(
    asked: list[tuple[str, int]], size: int, reads: list[bool]
) -> None:
    async def application(each: exchange.Exchange) -> None:
        behaviour = each.path[1:].replace("_", " ")
        if behaviour == "in a while":
            await asyncio.sleep(0)
        taken = b""
        while behaviour != "before its body" and not each.is_complete:
            taken += bytes(await each.part())
        taken += b"" if behaviour == "before its body" else bytes(each.take())
        made = bytes(LARGE) if behaviour == "large" else b"%d" % len(taken)
        each.answer(200, [(b"content-length", b"%d" % len(made))], made)

    async def main() -> None:
        one, transport = opened(application)
        transport.is_held = True
        sent = b"".join(post(bytes(n), "/" + kind.replace(" ", "_")) for kind, n in asked)
        for turn in range(10_000):
            if sent and not transport.is_paused:
                feed(one, sent[:size], size)
                sent = sent[size:]
            if reads[turn % len(reads)]:
                transport.read(30_000)
            await asyncio.sleep(0)
            if not sent and turn > 100 and len(bodies(transport.written)) == len(asked):
                break
            if turn % 50 == 0:
                transport.read(1 << 20)
        wanted = {"large": LARGE, "before its body": 1}
        found = [len(each) for each in bodies(transport.written)]
        assert found == [wanted.get(kind, len(str(size))) for kind, size in asked]
        assert not transport.ended
        assert not transport.is_paused
        assert transport.most_held_bytes < 300_000

    run(main)
