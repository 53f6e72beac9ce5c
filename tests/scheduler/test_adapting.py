"""What a lane learns from its runs: whom to refuse, when to wait, how large batches are."""

from __future__ import annotations

from castiron.scheduler import request
from castiron.scheduler.lane import Lane
from castiron.scheduler.request import Admitted, Refused
from castiron.scheduler.settings import SECOND
from tests.scheduler.lanes import MS, ask, lane_of, learnt, members, ran, take


def test_what_would_be_ready_too_late_is_refused_when_it_comes() -> None:
    lane = lane_of(max_batch_rows=1)
    now = learnt(lane, 10 * MS)
    for _ in range(3):
        assert isinstance(lane.submit(ask(now), now), Admitted)
    take(lane, now)
    late = ask(now, timeout_ns=25 * MS, priority=1)
    answer = lane.submit(late, now)
    assert isinstance(answer, Refused)
    assert answer.reason == late.reason == request.TOO_LATE
    assert 10 * MS < answer.retry_after_ns < 20 * MS  # ready after 40, allowed 25
    urgent = ask(now, timeout_ns=25 * MS)  # passes those that wait, so that it will be in time
    assert isinstance(lane.submit(urgent, now), Admitted)


def test_an_idle_lane_tries_what_it_expects_to_be_late_and_so_learns_that_it_got_faster() -> None:
    lane = lane_of(max_batch_rows=1)
    now = learnt(lane, 10 * MS)
    outcomes = []
    for _ in range(40):
        one = ask(now, timeout_ns=5 * MS)
        assert isinstance(lane.submit(one, now), Admitted)
        formed = take(lane, now)
        now += MS
        lane.finished(formed, ran(formed), now)
        outcomes.append(one.outcome)
    assert outcomes == [request.ANSWERED] * 40
    assert lane.costs.run_ns(1) < 2 * MS


def burst(lane: Lane, now: int, count: int, timeout_ns: int) -> list[Admitted | Refused]:
    """So many requests at once."""
    return [lane.submit(ask(now, timeout_ns=timeout_ns), now) for _ in range(count)]


def worked_off(lane: Lane, now: int, run_ns: int) -> int:
    """Run all that waits, each run taking so long; when that was done."""
    while (formed := lane.next_batch(now)) is not None:
        now += run_ns
        lane.finished(formed, ran(formed), now)
    return now


def test_nobody_is_refused_for_the_first_runs_which_were_cold() -> None:
    lane = lane_of(max_batch_rows=1)
    now = 0
    for number in range(6):
        answers = burst(lane, now, 1, timeout_ns=20 * MS)
        formed = take(lane, now)
        answers += burst(lane, now, 1, timeout_ns=20 * MS)
        assert all(isinstance(answer, Admitted) for answer in answers), number
        now += 100 * MS if number < 2 else 2 * MS
        lane.finished(formed, ran(formed), now)
        now = worked_off(lane, now, 2 * MS)
    # By now it knows, and what it knows is not what the cold ones took.
    assert lane.costs.is_sure
    answers = burst(lane, now, 5, timeout_ns=20 * MS)
    take(lane, now)
    assert all(isinstance(answer, Admitted) for answer in answers)
    assert isinstance(burst(lane, now, 30, timeout_ns=20 * MS)[-1], Refused)


def test_a_lane_that_grew_slow_and_is_fast_again_refuses_for_a_few_runs_only() -> None:
    lane = lane_of(max_batch_rows=1)
    now = learnt(lane, 2 * MS)
    now = learnt(lane, 200 * MS, now)  # another program had the processor
    num_refused = 0
    for number in range(200):
        answers = burst(lane, now, 2, timeout_ns=30 * MS)
        assert isinstance(answers[0], Admitted)  # the lane is idle
        num_refused += isinstance(answers[1], Refused)
        now = worked_off(lane, now, 2 * MS)
        if number > 40:
            assert isinstance(answers[1], Admitted), "it does not learn"
    assert 0 < num_refused < 40


