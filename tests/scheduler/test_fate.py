"""How requests end: each once, in time, and whatever becomes of those beside it."""

from __future__ import annotations

import pytest

from castiron.scheduler import request
from castiron.scheduler.batch import Failed, Ran
from castiron.scheduler.request import Admitted, Refused
from tests.scheduler.lanes import MS, ask, lane_of, members, ran, take


def test_a_request_given_up_counts_until_its_run_is_over() -> None:
    """A place is free only when the work is: else a full lane would take in without bound."""
    lane = lane_of(max_requests=1, num_classes=1)
    first = ask()
    lane.submit(first, 0)
    formed = take(lane, 0)
    assert lane.cancel(first.id, 1)
    assert isinstance(lane.submit(ask(1), 1), Refused)
    assert formed.is_abandoned
    lane.finished(formed, ran(formed), 2)
    assert isinstance(lane.submit(ask(2), 2), Admitted)
    assert first.results == []


def test_a_deadline_is_kept_by_the_timer_while_the_worker_is_busy() -> None:
    lane = lane_of(max_batch_rows=1)
    running, waiting = ask(timeout_ns=20 * MS), ask(timeout_ns=10 * MS)
    lane.submit(running, 0)
    formed = take(lane, 0)
    lane.submit(waiting, 0)
    assert lane.next_wake_ns == 10 * MS
    lane.expire(10 * MS - 1)
    assert lane.take_settled() == []
    lane.expire(10 * MS)
    assert lane.take_settled() == [waiting]
    assert lane.next_wake_ns == 20 * MS
    lane.expire(20 * MS)
    assert lane.take_settled() == [running]
    assert lane.next_wake_ns is None
    lane.finished(formed, ran(formed), 90 * MS)
    assert [running.outcome, waiting.outcome] == [request.EXPIRED, request.EXPIRED]
    assert lane.take_settled() == []
    assert lane.is_idle


def test_a_request_that_comes_after_its_deadline_is_expired_at_once() -> None:
    late = ask(timeout_ns=0)
    assert lane_of().submit(late, 0) == Refused(request.TOO_LATE, 0)
    assert late.outcome == request.EXPIRED


@pytest.mark.parametrize("stage", ["waiting", "formed", "running"])
@pytest.mark.parametrize("chosen", range(16))
def test_whatever_subset_is_cancelled_the_others_are_answered_on_time(
    stage: str, chosen: int
) -> None:
    lane = lane_of()
    asked = [ask() for _ in range(4)]
    gone = [one for number, one in enumerate(asked) if chosen >> number & 1]
    for one in asked:
        lane.submit(one, 0)

    def leave() -> None:
        assert all(lane.cancel(one.id, 1) for one in gone)
        assert not any(lane.cancel(one.id, 1) for one in gone)
        lane.check()

    if stage == "waiting":
        leave()
    formed = lane.next_batch(1)
    if stage == "formed":
        leave()
    if formed is not None and lane.launch(formed, 1):
        assert stage == "running" or not set(gone) & set(members(formed))
        if stage == "running":
            leave()
        lane.finished(formed, ran(formed), 2)
    assert lane.is_idle
    assert {one.outcome for one in gone} <= {request.CANCELLED}
    assert {one.outcome for one in asked if one not in gone} <= {request.ANSWERED}
    assert sorted(one.id for one in lane.take_settled()) == [one.id for one in asked]


@pytest.mark.parametrize("guilty", range(1, 2**5))
def test_a_failed_batch_is_halved_until_the_guilty_are_alone(guilty: int) -> None:
    lane = lane_of()
    asked = [ask() for _ in range(5)]
    bad = [one for number, one in enumerate(asked) if guilty >> number & 1]
    for one in asked:
        lane.submit(one, 0)
    num_runs = 0
    while lane.num_waiting:
        formed = take(lane, 0)
        failed = any(one in bad for one in members(formed))
        lane.finished(formed, Failed("bad") if failed else ran(formed), 0)
        lane.check()
        num_runs += 1
    assert all((one.outcome == request.FAILED) == (one in bad) for one in asked)
    assert all(one.error == ("bad" if one in bad else None) for one in asked)
    assert num_runs <= 1 + 2 * len(bad) * 3  # each guilty one costs two runs for each halving


