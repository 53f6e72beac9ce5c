"""What is learnt about the time that runs take."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, strategies

from castiron.scheduler.estimate import Estimate


def learnt(batch_ns: int, row_ns: int, sizes: list[int], jitter: float = 0.0) -> Estimate:
    dice, costs = random.Random(1), Estimate()
    for rows in sizes:
        costs.observe(rows, int((batch_ns + row_ns * rows) * (1 + jitter * dice.uniform(-1, 1))))
    return costs


def test_a_batch_and_its_rows_are_told_apart() -> None:
    costs = learnt(50_000, 2_000, [1, 3, 8, 2, 5] * 10, jitter=0.01)
    assert costs.batch_ns == pytest.approx(50_000, rel=0.05)
    assert costs.row_ns == pytest.approx(2_000, rel=0.2)
    assert costs.total_ns(20, 8) == pytest.approx(3 * 50_000 + 20 * 2_000, rel=0.05)


def test_runs_of_one_size_only_are_read_hopefully() -> None:
    costs = learnt(50_000, 10_000, [1] * 30)
    assert costs.run_ns(8) == pytest.approx(60_000, abs=1)


def test_it_follows_a_model_that_became_slower() -> None:
    costs = learnt(10_000, 0, [1] * 100)
    for _ in range(30):
        costs.observe(1, 50_000)
    assert costs.run_ns(1) > 45_000


def test_one_run_that_was_held_up_changes_little() -> None:
    costs = learnt(5_000_000, 0, [1] * 30)
    costs.observe(1, 10_000_000_000)
    assert costs.run_ns(1) < 7_000_000


def test_first_runs_that_were_cold_are_forgotten() -> None:
    costs = Estimate()
    for time_ns in (90_000_000, 40_000_000, 2_000_000, 2_100_000):
        costs.observe(1, time_ns)
    assert costs.run_ns(1) == pytest.approx(2_050_000, abs=1)
    assert not costs.is_sure
    for _ in range(4):
        costs.observe(1, 2_000_000)
    assert costs.is_sure
    costs.observe(1, 200_000)  # not cold any more: one that is quicker changes little
    assert costs.run_ns(1) > 1_700_000


def test_small_runs_between_large_ones_make_nothing_be_forgotten_for_long() -> None:
    costs = learnt(100_000, 50_000, [32, 1] * 4)
    assert costs.is_sure
    assert costs.run_ns(32) == pytest.approx(1_700_000, rel=0.05)
    assert costs.run_ns(1) == pytest.approx(150_000, rel=0.05)


def test_rows_are_called_dearer_only_where_both_sizes_were_seen() -> None:
    costs = learnt(80_000, 0, [8, 16] * 5)
    assert costs.is_dearer(8, than=16)
    assert not costs.is_dearer(4, than=16)
    assert not learnt(0, 1000, [8, 16] * 5).is_dearer(8, than=16)


@given(
    strategies.lists(strategies.tuples(strategies.integers(0, 64), strategies.integers(0, 10**9)))
)
def test_no_time_is_ever_negative(seen: list[tuple[int, int]]) -> None:
    costs = Estimate()
    for rows, time_ns in seen:
        costs.observe(rows, time_ns)
    assert costs.row_ns >= 0
    assert costs.batch_ns >= -1e-3
    assert costs.run_ns(1) >= 0
    assert costs.total_ns(100, 8) >= 0
