"""A lane in virtual time, with everything it must hold checked from outside after each event.

The checks use what the requests say and nothing that the lane keeps: who waits, who runs and who
is next is worked out here a second time, slowly.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from castiron.scheduler import request, settings
from castiron.scheduler.batch import Batch, Failed, Part, Ran
from castiron.scheduler.lane import Lane
from castiron.scheduler.request import Admitted, Refused, Request

US = 1_000
MS = settings.MILLISECOND


@dataclass
class Run:
    """A batch that was run: when, and with what ranges of rows of whom."""

    begun_ns: int
    ended_ns: int
    ranges: list[tuple[int, int, int]]


@dataclass
class Simulator:
    """Runs requests through a lane; ``run_ns`` says how long so many rows take."""

    given: settings.Lane
    run_ns: Callable[[int], int]
    bad: frozenset[int] = frozenset()
    launch_ns: int = 0
    is_checked: bool = True
    now: int = 0
    settled: dict[int, int] = field(default_factory=dict)
    refused: dict[int, Refused] = field(default_factory=dict)
    requests: dict[int, Request] = field(default_factory=dict)
    runs: list[Run] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.lane = Lane(self.given)
        self._under_way: list[Batch] = []
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._num_events = 0
        self._woken_ns: int | None = None

    # What happens.

    def at(self, at_ns: int, what: Callable[[], None]) -> None:
        """Do this at that time; what was asked for first is done first."""
        self._num_events += 1
        heapq.heappush(self._events, (at_ns, self._num_events, what))

    def ask(self, asked: Request) -> Request:
        """Let the request come at its arrival."""
        self.requests[asked.id] = asked
        self.at(asked.arrival_ns, lambda: self._submit(asked))
        return asked

    def cancel_at(self, at_ns: int, asked: Request) -> None:
        """Let its client leave at this time."""
        self.at(at_ns, lambda: self._cancel(asked))

    def run(self) -> None:
        """Until nothing is left to happen."""
        while self._events:
            self.now, _, what = heapq.heappop(self._events)
            what()
            self._pump()
        assert self.lane.is_idle, "work was left over"
        assert self.lane.held == {}, "a request was left over"
        for asked in self.requests.values():
            assert asked.outcome, f"{asked} has no outcome"
            assert (asked.id in self.settled) != (asked.id in self.refused), asked

    def _submit(self, asked: Request) -> None:
        answer = self.lane.submit(asked, self.now)
        if isinstance(answer, Admitted):
            assert not asked.outcome
            return
        assert asked.outcome in {request.REFUSED, request.EXPIRED}
        assert answer.retry_after_ns >= 0
        self.refused[asked.id] = answer

    def _cancel(self, asked: Request) -> None:
        had_ended = asked.outcome != "" or self.now >= asked.deadline_ns
        assert self.lane.cancel(asked.id, self.now) != had_ended

    def _pump(self) -> None:
        self.lane.expire(self.now)
        while True:
            waiting = self._parts_waiting() if self.is_checked else []
            formed = self.lane.next_batch(self.now)
            if formed is None:
                break
            if self.is_checked:
                self._check_choice(formed, waiting)
            self._under_way.append(formed)
            self.at(self.now + self.launch_ns, lambda formed=formed: self._launch(formed))  # type: ignore[misc]
        for asked in self.lane.take_settled():
            assert asked.id not in self.settled, "two outcomes"
            assert asked.outcome
            self.settled[asked.id] = self.now
            assert self.now <= asked.deadline_ns, "decided after its deadline"
        if self.is_checked:
            self._check()
        self._set_alarm()

    def _set_alarm(self) -> None:
        wake_ns = self.lane.next_wake_ns
        assert wake_ns is None or wake_ns > self.now, "the lane would be woken without end"
        if wake_ns is not None and wake_ns != self._woken_ns:
            self._woken_ns = wake_ns
            self.at(wake_ns, lambda: None)

    def _launch(self, formed: Batch) -> None:
        if not self.lane.launch(formed, self.now):
            self._under_way.remove(formed)
            return
        for part in formed.parts:
            assert not part.request.outcome, "run after it was settled"
        ended_ns = self.now + self.run_ns(formed.rows)
        ranges = [(part.request.id, part.begin, part.end) for part in formed.parts]
        self.runs.append(Run(self.now, ended_ns, ranges))
        self.at(ended_ns, lambda: self._finish(formed))

    def _finish(self, formed: Batch) -> None:
        self._under_way.remove(formed)
        if any(part.request.id in self.bad for part in formed.parts):
            self.lane.finished(formed, Failed("bad"), self.now)
            return
        results = [[(part.request.id, row) for row in _rows(part)] for part in formed.parts]
        self.lane.finished(formed, Ran(results, [formed.rows, formed.rows]), self.now)

    # What must hold.

    def _parts_waiting(self) -> list[Part]:
        live = [asked for asked in self.requests.values() if not asked.outcome]
        return [part for asked in live for part in asked.waiting]

    def urgency(self, asked: Request) -> tuple[int, int]:
        """Where the request stands now, by the rule in the settings."""
        priority = min(asked.priority, self.given.num_classes - 1)
        risen = (self.now - asked.arrival_ns) // self.given.ageing_ns
        if risen > priority:
            return 0, asked.arrival_ns
        return priority + 1 - risen, asked.deadline_ns

    def _check_choice(self, formed: Batch, waiting: list[Part]) -> None:
        parts = formed.parts
        waiting = [part for part in waiting if not part.request.outcome]
        assert len({part.request.id for part in parts}) == len(parts)
        assert all(not part.request.outcome for part in parts), "chosen after it was settled"
        assert all(self.now < part.request.deadline_ns for part in parts)
        first = parts[0].request
        best = min(self.urgency(part.request) for part in waiting)
        assert self.urgency(first) == best, "another one was more urgent"
        for asked in (part.request for part in waiting):
            if self.urgency(asked)[0] == 0:
                assert first.arrival_ns <= asked.arrival_ns, "an aged request was passed"
        if len(parts) == 1:
            most = self.given.max_batch_rows
            assert formed.rows <= most, "a batch is too large"
            return
        assert formed.rows <= self.lane.limit.rows, "a batch is too large"
        key = parts[0].key
        assert key is not None
        assert all(part.key == key for part in parts), "what may not be merged was merged"
        chosen = [self.urgency(part.request) for part in parts]
        alike = sorted(self.urgency(part.request) for part in waiting if part.key == key)
        assert chosen == alike[: len(parts)], "mates are not the most urgent ones"

    def _check(self) -> None:
        self.lane.check()
        live = [asked for asked in self.requests.values() if asked.waiting]
        running = {part.request.id for formed in self._under_way for part in formed.parts}
        held = running | {asked.id for asked in live}
        rows = sum(self.requests[name].rows for name in held)
        assert len(held) <= self.given.max_requests
        assert rows <= self.given.max_rows
        assert sum(self.requests[name].size_bytes for name in held) <= self.given.max_bytes
        assert self.lane.held.keys() == held
        is_free = len(self._under_way) < self.given.concurrency
        if is_free and not self.given.max_hold_ns:
            assert not live, "the lane is idle while work waits"

    def check_results(self) -> None:
        """Assert that answers are whole, and that only the guilty failed."""
        for asked in self.requests.values():
            if asked.outcome == request.ANSWERED:
                got = [item for result in asked.results for item in result]
                assert got == [(asked.id, row) for row in range(asked.rows)], asked
            else:
                assert asked.results == []
            if asked.outcome == request.FAILED:
                assert asked.id in self.bad, "an innocent request failed"
            assert not (asked.id in self.bad and asked.outcome == request.ANSWERED)


def _rows(part: Part) -> Iterator[int]:
    return iter(range(part.begin, part.end))


def random_lane(dice: random.Random) -> settings.Lane:
    """Small bounds, so that all of them are met."""
    most = dice.choice([1, 4, 8, 8])
    return settings.Lane(
        max_requests=dice.choice([2, 10, 30]),
        max_rows=dice.choice([8, 40, 80]),
        max_bytes=dice.choice([30, 100, 1000]),
        max_batch_rows=most,
        is_row_wise=dice.random() < 0.5,
        concurrency=dice.choice([1, 1, 2, 3]),
        num_classes=dice.choice([1, 2, 3]),
        ageing_ns=dice.choice([500 * US, 2 * MS, 100 * MS]),
        max_hold_ns=dice.choice([0, 0, 0, MS]),
        refuses_late=dice.random() < 0.5,
        marks=dice.choice([settings.Marks(), settings.Marks(1.0, 0.7), settings.Marks(0.5, 0.5)]),
        max_launch_ns=dice.choice([0, 100 * US]),
        max_queue_ns=dice.choice([0, 2 * MS]),
        recovery_runs=2,
    )


def random_requests(dice: random.Random, count: int) -> Iterator[Request]:
    """Requests in bursts, of several keys and classes, some of them too large."""
    now = 0
    is_burst = dice.random() < 0.5
    allowed = dice.choice([0.05, 0.3])  # the share of requests that are odd in one way
    for number in range(count):
        now += dice.choice([0, 0, 0, 50 * US] if is_burst else [0, 100 * US, 3 * MS])
        odd = dice.random() < allowed
        yield Request(
            number,
            now,
            now + dice.choice([0, dice.randrange(3 * MS)] if odd else [5 * MS, 20 * MS, 80 * MS]),
            rows=dice.choice([0, 3, 9, 20] if odd else [1, 1, 1, 2]),
            size_bytes=dice.choice([0, 10, 40] if odd else [1, 5]),
            priority=dice.randrange(4),
            batch_key=dice.choice(["b", None] if odd else ["a", "a", "a", "b"]),
        )


def random_simulation(seed: int, count: int = 16) -> Simulator:
    """One random lane with random work, to be run."""
    dice = random.Random(seed)
    begin, each = dice.choice([50, 500, 2000]) * US, dice.choice([0, 20, 300]) * US
    bad = frozenset(number for number in range(count) if dice.random() < 0.1)
    jitter = dice.choice([0.0, 0.5])
    simulator = Simulator(
        random_lane(dice),
        lambda rows: int((begin + each * rows) * (1 + jitter * dice.random())),
        bad,
        launch_ns=dice.choice([0, 0, 200 * US]),
    )
    for asked in random_requests(dice, count):
        simulator.ask(asked)
        if dice.random() < 0.2:
            leave_ns = asked.arrival_ns + dice.randrange(5 * MS)
            simulator.cancel_at(leave_ns, asked)
    return simulator