def test_newcomers_do_not_join_the_halves_of_a_failed_batch() -> None:
    lane = lane_of()
    asked = [ask(), ask()]
    for one in asked:
        lane.submit(one, 0)
    formed = take(lane, 0)
    newcomer = ask(timeout_ns=5000 * MS)
    lane.submit(newcomer, 0)
    lane.finished(formed, Failed("bad"), 0)
    assert members(take(lane, 0)) == [asked[0]]


def test_a_fault_that_is_nobody_s_is_told_to_all_and_not_tried_again() -> None:
    lane = lane_of()
    asked = [ask(), ask(), ask()]
    for one in asked:
        lane.submit(one, 0)
    formed = take(lane, 0)
    lane.finished(formed, Failed("the process died", is_shared=True), 0)
    assert [one.error for one in asked] == ["the process died"] * 3
    assert lane.is_idle


def test_one_member_may_fail_while_the_others_are_answered() -> None:
    lane = lane_of()
    asked = [ask(), ask()]
    for one in asked:
        lane.submit(one, 0)
    lane.finished(take(lane, 0), Ran([Failed("odd"), "fine"], [2]), 0)
    assert [one.outcome for one in asked] == [request.FAILED, request.ANSWERED]
    assert (asked[0].error, asked[1].results) == ("odd", ["fine"])


def test_a_wrong_number_of_rows_is_believed_of_nobody_and_ends_merging() -> None:
    lane = lane_of()
    asked = [ask() for _ in range(3)]
    for one in asked:
        lane.submit(one, 0)
    lane.finished(take(lane, 0), Ran(["a", "b", "c"], [3, 1]), 0)
    assert not lane.is_merging
    for one in asked:
        formed = take(lane, 0)
        assert members(formed) == [one]
        lane.finished(formed, Ran(["alone"], [1]), 0)
    assert [one.results for one in asked] == [["alone"]] * 3
    lane.submit(ask(), 0)
    lane.submit(ask(), 0)
    assert len(take(lane, 0).parts) == 1


def test_a_part_with_a_wrong_number_of_rows_fails_its_request_with_a_reason() -> None:
    lane = lane_of(max_batch_rows=4, is_row_wise=True)
    large = ask(rows=8)
    lane.submit(large, 0)
    lane.finished(take(lane, 0), Ran(["half"], [1]), 0)
    assert large.outcome == request.FAILED
    assert large.error == "4 rows went in, [1] came out"
    assert lane.is_idle


def test_a_request_alone_may_give_as_many_rows_as_it_likes() -> None:
    lane = lane_of()
    alone = ask(rows=3)
    lane.submit(alone, 0)
    lane.finished(take(lane, 0), Ran(["boxes"], [117]), 0)
    assert alone.results == ["boxes"]


def test_a_lane_that_is_closed_takes_nothing_and_finishes_what_it_has() -> None:
    lane = lane_of()
    first = ask()
    lane.submit(first, 0)
    lane.close()
    refused = ask()
    assert lane.submit(refused, 0) == Refused(request.CLOSED, 0)
    formed = take(lane, 0)
    lane.finished(formed, ran(formed), 1)
    assert first.outcome == request.ANSWERED


def test_a_lane_that_gives_up_settles_all_and_waits_for_its_runs() -> None:
    lane = lane_of(max_batch_rows=1)
    asked = [ask(), ask()]
    for one in asked:
        lane.submit(one, 0)
    formed = take(lane, 0)
    lane.give_up()
    assert [one.reason for one in asked] == [request.CLOSED] * 2
    assert list(lane.held.values()) == [asked[0]]
    lane.finished(formed, ran(formed), 1)
    assert lane.is_idle
    assert not lane.held


def test_what_has_expired_takes_no_room_from_a_newcomer() -> None:
    lane = lane_of(max_requests=1, num_classes=1)
    old = ask(timeout_ns=MS)
    lane.submit(old, 0)
    assert isinstance(lane.submit(ask(2 * MS), 2 * MS), Admitted)
    assert lane.take_settled() == [old]
