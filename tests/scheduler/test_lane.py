"""Who runs with whom, in which order, and how much a lane holds."""

from __future__ import annotations

import pytest

from castiron.scheduler import request, settings
from castiron.scheduler.request import Admitted, Refused
from tests.scheduler.lanes import MS, ask, lane_of, learnt, members, ran, take


def test_an_idle_lane_begins_at_once_and_a_busy_one_collects() -> None:
    lane = lane_of()
    first, second, third = ask(), ask(), ask()
    lane.submit(first, 0)
    alone = take(lane, 0)
    lane.submit(second, 1)
    lane.submit(third, 2)
    assert lane.next_batch(2) is None
    lane.finished(alone, ran(alone), 10)
    assert members(alone) == [first]
    assert members(lane.next_batch(10)) == [second, third]
    lane.check()
    assert first.outcome == request.ANSWERED
    assert first.results == [[0]]


def test_only_equal_keys_share_a_batch_and_no_key_runs_alone() -> None:
    lane = lane_of()
    asked = [ask(batch_key=key) for key in ("a", "b", "a", None, None, "b")]
    for one in asked:
        lane.submit(one, 0)
    seen = []
    while lane.num_waiting:
        formed = take(lane, 1)
        seen.append([asked.index(one) for one in members(formed)])
        lane.finished(formed, ran(formed), 1)
    assert seen == [[0, 2], [1, 5], [3], [4]]


def test_a_batch_is_limited_in_rows_not_in_requests() -> None:
    lane = lane_of(max_batch_rows=8)
    asked = [ask(rows=rows) for rows in (3, 4, 2, 1)]
    for one in asked:
        lane.submit(one, 0)
    formed = take(lane, 0)
    assert members(formed) == asked[:2]  # the third does not fit, and the fourth may not pass it
    assert formed.rows == 7


def test_the_earliest_deadline_of_the_first_class_goes_first() -> None:
    lane = lane_of(max_batch_rows=1)
    running = ask()
    lane.submit(running, 0)
    formed = take(lane, 0)
    late, soon = ask(priority=1, timeout_ns=90 * MS), ask(priority=1, timeout_ns=80 * MS)
    important = ask(priority=0, timeout_ns=500 * MS)
    for one in (late, soon, important):
        lane.submit(one, 0)
    order = []
    while lane.num_running:
        lane.finished(formed, ran(formed), 1)
        order += members(formed)
        if lane.num_waiting:
            formed = take(lane, 1)
    assert order == [running, important, soon, late]


def test_a_request_that_aged_past_all_classes_is_passed_by_none_that_came_later() -> None:
    """The bound of the settings: (c + 1) * ageing, and then what had come before."""
    lane = lane_of(max_batch_rows=1, ageing_ns=10 * MS, refuses_late=False)
    poor = ask(priority=2, timeout_ns=900 * MS)
    lane.submit(ask(), 0)
    formed = take(lane, 0)
    lane.submit(poor, 0)
    begun_ns = None
    for now in range(MS, 100 * MS, MS):
        lane.submit(ask(now, timeout_ns=50 * MS), now)  # as many as can be served: always a rival
        lane.finished(formed, ran(formed), now)
        formed = take(lane, now)
        if members(formed) == [poor]:
            begun_ns = now
            break
    assert begun_ns == 30 * MS


def test_a_larger_request_is_split_when_rows_do_not_depend_on_each_other() -> None:
    lane = lane_of(max_batch_rows=8, is_row_wise=True)
    large, small = ask(rows=19), ask(rows=2, timeout_ns=2000 * MS)
    lane.submit(large, 0)
    lane.submit(small, 0)
    sizes = []
    while lane.num_waiting:
        formed = take(lane, 0)
        sizes.append([part.rows for part in formed.parts])
        lane.check()
        lane.finished(formed, ran(formed), 0)
    assert sizes == [[8], [8], [3, 2]]
    assert [row for result in large.results for row in result] == list(range(19))
    assert large.outcome == small.outcome == request.ANSWERED


