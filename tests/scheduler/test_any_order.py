"""A lane whose caller does anything at any time, and is late with everything."""

from __future__ import annotations

import itertools

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as some
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from castiron.scheduler import request, settings
from castiron.scheduler.batch import Batch, Failed, Outcome, Ran
from castiron.scheduler.lane import Lane
from castiron.scheduler.request import Admitted, Request
from tests.scheduler.lanes import MS

GIVEN = settings.Lane(
    max_requests=8, max_rows=30, max_bytes=60, max_batch_rows=4, is_row_wise=True, concurrency=2,
    ageing_ns=3 * MS, max_hold_ns=MS, max_launch_ns=MS, max_queue_ns=4 * MS, recovery_runs=1,
)  # fmt: skip


class AnyOrder(RuleBasedStateMachine):
    """Events in any order; time passes without the lane being told."""

    def __init__(self) -> None:
        super().__init__()
        self.lane = Lane(GIVEN)
        self.now = 0
        self.asked: list[Request] = []
        self.admitted: set[int] = set()
        self.settled: list[int] = []
        self.under_way: list[Batch] = []

    @rule(
        rows=some.integers(0, 9),
        size_bytes=some.integers(0, 20),
        priority=some.integers(0, 4),
        timeout_ns=some.integers(-MS, 20 * MS),
        key=some.sampled_from(["a", "a", "b", None]),
    )
    def submit(
        self, rows: int, size_bytes: int, priority: int, timeout_ns: int, key: str | None
    ) -> None:
        one = Request(
            len(self.asked), self.now, self.now + timeout_ns, rows, size_bytes, priority, key
        )
        self.asked.append(one)
        if isinstance(self.lane.submit(one, self.now), Admitted):
            self.admitted.add(one.id)
        else:
            assert one.outcome in {request.REFUSED, request.EXPIRED}

    @rule(ns=some.integers(1, 6 * MS))
    def time_passes(self, ns: int) -> None:
        self.now += ns

    @precondition(lambda self: self.asked)
    @rule(data=some.data())
    def cancel(self, data: some.DataObject) -> None:
        one = data.draw(some.sampled_from(self.asked))
        was_late = one.outcome or self.now >= one.deadline_ns
        assert self.lane.cancel(one.id, self.now) == (not was_late)

    @rule()
    def expire(self) -> None:
        self.lane.expire(self.now)
        wake_ns = self.lane.next_wake_ns
        assert wake_ns is None or wake_ns > self.now

    @rule()
    def start(self) -> None:
        formed = self.lane.next_batch(self.now)
        if formed is None:
            assert not self.lane.num_waiting or self.lane.next_wake_ns or len(self.under_way) == 2
            return
        for part in formed.parts:
            assert not part.request.outcome
            assert part.request.deadline_ns > self.now
        self.under_way.append(formed)

    @precondition(lambda self: self.under_way)
    @rule(data=some.data())
    def launch(self, data: some.DataObject) -> None:
        formed = data.draw(some.sampled_from(self.under_way))
        if not formed.launched_ns and not self.lane.launch(formed, self.now):
            self.under_way.remove(formed)

    @precondition(lambda self: self.under_way)
    @rule(data=some.data(), end=some.sampled_from(["good", "good", "bad", "all bad", "odd", "one"]))
    def finish(self, data: some.DataObject, end: str) -> None:
        formed = data.draw(some.sampled_from(self.under_way))
        self.under_way.remove(formed)
        results: list[object] = list(formed.parts)
        if end == "one":
            results[0] = Failed("one")
        outcomes: dict[str, Outcome] = {
            "bad": Failed("bad"),
            "all bad": Failed("all", is_shared=True),
            "odd": Ran(results, [formed.rows + 1]),
        }
        self.lane.finished(formed, outcomes.get(end, Ran(results, [formed.rows])), self.now)

    @invariant()
    def holds(self) -> None:
        self.lane.check()
        self.settled += [one.id for one in self.lane.take_settled()]
        assert len(set(self.settled)) == len(self.settled)
        assert set(self.settled) == {name for name in self.admitted if self.asked[name].outcome}

    def teardown(self) -> None:
        for formed in self.under_way:
            self.lane.finished(formed, Ran(formed.parts, [formed.rows]), self.now)
        while (wake_ns := self.lane.next_wake_ns) is not None:
            assert wake_ns > self.now or self.lane.num_waiting
            self.now = max(self.now, wake_ns)
            self.lane.expire(self.now)
        self.holds()
        assert set(self.settled) == self.admitted
        assert not self.lane.held
        for one in self.asked:
            if one.outcome == request.ANSWERED:
                ranges = [(part.begin, part.end) for part in one.results]
                assert ranges[0][0] == 0
                assert ranges[-1][1] == one.rows
                assert all(a[1] == b[0] for a, b in itertools.pairwise(ranges))


AnyOrder.TestCase.settings = hypothesis_settings(
    max_examples=150, stateful_step_count=40, deadline=None
)
TestAnyOrder = AnyOrder.TestCase
