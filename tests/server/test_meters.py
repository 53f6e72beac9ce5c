"""What the edge counts, in memory that outlives it."""

from __future__ import annotations

import time
from pathlib import Path

from castiron.server import meters, reports, status
from castiron.telemetry import context, families, metrics, shared, timeline


def _answer(counted: meters.VersionMeters) -> None:
    """One answer of one run, which took a millisecond."""
    done = timeline.Timeline(context.Context(b"", b"", is_sampled=False), time.monotonic_ns())
    done.computed_ns = done.ended_ns = done.accepted_ns + 1_000_000
    counted.count_batch(2, 1_000_000)
    counted.answered_rows += 2
    counted.answered(done)
    counted.end(status.OK)


def _total(page: metrics.Metrics, declared: families.AnyDeclared) -> float:
    """Of all children of a family: a counter's value, how many a histogram counted."""
    children = page.families[declared.name].children.values()
    return sum(child.samples()[-1][2] for child in children)


def test_requests_of_a_dead_worker_are_ended_by_the_next_one(tmp_path: Path) -> None:
    first = meters.Meters(dict, str(tmp_path))
    first.accepted.value += 5
    first.named("m", "1").end(status.OK)
    first.unknown.end(status.NOT_FOUND)
    assert first.in_flight == 3
    assert isinstance(first.page.store, shared.Page)
    first.page.store.close()
    second = meters.Meters(dict, str(tmp_path))
    assert second.in_flight == 0
    assert second.named("m", "1").outcomes[status.OK].value == 1
    assert second.unknown.outcomes[status.FAILED].value == 3
    page = shared.merged(str(tmp_path), second.page)
    ended = page.families[families.ENDED.name].children
    assert sum(child.samples()[0][2] for child in ended.values()) == second.accepted.value == 5


def test_every_family_of_the_edge_is_in_the_table() -> None:
    counted = meters.Meters(lambda: dict.fromkeys(families.POOL, 0.0))
    known = {declared.name: declared for declared in families.ALL}
    for name, family in counted.page.families.items():
        assert known[name] is family.declared
    assert set(families.LANES) <= {name.removeprefix("castiron_") for name in known}


def test_whoever_reads_sees_every_answer_until_then(tmp_path: Path) -> None:
    alone, first, second = (
        meters.Meters(dict, *words) for words in ((), (str(tmp_path), 0), (str(tmp_path), 1))
    )
    for counted in (alone, first):
        _answer(counted.named("m", "1"))
        _answer(counted.named("n", "1"))
    labels = 'model="m",version="1"'
    assert f"castiron_request_seconds_count{{{labels}}} 1" in alone.expose()
    assert f"castiron_request_seconds_count{{{labels}}} 1" in first.expose()
    _answer(first.named("m", "1"))
    first.publish()
    page = second.expose()
    for line in (
        f"castiron_request_seconds_count{{{labels}}} 2",
        f'castiron_stage_seconds_count{{{labels[:-12]},version="1",stage="compute"}} 2',
        f"castiron_runs_total{{{labels}}} 2",
        f"castiron_rows_total{{{labels}}} 4",
        f"castiron_batch_rows_sum{{{labels}}} 4",
    ):
        assert line in page, line
    assert "castiron_device_busy_seconds_total 0.003" in page
    settled = alone.named("m", "1").settled()
    assert settled.batches == {2: (1, 1_000_000)}
    assert abs(settled.last_ms - time.time_ns() // 1_000_000) < 5_000


def test_a_version_keeps_a_bounded_number_of_answers_and_of_runs() -> None:
    counted = meters.Meters(dict)
    answering, running = counted.named("m", "1"), counted.named("m", "2")
    done = timeline.Timeline(context.Context(b"", b"", is_sampled=False), time.monotonic_ns())
    done.ended_ns = done.accepted_ns + 1_000_000
    for index in range(2 * meters.MOST_KEPT):
        kept = index // meters.MOST_KEPT * meters.MOST_KEPT
        assert _total(counted.page, families.LATENCY) == kept
        assert _total(counted.page, families.BATCH_ROWS) == kept
        answering.answered(done)
        running.count_batch(1, 1_000_000)
        assert running.executions == index + 1
    assert _total(counted.page, families.LATENCY) == 2 * meters.MOST_KEPT
    assert _total(counted.page, families.BATCH_ROWS) == 2 * meters.MOST_KEPT


def test_a_successor_goes_on_from_the_runs_and_rows_of_a_dead_worker(tmp_path: Path) -> None:
    first = meters.Meters(dict, str(tmp_path))
    _answer(first.named("m", "1"))
    first.publish()
    assert isinstance(first.page.store, shared.Page)
    first.page.store.close()
    second = meters.Meters(dict, str(tmp_path))
    assert second.named("m", "1").executions == 1
    _answer(second.named("m", "1"))
    second.publish()
    found = [_total(second.page, each) for each in (families.RUNS, families.ROWS, families.LATENCY)]
    assert found == [2, 4, 2]


def test_the_share_of_a_second_that_the_device_ran_is_of_that_second() -> None:
    counted = meters.Meters(dict)
    told = reports.Reports(counted, dict, is_terse=False)
    told.tick(1.0)
    counted.named("m", "1").count_batch(1, 250_000_000)
    counted.publish()
    told.tick(2.0)
    asked = timeline.Timeline(context.Context(b"", b"", is_sampled=False), time.monotonic_ns())
    assert dict(told.headers(asked))[b"x-device-utilization"] == b"0.250"
