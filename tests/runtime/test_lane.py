"""The native lane: order, completion on a loop and without one, full ring, stop, fork."""

from __future__ import annotations

import asyncio
import ctypes
import functools
import os
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import uvloop

from castiron import errors
from castiron.executable import abi
from castiron.runtime import lane, native_thread
from tests.runtime import native

CODE = native.compile_code()
LOOPS: list[Callable[[], asyncio.AbstractEventLoop]] = [
    asyncio.new_event_loop,
    uvloop.new_event_loop,
]


@pytest.fixture
def alone() -> Iterator[lane.Lane]:
    """A lane without a loop."""
    made = lane.Lane(CODE)
    yield made
    assert made.stop(5.0)


@pytest.fixture(params=LOOPS, ids=["asyncio", "uvloop"])
def loop(request: pytest.FixtureRequest) -> Iterator[asyncio.AbstractEventLoop]:
    """An event loop of each kind."""
    made = request.param()
    yield made
    made.close()


class Log:
    """Native calls that append a number to a list in memory."""

    def __init__(self, room: int) -> None:
        self.words = native.Words(room + 1)
        self._records: list[native.Words] = []

    def record(self, number: int) -> int:
        """The argument of the call that appends `number`."""
        record = native.Words(2)
        record.values[0] = self.words.address
        record.values[1] = number
        self._records.append(record)
        return record.address

    @property
    def numbers(self) -> list[int]:
        """What was appended so far."""
        return list(self.words.values[1 : self.words.values[0] + 1])


def test_runs_are_done_in_order_and_told_in_order(alone: lane.Lane) -> None:
    log = Log(5000)
    told: list[int] = []
    for number in range(5000):
        while True:
            try:
                alone.submit_call(
                    CODE["append"], log.record(number), functools.partial(told.append, number)
                )
                break
            except errors.ResourceError:
                assert alone.drain(5.0)
    assert alone.drain(5.0)
    assert log.numbers == told == list(range(5000))


def test_a_run_is_over_when_it_is_told(alone: lane.Lane) -> None:
    out, visits, log = native.Words(100), native.Words(100), native.Words(100)
    step = native.Step(CODE["fill"], 100, 0, [(0, 0), (1, 0), (2, 0)], [5, 0])
    run = native.Run([out.address, visits.address, log.address], [step])
    seen: list[list[int]] = []
    alone.submit(run.address(), lambda: seen.append(list(out.values)))
    assert alone.drain(5.0)
    assert seen == [[5 * unit for unit in range(100)]]


def test_no_wake_up_is_lost_whenever_a_run_comes(alone: lane.Lane) -> None:
    log = Log(3000)
    for number in range(3000):
        if number % 3 == 0:
            time.sleep(0.00001 * (number % 11))
        alone.submit_call(CODE["append"], log.record(number), int)
        assert alone.drain(5.0), f"run {number} was not told"
    assert log.numbers == list(range(3000))


def test_the_counters_may_wrap_around(alone: lane.Lane) -> None:
    assert native_thread.wait_until(lambda: word(alone, abi.LANE_ASLEEP) == 1, 5.0)
    for offset in (abi.LANE_HEAD, abi.LANE_TAIL):
        ctypes.c_uint32.from_address(alone._block + offset).value = 0xFFFFFFFF - 20
    alone._finished = 0xFFFFFFFF - 20
    log = Log(100)
    for number in range(100):
        alone.submit_call(CODE["append"], log.record(number), int)
    assert alone.drain(5.0)
    assert log.numbers == list(range(100))


def word(source: lane.Lane, offset: int) -> int:
    """A word of 32 bits of the lane block."""
    return ctypes.c_uint32.from_address(source._block + offset).value


def test_a_full_ring_refuses_and_keeps_what_it_has(alone: lane.Lane) -> None:
    held = native.Held()
    log = Log(abi.LANE_CAPACITY)
    alone.submit(held.address, int)

    def overfill() -> None:
        for number in range(abi.LANE_CAPACITY + 1):
            alone.submit_call(CODE["append"], log.record(number), int)

    with pytest.raises(errors.ResourceError, match="at most 256 runs in a lane, found it full"):
        overfill()
    kept = alone.num_waiting - 1
    assert kept >= abi.LANE_CAPACITY - 1
    held.let_go()
    assert alone.drain(5.0)
    assert log.numbers == list(range(kept))


def test_a_loop_calls_each_in_order_while_it_does_other_things(
    loop: asyncio.AbstractEventLoop,
) -> None:
    made = lane.Lane(CODE, loop)
    log = Log(1001)
    told: list[int] = []

    async def work() -> None:
        for number in range(1000):
            if made.num_waiting > 100:
                await asyncio.sleep(0.001)
            made.submit_call(
                CODE["append"], log.record(number), functools.partial(told.append, number)
            )
        last = loop.create_future()
        made.submit_call(CODE["append"], log.record(1000), lambda: last.set_result(None))
        await last

    loop.run_until_complete(asyncio.wait_for(work(), 60))
    assert log.numbers[1000:] == [1000]
    assert told == log.numbers[:1000] == list(range(1000))
    assert made.stop(5.0)


