"""Deadlines under three times overload, live: over both protocols and inside one process."""

from __future__ import annotations

from pathlib import Path

import pytest
import uvloop

from bench.deadlines import __main__ as deadlines
from bench.deadlines import load, model


def ended(after_s: float, total_s: float, code: int = 200) -> load.Ended:
    planned = load.Planned(0, 0.0, timeout_s=0.1)
    return load.Ended(planned, load.Answer(code, total_s), 0.0, after_s)


def test_lateness_is_after_the_deadline_and_those_who_left_do_not_count() -> None:
    told = load.Told("rest", 1.0, [ended(0.2, 0.11), ended(9, 9, load.LEFT)], runs=1, wasted=0)
    assert told.late_ms(1, by_server=True) == pytest.approx(10)
    assert told.late_ms(1, by_server=False) == pytest.approx(100)
    assert (told.count(200), told.count(load.LEFT)) == (1, 1)


def test_a_plan_is_an_open_loop_of_random_deadlines() -> None:
    planned = load.plan(4000, per_second=1000)
    assert 3.5 < planned[-1].at_s < 4.5
    assert min(each.timeout_s for each in planned) >= 0.005
    assert max(each.timeout_s for each in planned) <= 0.2
    leaving = [each for each in planned if each.leaves_s is not None]
    assert 100 < len(leaving) < 300
    assert all(each.leaves_s <= each.timeout_s for each in leaving if each.leaves_s is not None)


def test_inside_nothing_runs_after_its_end_and_each_request_has_an_outcome(tmp_path: Path) -> None:
    model.save(tmp_path / "models")
    told = uvloop.run(deadlines.within(tmp_path, 600, 3.0))
    assert told.count(200, 503, 504, load.LEFT) == 600
    assert told.count(200) > 20
    assert told.count(503, 504) > 100
    assert told.after_end == 0
    assert told.runs <= told.count(200) + told.wasted + told.count(504, load.LEFT)


@pytest.mark.slow
def test_three_thousand_live_requests_are_decided_by_their_deadlines(tmp_path: Path) -> None:
    """At p99.9 within 5 ms on a quiet machine, as ``python -m bench.deadlines`` shows; here within
    what other programs on the machine may take."""
    model.save(tmp_path / "models")
    for told in deadlines.measure(tmp_path, deadlines.WAYS, 3000, 3.0):
        assert told.count(200, 503, 504, load.LEFT) == 3000
        assert told.count(200) > 100
        assert told.late_ms(0.99, by_server=True) < 50
        assert not told.after_end


def test_the_table_has_a_line_for_each_way() -> None:
    told = load.Told("grpc", 900.0, [ended(0.05, 0.04)], runs=1, wasted=0)
    assert "| grpc" in deadlines.report([told])