def test_what_was_learnt_long_ago_refuses_nobody() -> None:
    outcomes = {}
    for pause_s in (0, 60):
        lane = lane_of(max_batch_rows=1)
        now = learnt(lane, 200 * MS) + pause_s * SECOND
        outcomes[pause_s] = burst(lane, now, 3, timeout_ns=30 * MS)
    assert [type(answer) for answer in outcomes[0]] == [Admitted, Refused, Refused]
    assert [type(answer) for answer in outcomes[60]] == [Admitted] * 3


def test_runs_that_take_long_are_believed_while_one_goes_on() -> None:
    lane = lane_of(max_batch_rows=1)
    now = learnt(lane, 30 * SECOND)
    lane.submit(ask(now, timeout_ns=100 * SECOND), now)
    take(lane, now)
    now += 25 * SECOND
    assert isinstance(lane.submit(ask(now, timeout_ns=20 * SECOND), now), Refused)
    assert isinstance(lane.submit(ask(now, timeout_ns=40 * SECOND), now), Admitted)


def test_work_that_can_no_longer_be_in_time_makes_room_for_work_that_can() -> None:
    lane = lane_of(max_batch_rows=1)
    now = learnt(lane, 10 * MS)
    lane.submit(ask(now), now)
    formed = take(lane, now)
    tight, easy = ask(now, timeout_ns=25 * MS), ask(now)
    lane.submit(tight, now)
    lane.submit(easy, now)
    now += 20 * MS  # the run before it took twice the usual time
    lane.finished(formed, ran(formed), now)
    assert members(take(lane, now)) == [easy]
    assert (tight.outcome, tight.reason) == (request.REFUSED, request.TOO_LATE)


def test_a_lane_may_hold_back_after_a_run_but_not_for_long() -> None:
    lane = lane_of(max_batch_rows=4, max_hold_ns=2 * MS)
    lane.submit(ask(), 0)
    formed = take(lane, 0)
    waiting = ask(MS)
    lane.submit(waiting, MS)
    lane.finished(formed, ran(formed), 10 * MS)
    assert lane.next_batch(10 * MS) is None
    assert lane.next_wake_ns == 12 * MS
    joined = ask(11 * MS)
    lane.submit(joined, 11 * MS)
    assert lane.next_batch(11 * MS) is None
    assert members(lane.next_batch(12 * MS)) == [waiting, joined]


def test_a_full_batch_is_not_held_back_and_neither_is_one_whose_deadline_is_near() -> None:
    for timeout_ns, count in ((1000 * MS, 4), (12 * MS, 1)):
        lane = lane_of(max_batch_rows=4, max_hold_ns=2 * MS, refuses_late=False)
        lane.submit(ask(), 0)
        formed = take(lane, 0)
        asked = [ask(timeout_ns=timeout_ns) for _ in range(count)]
        for one in asked:
            lane.submit(one, 0)
        lane.finished(formed, ran(formed), 10 * MS)
        assert members(lane.next_batch(10 * MS)) == asked


def test_a_lane_with_nothing_to_do_holds_nothing_back() -> None:
    lane = lane_of(max_batch_rows=4, max_hold_ns=50 * MS)
    now = 0
    for _ in range(5):
        one = ask(now)
        lane.submit(one, now)
        formed = take(lane, now)
        now += MS
        lane.finished(formed, ran(formed), now)
        now += 100


def test_a_newcomer_does_not_wait_for_what_was_held_back_and_then_left() -> None:
    lane = lane_of(max_batch_rows=4, max_hold_ns=5 * MS)
    lane.submit(ask(), 0)
    formed = take(lane, 0)
    waiting = ask(MS)
    lane.submit(waiting, MS)
    lane.finished(formed, ran(formed), 10 * MS)
    assert lane.next_batch(10 * MS) is None
    lane.cancel(waiting.id, 11 * MS)
    newcomer = ask(12 * MS)
    lane.submit(newcomer, 12 * MS)
    assert members(lane.next_batch(12 * MS)) == [newcomer]


