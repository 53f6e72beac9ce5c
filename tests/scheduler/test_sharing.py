"""Several lanes before one executor."""

from __future__ import annotations

from castiron.scheduler import sharing
from castiron.scheduler.request import Request
from tests.scheduler.lanes import MS, ask, lane_of, members, ran


def test_lanes_before_one_executor_take_turns_by_urgency() -> None:
    lanes = [lane_of(concurrency=2), lane_of(concurrency=2), lane_of(concurrency=2)]
    shared = sharing.Sharing(depth=2)
    shared.lanes += lanes
    for lane, timeout_ns in zip(lanes, (30 * MS, 10 * MS, 20 * MS), strict=True):
        lane.submit(ask(timeout_ns=timeout_ns), 0)
    order = []
    while (found := shared.next_batch(0)) is not None:
        order.append(found)
    assert [lanes.index(lane) for lane, _ in order] == [1, 2]
    lane, formed = order[0]
    lane.finished(formed, ran(formed), 1)
    found = shared.next_batch(1)
    assert found is not None
    assert found[0] is lanes[0]
    assert shared.next_batch(1) is None


def test_a_busy_lane_starves_no_other() -> None:
    busy, quiet = lane_of(max_batch_rows=1, ageing_ns=10 * MS), lane_of(ageing_ns=10 * MS)
    shared = sharing.Sharing(depth=1)
    shared.lanes += [busy, quiet]
    poor = ask(priority=2, timeout_ns=900 * MS)
    quiet.submit(poor, 0)
    begun: dict[Request, int] = {}
    for now in range(0, 60 * MS, MS):
        for _ in range(2):
            busy.submit(ask(now, timeout_ns=50 * MS), now)
        found = shared.next_batch(now)
        assert found is not None
        lane, formed = found
        begun.update(dict.fromkeys(members(formed), now))
        lane.finished(formed, ran(formed), now + MS)
    assert begun[poor] <= 31 * MS + MS


def test_a_lane_whose_work_has_expired_does_not_stop_the_others() -> None:
    lanes = [lane_of(), lane_of()]
    shared = sharing.Sharing(depth=1)
    shared.lanes += lanes
    lanes[0].submit(ask(timeout_ns=MS), 0)
    live = ask(timeout_ns=50 * MS)
    lanes[1].submit(live, 0)
    found = shared.next_batch(2 * MS)
    assert found is not None
    assert members(found[1]) == [live]
