"""Small pieces that the tests of lanes are written with."""

from __future__ import annotations

import itertools
from typing import Any

from castiron.scheduler import settings
from castiron.scheduler.batch import Batch, Ran
from castiron.scheduler.lane import Lane
from castiron.scheduler.request import Request

MS = settings.MILLISECOND
_numbers = itertools.count(1)


def ask(now: int = 0, *, timeout_ns: int = 1000 * MS, **given: Any) -> Request:
    """A request that comes now."""
    given.setdefault("batch_key", "same")
    return Request(next(_numbers), now, now + timeout_ns, **given)


def ran(formed: Batch) -> Ran:
    """A good outcome, with rows that can be told apart."""
    results = [list(range(part.begin, part.end)) for part in formed.parts]
    return Ran(results, [formed.rows])


def members(formed: Batch | None) -> list[Request]:
    """Whose parts are in the batch."""
    return [] if formed is None else [part.request for part in formed.parts]


def lane_of(**given: Any) -> Lane:
    """A lane that merges eight rows, unless told otherwise."""
    given.setdefault("max_batch_rows", 8)
    return Lane(settings.Lane(**given))


def take(lane: Lane, now: int) -> Batch:
    """The next batch, which there is."""
    formed = lane.next_batch(now)
    assert formed is not None
    return formed


def learnt(lane: Lane, run_ns: int, begin: int = 0) -> int:
    """Let the lane see how long runs of one row take; when it is idle again."""
    now = begin
    for _ in range(20):
        lane.submit(ask(now, timeout_ns=10**12), now)
        formed = take(lane, now)
        now += run_ns
        lane.finished(formed, ran(formed), now)
    return now