def test_the_loop_stays_free_during_a_run(loop: asyncio.AbstractEventLoop) -> None:
    made = lane.Lane(CODE, loop)
    held = native.Held()

    async def turn() -> None:
        over = loop.create_future()
        made.submit(held.address, lambda: over.set_result(None))
        for _ in range(20):
            await asyncio.sleep(0.001)
            assert not over.done()
        held.let_go()
        await over

    loop.run_until_complete(asyncio.wait_for(turn(), 10))
    assert made.stop(5.0)


def test_one_tell_serves_many_completions(alone: lane.Lane) -> None:
    log = Log(200)
    for number in range(200):
        alone.submit_call(CODE["append"], log.record(number), int)
    while word(alone, abi.LANE_TAIL) < 200:
        time.sleep(0.001)
    assert alone.drain(5.0)
    assert alone.counts()["eventfd_writes"] == 1


def test_a_callback_that_fails_does_not_stop_the_others(alone: lane.Lane) -> None:
    log = Log(3)
    told: list[str] = []

    def fail() -> None:
        raise ValueError("from the first")

    alone.submit_call(CODE["append"], log.record(0), fail)
    alone.submit_call(CODE["append"], log.record(1), lambda: told.append("second"))
    alone.submit_call(CODE["append"], log.record(2), lambda: told.append("third"))
    while word(alone, abi.LANE_TAIL) < 3:
        time.sleep(0.001)
    with pytest.raises(ValueError, match="from the first"):
        alone.drain(5.0)
    assert told == ["second", "third"]


def test_a_callback_may_submit_the_next_run(alone: lane.Lane) -> None:
    log = Log(50)

    def again(number: int) -> None:
        if number < 50:
            alone.submit_call(CODE["append"], log.record(number), lambda: again(number + 1))

    again(0)
    assert alone.drain(5.0)
    assert log.numbers == list(range(50))


def test_to_stop_is_to_finish_what_was_submitted() -> None:
    made = lane.Lane(CODE)
    held = native.Held()
    log = Log(50)
    told: list[int] = []
    made.submit(held.address, lambda: told.append(-1))
    for number in range(50):
        made.submit_call(CODE["append"], log.record(number), functools.partial(told.append, number))
    later = threading.Timer(0.01, held.let_go)
    later.start()
    assert made.stop(15.0)
    later.join()
    assert log.numbers == list(range(50))
    assert told == [-1, *range(50)]
    assert not made.is_open


def test_a_lane_stops_at_any_moment_of_its_start_and_sleep() -> None:
    for pause in range(60):
        made = lane.Lane(CODE)
        time.sleep(0.00002 * (pause % 20))
        assert made.stop(5.0)


def test_stop_does_not_wait_beyond_its_time() -> None:
    made = lane.Lane(CODE)
    held = native.Held()
    told: list[int] = []
    left = ctypes.c_int32.from_address(made._block + abi.LANE_LEFT)
    made.submit(held.address, lambda: told.append(1))
    start = time.monotonic()
    assert not made.stop(0.05)
    assert time.monotonic() - start < 10
    assert told == []
    held.let_go()  # the run ends before its memory does
    assert native_thread.wait_until(lambda: left.value == 1, 5.0)


def test_a_stopped_lane_refuses_runs() -> None:
    made = lane.Lane(CODE)
    assert made.stop(5.0)
    assert made.stop(5.0)
    with pytest.raises(errors.ResourceError, match="expected an open lane"):
        made.submit(0, int)


def test_a_forked_child_refuses_runs_and_the_parent_goes_on(alone: lane.Lane) -> None:
    child = os.fork()
    if child == 0:
        try:
            alone.submit(0, int)
        except errors.ResourceError:
            os._exit(0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    log = Log(1)
    alone.submit_call(CODE["append"], log.record(9), int)
    assert alone.drain(5.0)
    assert log.numbers == [9]


def test_an_idle_lane_uses_no_processor(alone: lane.Lane) -> None:
    assert native_thread.wait_until(lambda: word(alone, abi.LANE_ASLEEP) == 1, 5.0)
    start_s = native.cpu_s("castiron-lane")
    assert start_s > 0
    time.sleep(0.5)
    assert native.cpu_s("castiron-lane") - start_s < 0.005


def test_other_python_threads_do_not_hold_a_run_back(alone: lane.Lane) -> None:
    busy = threading.Event()

    def spin() -> None:
        while not busy.is_set():
            sum(range(100))

    rival = threading.Thread(target=spin)
    rival.start()
    log = Log(50)
    for number in range(50):
        alone.submit_call(CODE["append"], log.record(number), int)
    assert alone.drain(30.0)
    busy.set()
    rival.join()
    assert log.numbers == list(range(50))


def test_a_lane_may_be_placed() -> None:
    made = lane.Lane(CODE, cpus={min(os.sched_getaffinity(0))})

    def places() -> list[set[int]]:
        found = []
        for task in os.listdir("/proc/self/task"):  # noqa: PTH208
            with open(f"/proc/self/task/{task}/comm", encoding="ascii") as file:  # noqa: PTH123
                if file.read().strip() == "castiron-lane":
                    found.append(os.sched_getaffinity(int(task)))
        return found

    assert native_thread.wait_until(lambda: {min(os.sched_getaffinity(0))} in places(), 5.0)
    assert made.stop(5.0)
