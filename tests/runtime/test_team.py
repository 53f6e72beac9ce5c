"""The team in generated code: exact results for any number of threads, joins, sleeps, ends."""

from __future__ import annotations

import ctypes
import os
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from castiron import errors
from castiron.executable import abi
from castiron.runtime import native_thread, team
from tests.runtime import native

CODE = native.compile_code()
RUN = native.run_function()
UNITS = 200


@pytest.fixture(scope="module", params=[1, 2, 3, 4])
def crew(request: pytest.FixtureRequest) -> Iterator[team.Team]:
    """A team of each size."""
    made = team.Team(CODE, request.param)
    yield made
    assert made.stop(5.0)


@pytest.fixture
def four() -> Iterator[team.Team]:
    """A team of four threads of its own."""
    made = team.Team(CODE, 4)
    yield made
    assert made.stop(5.0)


class Filling:
    """A run of one `fill` step or several, and the memory it writes."""

    def __init__(self, crew: team.Team, units: int, grain: int, **options: Any) -> None:
        self.out = native.Words(units)
        self.visits = native.Words(units)
        self.log = native.Words(units)
        num_steps = options.pop("num_steps", 1)
        ticks = options.pop("ticks", 0)
        step = native.Step(
            CODE["fill"], units, grain, [(0, 0), (1, 0), (2, 0)], [options.pop("factor", 3), ticks]
        )
        bases = [self.out.address, self.visits.address, self.log.address]
        options.setdefault("threads", crew.threads)
        options.setdefault("scratch", 1 << 40)
        options.setdefault("stride", 4096)
        self.run = native.Run(bases, [step] * num_steps, team=crew.address, **options)
        self.address = self.run.address()

    def do(self) -> None:
        """Run it once; the object, and so its memory, lives until the run is over."""
        RUN(self.address)