def test_batches_become_smaller_when_launches_take_long_and_grow_again_slowly() -> None:
    lane = lane_of(max_batch_rows=32, max_launch_ns=5 * MS, recovery_runs=4)
    now = 0
    limits = []
    for number in range(40):
        lane.submit(ask(now), now)
        formed = take(lane, now)
        now += 6 * MS if number < 3 else MS
        assert lane.launch(formed, now)
        lane.finished(formed, ran(formed), now + MS)
        now += MS
        limits.append(lane.limit.rows)
    assert limits[:3] == [16, 8, 4]
    assert limits[3:11] == [4, 4, 4, 6, 6, 6, 6, 8]
    assert lane.limit.num_lowered == 3


def test_what_putting_a_batch_together_takes_makes_it_smaller_too() -> None:
    """A millisecond for each row: a batch of four is the largest within the threshold."""
    lane = lane_of(max_batch_rows=32, max_launch_ns=5 * MS, recovery_runs=1000)
    now = 0
    for _ in range(10):
        for _ in range(32):
            lane.submit(ask(now, timeout_ns=10**12), now)
        formed = take(lane, now)
        assert lane.launch(formed, now)
        now += formed.rows * MS
        lane.handed(formed, now)
        now += MS
        lane.finished(formed, ran(formed), now)
        for asked in list(lane.held.values()):
            lane.cancel(asked.id, now)
    assert lane.limit.rows == 4
    assert lane.limit.num_lowered == 3


def test_a_long_queue_makes_batches_smaller_only_as_far_as_rows_stay_cheap() -> None:
    found = {}
    for name, run_ns in (("by the row", lambda rows: rows * MS), ("by the run", lambda _: 8 * MS)):
        lane = lane_of(max_batch_rows=16, max_queue_ns=20 * MS, refuses_late=False)
        now = 0
        for number in range(60):
            for _ in range(number % 7 + 16):
                lane.submit(ask(now, timeout_ns=10**12), now)
            formed = take(lane, now)
            now += run_ns(formed.rows)
            lane.finished(formed, ran(formed), now)
        found[name] = lane.limit.rows
    assert found["by the row"] <= 2
    assert found["by the run"] == 16


def test_waiting_behind_another_run_is_no_slow_launch() -> None:
    lane = lane_of(max_batch_rows=32, max_launch_ns=5 * MS, concurrency=2)
    first, second = ask(), ask(batch_key="other")
    lane.submit(first, 0)
    lane.submit(second, 0)
    formed = [take(lane, 0), take(lane, 0)]
    assert lane.launch(formed[0], 0)
    lane.finished(formed[0], ran(formed[0]), 100 * MS)
    assert lane.launch(formed[1], 101 * MS)
    lane.finished(formed[1], ran(formed[1]), 200 * MS)
    assert lane.limit.rows == 32
    lane.submit(ask(200 * MS), 200 * MS)
    third = take(lane, 200 * MS)
    assert lane.launch(third, 290 * MS, free_ns=288 * MS)  # other lanes had their turn
    lane.finished(third, ran(third), 300 * MS)
    assert lane.limit.rows == 32


def test_waiting_for_its_own_other_parts_does_not_count_as_a_long_queue() -> None:
    lane = lane_of(max_batch_rows=8, max_queue_ns=50 * MS, is_row_wise=True)
    asked = [ask(timeout_ns=10**12), ask(rows=20, timeout_ns=10**12)]
    for one in asked:
        lane.submit(one, 0)
    now = 0
    while lane.num_waiting:
        formed = take(lane, now)
        now += 40 * MS
        lane.finished(formed, ran(formed), now)
    assert asked[1].outcome == request.ANSWERED
    assert now == 160 * MS
    assert lane.limit.num_lowered == 0


def test_a_free_place_is_no_wait() -> None:
    lane = lane_of(max_batch_rows=1, concurrency=2)
    now = learnt(lane, 10 * MS)
    lane.submit(ask(now), now)
    take(lane, now)
    assert isinstance(lane.submit(ask(now, timeout_ns=15 * MS), now), Admitted)
    take(lane, now)
    assert isinstance(lane.submit(ask(now, timeout_ns=15 * MS), now), Refused)
