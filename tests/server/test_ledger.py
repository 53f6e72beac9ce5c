"""Times counted many at once are what counting one after the other gives, to the last bit."""

from __future__ import annotations

import itertools
import random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from castiron.server import ledger, meters
from castiron.telemetry import context, families, metrics, timeline

_HUGE_NS = 1 << 62
_YEAR_NS = 365 * 86400 * 10**9
# Whole bounds are among them, also as differences, and times that are equal or run backwards.
_TIMES = st.one_of(
    st.just(0),
    st.sampled_from([1, 10_000, 20_000, 30_000, 50_000, 1_000_000, 1_010_000, 30 * 10**9]),
    st.integers(0, 10**10),
    st.integers(0, _HUGE_NS),
)
_ANSWERS = st.lists(st.tuples(*[_TIMES] * (len(families.STAGES) + 2)), min_size=1, max_size=40)
_RUNS = st.lists(
    st.tuples(st.integers(1, 5000), st.one_of(st.just(0), st.integers(0, 50 * _YEAR_NS))),
    min_size=1,
    max_size=40,
)


class _Pair:
    """One ledger that counts many at once, and the histograms of one that counts each."""

    def __init__(self) -> None:
        self.many = ledger.Ledger(
            metrics.Histogram(metrics.LATENCY_BOUNDS_S),
            {stage: metrics.Histogram(metrics.LATENCY_BOUNDS_S) for stage in families.STAGES},
            metrics.Histogram(families.ROW_BOUNDS),
            metrics.Counter(),
        )
        self.latency = metrics.Histogram(metrics.LATENCY_BOUNDS_S)
        self.stages = {s: metrics.Histogram(metrics.LATENCY_BOUNDS_S) for s in families.STAGES}
        self.batch_rows = metrics.Histogram(families.ROW_BOUNDS)

    def answer(self, times: tuple[int, ...]) -> None:
        begin_ns, *ends, ended_ns = times
        self.latency.observe((ended_ns - begin_ns) / 1e9)
        for stage, end_ns in zip(self.stages.values(), ends, strict=True):
            if end_ns:
                stage.observe((end_ns - begin_ns) / 1e9)
                begin_ns = end_ns

    def are_equal(self) -> bool:
        pairs = [
            (self.many.latency, self.latency), (self.many.batch_rows, self.batch_rows),
            *((self.many.stages[name], stage) for name, stage in self.stages.items()),
        ]  # fmt: skip
        return all(many.cells.tolist() == each.cells.tolist() for many, each in pairs)


def _parted(values: list[Any], seed: int) -> list[list[Any]]:
    """The same values in parts, none of them empty."""
    cuts = sorted(random.Random(seed).sample(range(1, len(values)), (len(values) - 1) // 2))
    return [values[a:b] for a, b in zip([0, *cuts], [*cuts, len(values)], strict=True)]


@given(_ANSWERS, st.integers(0, 9))
def test_answers_of_any_times_are_counted_as_one_by_one(
    answers: list[tuple[int, ...]], seed: int
) -> None:
    pair = _Pair()
    for times in answers:
        pair.answer(times)
    for part in _parted(answers, seed):
        pair.many.count_answers(part)
    assert pair.are_equal()


@given(_RUNS, st.integers(0, 9))
def test_runs_of_any_sizes_are_counted_as_one_by_one(
    runs: list[tuple[int, int]], seed: int
) -> None:
    pair, busy_s = _Pair(), 0.0
    batches: dict[int, tuple[int, int]] = {}
    for num_rows, time_ns in runs:
        size = min(num_rows, 1024)
        pair.batch_rows.observe(size)
        busy_s += time_ns / 1e9
        count, total_ns = batches.get(size, (0, 0))
        batches[size] = count + 1, total_ns + time_ns
    for part in _parted(runs, seed):
        pair.many.count_runs(part)
    assert pair.are_equal()
    assert pair.many.batches == batches
    assert pair.many.busy.value == busy_s


@given(st.integers(0, 1 << 32))
def test_sums_of_as_many_as_are_kept_round_as_one_by_one(seed: int) -> None:
    pair, dice = _Pair(), random.Random(seed)
    for _ in range(2):
        answers = []
        for _ in range(meters.MOST_KEPT):
            times = list(itertools.accumulate(dice.randrange(1, 10**9) for _ in range(8)))
            answers.append(tuple(end_ns * dice.choice((0, 1, 1)) for end_ns in times))
        for times_of_one in answers:
            pair.answer(times_of_one)
        pair.many.count_answers(answers)
        assert pair.are_equal()


def test_what_is_kept_of_an_answer_is_its_begin_its_stages_and_its_end() -> None:
    done = timeline.Timeline(context.Context(b"1" * 32, b"2" * 16, is_sampled=False), 10)
    done.read_ns, done.parsed_ns = 11, 12
    done.run(13, 14, 15)
    done.rendered_ns, done.ended_ns = 16, 17
    assert ledger.times_of(done) == (10, *done.ends, 17) == tuple(range(10, 18))


def test_a_stage_that_did_not_happen_is_skipped_and_the_next_begins_before_it() -> None:
    pair = _Pair()
    pair.many.count_answers([(10**9, 2 * 10**9, 0, 0, 0, 5 * 10**9, 0, 9 * 10**9)])
    counts = {name: (each.count, each.total) for name, each in pair.many.stages.items()}
    assert counts == {
        "read": (1, 1.0), "parse": (0, 0.0), "queue": (0, 0.0), "batch": (0, 0.0),
        "compute": (1, 3.0), "render": (0, 0.0),
    }  # fmt: skip
    assert (pair.many.latency.count, pair.many.latency.total) == (1, 8.0)
