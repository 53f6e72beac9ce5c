"""The parts of the supervisor by themselves: the board, messages, changes, who is to blame."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from castiron import errors
from castiron.scheduler import breaker, settings
from castiron.server import patience
from castiron.server.workers import blame, board, changing, child, messages


def test_a_worker_is_ready_while_it_says_so() -> None:
    lines = board.Board.create(3)
    other = board.Board(lines.fd, 3)
    other.beat(1, board.READY)
    other.beat(2, board.STOPPING)
    now = lines.beat_ns(1)
    assert lines.num_ready(now) == 1
    assert lines.num_ready(now + board.FRESH_NS) == 0
    lines.clear(1)
    assert other.beat_ns(1) == 0


def test_a_worker_may_be_silent_for_as_long_as_its_work_is_large() -> None:
    lines = board.Board.create(1)
    lines.beat(0, board.READY)
    patience.grant(lambda time_ns: lines.wait_for(0, time_ns))
    try:
        before = lines.beat_ns(0)
        patience.ask_for(patience.LARGE_BYTES)
        assert lines.beat_ns(0) == before
        patience.ask_for(100 * patience.LARGE_BYTES)
        assert lines.beat_ns(0) > time.monotonic_ns() + 1_000_000_000
        assert lines.num_ready(time.monotonic_ns()) == 1
        lines.beat(0, board.READY)
        assert lines.beat_ns(0) <= time.monotonic_ns()
    finally:
        patience.grant(lambda _: None)


def test_messages_come_whole_and_in_order_and_then_the_end() -> None:
    one, other = messages.pair()
    other.setblocking(False)
    with pytest.raises(BlockingIOError):
        messages.receive(other)
    assert messages.send(one, {"do": "stage", "id": 1})
    assert messages.send(one, {"do": "switch", "id": 2})
    assert messages.receive(other) == {"do": "stage", "id": 1}
    assert messages.receive(other) == {"do": "switch", "id": 2}
    one.close()
    assert messages.receive(other) is None
    assert not messages.send(other, {})
    other.close()


@pytest.mark.parametrize(
    "error, kind",
    [
        (errors.ModelNotFound("m"), errors.ModelNotFound),
        (errors.AdmissionError("m"), errors.CastironError),
        (ZeroDivisionError("m"), errors.CastironError),
    ],
)
def test_errors_are_told_by_kind(error: Exception, kind: type[Exception]) -> None:
    made = messages.error_of(messages.fault_of(error))
    assert type(made) is kind
    assert str(made) == "m"


class _Worker:
    """Answers orders at once, as it is told to."""

    def __init__(self, index: int, numbers: list[int]) -> None:
        self.index = index
        self.numbers = numbers
        self.is_alive = True
        self.orders: list[str] = []
        self.killed = ""

    def order(self, do: str, **given: Any) -> asyncio.Future[messages.Message]:
        self.orders.append(do)
        future: asyncio.Future[messages.Message] = asyncio.get_running_loop().create_future()
        future.set_result({"numbers": self.numbers, "problems": [], "number": given.get("number")})
        return future

    def kill(self, reason: str) -> None:
        self.killed = reason


def change(workers: list[Any], action: str, number: int | None = None) -> BaseException | None:
    told: list[BaseException | None] = []

    async def body() -> None:
        changes = changing.Changes(lambda: workers, lambda *_: None)
        changes.put({"action": action, "model": "m", "number": number}, told.append)
        work = asyncio.create_task(changes.work())
        while not told:  # noqa: ASYNC110  it is done in a few turns of the loop
            await asyncio.sleep(0)
        work.cancel()

    asyncio.run(body())
    return told[0]


def test_all_workers_stage_before_any_switches() -> None:
    workers = [_Worker(0, [2]), _Worker(1, [2])]
    assert change(workers, "load") is None
    assert [worker.orders for worker in workers] == [["stage", "switch"]] * 2


def test_when_one_worker_cannot_none_switches() -> None:
    workers = [_Worker(0, [2]), _Worker(1, [])]
    error = change(workers, "load")
    assert "none has changed" in str(error)
    assert [worker.orders for worker in workers] == [["stage", "drop"]] * 2


def test_a_turn_is_tried_in_all_before_it_is_made() -> None:
    workers = [_Worker(0, []), _Worker(1, [])]
    assert change(workers, "promote", 3) is None
    assert [worker.orders for worker in workers] == [["turn", "turn"]] * 2


def test_without_a_worker_a_change_is_refused() -> None:
    assert isinstance(change([], "load"), errors.ModelNotReady)
    assert isinstance(change([], "rollback"), errors.ModelNotReady)


def test_a_version_that_ends_workers_rests_each_time_twice_as_long() -> None:
    worker = child.Child(0, board.Board.create(1))
    found = blame.Blame()
    rests = []
    for _ in range(4):
        slot = worker.crashes.claim("m/7", b"\1" * 32)
        _enter(slot, 5)
        found.look(worker, "SIGKILL")  # somebody else did it
        found.look(worker, "SIGSEGV")
        rests.append((found.trips.get("m/7", 0) - time.monotonic_ns()) / 1e9)
        worker.crashes.clear()
    assert rests[0] < 0
    assert rests[1:] == pytest.approx([30, 60, 120], abs=10)


def _enter(slot: Any, step: int) -> None:
    import ctypes

    ctypes.c_int64.from_address(slot.step_address).value = step


def test_a_breaker_that_is_tripped_opens_at_once_and_tries_again_later() -> None:
    given = breaker.Breaker(settings.Breaker())
    given.trip(0, 30_000)
    assert given.permit(29_999) is None
    assert given.permit(30_000) is not None