def meet(crew: team.Team, threads: int) -> set[int]:
    """Fork a step that ends only when so many threads are in it; return who they were."""
    arrived, log = native.Words(1), native.Words(threads, -1)
    params = [threads, int(20e6 * team.ticks_per_us(CODE))]
    step = native.Step(CODE["meet"], threads, 1, [(0, 0), (1, 0)], params)
    run = native.Run([arrived.address, log.address], [step], crew.address, threads, 0, 4096)
    RUN(run.address())
    return {scratch // 4096 for scratch in log.values}


def word(crew: team.Team, index: int) -> ctypes.c_int64:
    """A word of the team block."""
    return ctypes.c_int64.from_address(crew.address + index * abi.WORD_BYTES)


def half(crew: team.Team, index: int) -> ctypes.c_uint32:
    """A word of 32 bits of the team block."""
    return ctypes.c_uint32.from_address(crew.address + index * abi.WORD_BYTES)


@pytest.mark.parametrize("grain", [0, 1, 7, UNITS - 1, UNITS, UNITS + 1])
def test_every_unit_is_done_once_for_any_grain(crew: team.Team, grain: int) -> None:
    filling = Filling(crew, UNITS, grain)
    filling.do()
    assert list(filling.out.values) == [3 * unit for unit in range(UNITS)]
    assert list(filling.visits.values) == [1] * UNITS


@pytest.mark.parametrize("units", [0, 1])
def test_a_step_of_no_or_one_unit_runs_alone(crew: team.Team, units: int) -> None:
    filling = Filling(crew, units, 1)
    filling.do()
    assert list(filling.visits.values) == [1] * units


def test_thousands_of_runs_each_do_every_unit_once(crew: team.Team) -> None:
    filling = Filling(crew, UNITS, 3, num_steps=5)
    for _ in range(2000):
        filling.do()
    assert list(filling.visits.values) == [10_000] * UNITS


def test_a_step_sees_all_that_the_step_before_wrote(crew: team.Team) -> None:
    units = 512
    first, second, third = (native.Words(units) for _ in range(3))
    visits, log = native.Words(units), native.Words(units)
    bases = [words.address for words in (first, visits, log, second, third)]
    for factor in range(1, 400):
        fill = native.Step(CODE["fill"], units, 16, [(0, 0), (1, 0), (2, 0)], [factor, 0])
        copies = [
            native.Step(CODE["copy"], units, 16, [(3, 0), (0, 0)]),
            native.Step(CODE["copy"], units // 2, 16, [(4, 0), (3, units * 4)]),
        ]
        run = native.Run(bases, [fill, *copies], team=crew.address, threads=crew.threads)
        RUN(run.address())
        expected = [factor * unit for unit in range(units // 2, units)]
        assert list(third.values[: units // 2]) == expected


def test_each_thread_has_its_own_scratch(four: team.Team) -> None:
    assert meet(four, 4) == {0, 1, 2, 3}


def test_a_run_uses_no_more_threads_than_it_asks_for(four: team.Team) -> None:
    for _ in range(20):
        filling = Filling(four, 100, 1, ticks=20_000, threads=2)
        filling.do()
        assert {(address - (1 << 40)) / 4096 for address in filling.log.values} <= {0, 1}


def test_the_epoch_may_wrap_around(four: team.Team) -> None:
    half(four, abi.TEAM_EPOCH).value = 0xFFFFFFFF - 500
    filling = Filling(four, UNITS, 10)
    for _ in range(1500):
        filling.do()
    assert list(filling.visits.values) == [1500] * UNITS
    assert half(four, abi.TEAM_EPOCH).value < 2000


def test_sleeping_workers_are_woken_for_a_fork_at_any_moment(four: team.Team) -> None:
    generator = random.Random(7)
    for _ in range(80):
        time.sleep(generator.random() * 0.0006)
        threads = generator.randrange(2, 5)
        assert meet(four, threads) == set(range(threads))


def test_an_idle_team_uses_no_processor(four: team.Team) -> None:
    Filling(four, UNITS, 1).do()
    assert native_thread.wait_until(lambda: word(four, abi.TEAM_ASLEEP).value == 0b1110, 5.0)
    start_s = native.cpu_s("castiron-")
    assert start_s > 0
    time.sleep(0.5)
    assert native.cpu_s("castiron-") - start_s < 0.005
    assert word(four, abi.TEAM_ASLEEP).value == 0b1110


def test_two_runs_at_once_are_both_exact_and_one_goes_alone(four: team.Team) -> None:
    fillings = [Filling(four, 64, 1, num_steps=20, ticks=2000) for _ in range(2)]

    counts = [0, 0]
    begun = threading.Barrier(2)

    def repeat(index: int, filling: Filling) -> None:
        begun.wait()
        # More than enough, unless the machine lets one wait for all of the other's.
        while counts[index] < 100 or (not four.counts()["refused"] and counts[index] < 10_000):
            filling.do()
            counts[index] += 1

    rivals = [threading.Thread(target=repeat, args=each) for each in enumerate(fillings)]
    for rival in rivals:
        rival.start()
    for rival in rivals:
        rival.join()
    for count, filling in zip(counts, fillings, strict=True):
        assert list(filling.visits.values) == [20 * count] * 64
    assert four.counts()["refused"] > 0
    assert half(four, abi.TEAM_BUSY).value == 0


def test_a_join_sleeps_when_another_thread_takes_long(four: team.Team) -> None:
    four_chunks = Filling(four, 4, 1, ticks=6_000_000)
    count = 0
    while count < 30 or (not four.counts()["join_sleeps"] and count < 1000):
        four_chunks.do()
        count += 1
    assert list(four_chunks.visits.values) == [count] * 4
    assert four.counts()["join_sleeps"] > 0


def test_a_run_of_one_thread_leaves_the_team_alone(four: team.Team) -> None:
    Filling(four, UNITS, 1, threads=1).do()
    assert four.counts()["forks"] == 0


def test_steps_without_grain_are_not_forked(four: team.Team) -> None:
    Filling(four, UNITS, 0).do()
    Filling(four, UNITS, UNITS).do()
    assert four.counts()["forks"] == 0


def test_a_huge_extent_is_cut_into_a_bounded_number_of_chunks(four: team.Team) -> None:
    step = native.Step(CODE["nothing"], 1 << 40, 1 << 10)
    run = native.Run([], [step], team=four.address, threads=4)
    RUN(run.address())
    assert word(four, abi.TEAM_CHUNKS).value == 1 << 24


def test_the_step_under_way_is_told_and_taken_back(crew: team.Team) -> None:
    told = native.Words(1, 77)
    seen = native.Words(3, 55)
    steps = [native.Step(CODE["copy"], 1, 0, [(0, 8 * step), (1, 0)]) for step in range(3)]
    run = native.Run([seen.address, told.address], steps, crash=told.address)
    RUN(run.address())
    assert list(seen.values) == [0, 1, 2]
    assert list(told.values) == [abi.NO_STEP]


def test_times_add_up_over_runs(crew: team.Team) -> None:
    times = native.Words(3)
    filling = Filling(crew, 10, 1, num_steps=3, ticks=10_000, times=times.address)
    filling.do()
    once = list(times.values)
    filling.do()
    least = 10 * 10_000 // crew.threads
    assert all(ticks >= least for ticks in once)
    assert all(after >= before + least for before, after in zip(once, times.values, strict=True))


def test_runs_go_on_alone_after_the_team_has_stopped() -> None:
    crew = team.Team(CODE, 3)
    filling = Filling(crew, UNITS, 1)
    assert crew.stop(5.0)
    assert crew.address == 0
    filling.do()
    assert list(filling.visits.values) == [1] * UNITS


def test_a_forked_child_has_no_team_and_is_not_stuck() -> None:
    crew = team.Team(CODE, 2)
    filling = Filling(crew, UNITS, 1)
    child = os.fork()
    if child == 0:
        filling.do()
        right = list(filling.visits.values) == [1] * UNITS
        os._exit(0 if right and (crew.address, crew.threads) == (0, 1) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert crew.stop(5.0)


def test_workers_block_signals_and_carry_a_name() -> None:
    crew = team.Team(CODE, 2)

    def names() -> dict[str, int]:
        found = {}
        for task in Path("/proc/self/task").iterdir():
            text = (task / "status").read_text(encoding="ascii")
            lines = dict(line.split(":\t", 1) for line in text.splitlines())
            found[lines["Name"]] = int(lines["SigBlk"], 16)
        return found

    assert native_thread.wait_until(lambda: "castiron-1" in names(), 5.0)
    assert native_thread.wait_until(lambda: names()["castiron-1"] & (1 << 14) > 0, 5.0)
    blocked = names()["castiron-1"]
    assert blocked & (1 << 1) and blocked & (1 << 9)
    assert not any(blocked & (1 << (number - 1)) for number in (4, 7, 8, 11))
    assert crew.stop(5.0)


def test_more_threads_than_processors_never_spin() -> None:
    crew = team.Team(CODE, len(os.sched_getaffinity(0)) + 1)
    assert word(crew, abi.TEAM_SPIN_TICKS).value == 0
    assert crew.stop(5.0)


def test_workers_are_kept_off_the_processor_that_forks() -> None:
    allowed = os.sched_getaffinity(0)
    crew = team.Team(CODE, 2)
    try:
        for cpu in sorted(allowed)[:2]:
            assert native_thread.wait_until(lambda: word(crew, abi.TEAM_ASLEEP).value == 2, 5.0)
            os.sched_setaffinity(0, {cpu})
            assert meet(crew, 2) == {0, 1}
            worker = word(crew, abi.TEAM_THREAD_IDS + 1).value
            assert os.sched_getaffinity(worker) == (allowed - {cpu} or allowed)
    finally:
        os.sched_setaffinity(0, allowed)
    assert crew.stop(5.0)


def test_placed_workers_stay_where_they_were_put() -> None:
    place = {max(os.sched_getaffinity(0))}
    crew = team.Team(CODE, 2, cpus=place)
    assert meet(crew, 2) == {0, 1}
    assert os.sched_getaffinity(word(crew, abi.TEAM_THREAD_IDS + 1).value) == place
    assert crew.stop(5.0)


@pytest.mark.parametrize("threads", [0, abi.MAX_THREADS + 1])
def test_a_team_of_an_impossible_size_is_refused(threads: int) -> None:
    with pytest.raises(errors.ResourceError, match=f"1 to 64 threads in a team, found {threads}"):
        team.Team(CODE, threads)


def test_a_team_of_the_largest_size_wakes_its_last_thread() -> None:
    crew = team.Team(CODE, abi.MAX_THREADS)
    assert meet(crew, abi.MAX_THREADS) == set(range(abi.MAX_THREADS))
    assert crew.stop(20.0)


def test_a_process_has_one_team() -> None:
    shared = team.Shared()
    first = shared.team(CODE, 2)
    assert shared.team(CODE, 4) is first
    assert first.stop(5.0)


def test_ticks_are_told_in_microseconds() -> None:
    rates = sorted(team.ticks_per_us(CODE) for _ in range(21))
    assert rates[0] > 1
    assert rates[15] < 1.2 * rates[5]