def test_parts_that_end_in_another_order_are_put_in_order() -> None:
    lane = lane_of(max_batch_rows=4, is_row_wise=True, concurrency=3)
    large = ask(rows=10)
    lane.submit(large, 0)
    under_way = [take(lane, 0) for _ in range(3)]
    for formed in reversed(under_way):
        assert not large.outcome
        lane.finished(formed, ran(formed), 1)
    assert large.results == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_a_larger_request_is_refused_when_rows_may_depend_on_each_other() -> None:
    lane = lane_of(max_batch_rows=8)
    large = ask(rows=9)
    assert lane.submit(large, 0) == Refused(request.TOO_LARGE, 0)
    assert (large.outcome, large.reason) == (request.REFUSED, request.TOO_LARGE)


def test_what_could_never_be_held_is_too_large_and_not_told_to_come_back() -> None:
    lane = lane_of(max_bytes=100, max_rows=20, is_row_wise=True)
    assert lane.submit(ask(size_bytes=101), 0) == Refused(request.TOO_LARGE, 0)
    assert lane.submit(ask(rows=21), 0) == Refused(request.TOO_LARGE, 0)


@pytest.mark.parametrize(
    "bound, each",
    [("max_requests", {}), ("max_rows", {"rows": 2}), ("max_bytes", {"size_bytes": 2})],
)
def test_bounds_are_exact(bound: str, each: dict[str, int]) -> None:
    lane = lane_of(num_classes=1, **{bound: 6})
    fitting = 6 if bound == "max_requests" else 3
    for _ in range(fitting):
        assert isinstance(lane.submit(ask(**each), 0), Admitted)
    answer = lane.submit(ask(**each), 0)
    assert isinstance(answer, Refused)
    assert answer.reason == request.FULL
    assert answer.retry_after_ns > 0
    lane.check()


def test_a_lane_that_filled_up_refuses_until_it_is_down_to_its_low_mark() -> None:
    marks = settings.Marks(high=1.0, low=0.5)
    lane = lane_of(max_requests=10, num_classes=1, max_batch_rows=1, marks=marks)
    for _ in range(10):
        lane.submit(ask(), 0)
    held = []
    for now in range(1, 8):
        answer = lane.submit(ask(now), now)
        held.append((len(lane.held), isinstance(answer, Admitted)))
        formed = take(lane, now)
        lane.finished(formed, ran(formed), now)
    assert held == [
        (10, False), (9, False), (8, False), (7, False), (6, False), (6, True), (6, True)
    ]  # fmt: skip


def test_less_important_classes_are_refused_first() -> None:
    lane = lane_of(max_requests=10, max_batch_rows=1, marks=settings.Marks(0.6, 0.4))
    last: dict[int, int] = {}
    for _ in range(12):
        for priority in (2, 1, 0):
            if isinstance(lane.submit(ask(priority=priority), 0), Admitted):
                last[priority] = len(lane.held)
    assert last == {2: 4, 1: 7, 0: 10}  # refused from 6 and from 8 on
    shed = ask(priority=2)
    lane.cancel(next(iter(lane.held)), 0)
    answer = lane.submit(shed, 0)
    assert isinstance(answer, Refused)
    assert (answer.reason, shed.outcome) == (request.SHED, request.REFUSED)


def test_a_request_that_is_never_split_is_foreseen_as_one_run() -> None:
    lane = lane_of(runs_oversize=True, max_rows=1 << 30)
    now = learnt(lane, 1 * MS)
    lane.submit(ask(now), now)
    take(lane, now)  # busy, so that what is hopeless is refused
    large = ask(now, rows=100_000, timeout_ns=50 * MS)
    assert lane.ready_ns(large, now) - now <= 3 * MS
    assert isinstance(lane.submit(large, now), Admitted)
    split = lane_of(is_row_wise=True)
    now = learnt(split, 1 * MS)
    assert split.ready_ns(ask(now, rows=800), now) - now >= 100 * MS
