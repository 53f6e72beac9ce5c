"""Many lanes before one executor, which takes only so many batches at once.

Gives turns to the lane whose next batch is most urgent. Since ageing makes what waits long urgent,
by arrival, in every lane, no lane starves another. Starting batches is the caller's work.
"""

from __future__ import annotations

from castiron.scheduler.batch import Batch
from castiron.scheduler.lane import Lane


class Sharing:
    """The lanes, and how many batches of theirs may be under way together."""

    __slots__ = ("depth", "lanes")

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.lanes: list[Lane] = []

    @property
    def num_running(self) -> int:
        """Batches under way, of all lanes."""
        return sum(lane.num_running for lane in self.lanes)

    def next_batch(self, now: int) -> tuple[Lane, Batch] | None:
        """The batch to run now and its lane; None when nothing waits, or enough is under way."""
        while self.num_running < self.depth:
            chosen: Lane | None = None
            least: tuple[int, int] | None = None
            for lane in self.lanes:
                urgency = lane.urgency(now)
                if urgency is not None and (least is None or urgency < least):
                    chosen, least = lane, urgency
            if chosen is None:
                return None
            formed = chosen.next_batch(now)
            if formed is not None:
                return chosen, formed
        return None
