"""What a lane promises, one sentence at a time."""

from __future__ import annotations

import itertools
from typing import Any

from castiron.scheduler import request, settings
from castiron.scheduler.batch import Batch, Ran
from castiron.scheduler.lane import Lane
from castiron.scheduler.request import Request

MS = settings.MILLISECOND
_ids = itertools.count(1)


def ask(now: int = 0, *, timeout_ns: int = 1000 * MS, **given: Any) -> Request:
    given.setdefault("batch_key", "same")
    return Request(next(_ids), now, now + timeout_ns, **given)


def ran(formed: Batch) -> Ran:
    results = [list(range(part.begin, part.end)) for part in formed.parts]
    return Ran(results, [formed.rows])


def members(formed: Batch | None) -> list[Request]:
    return [] if formed is None else [part.request for part in formed.parts]


def lane_of(**given: Any) -> Lane:
    given.setdefault("max_batch_rows", 8)
    return Lane(settings.Lane(**given))


def take(lane: Lane, now: int) -> Batch:
    formed = lane.next_batch(now)
    assert formed is not None
    return formed


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
