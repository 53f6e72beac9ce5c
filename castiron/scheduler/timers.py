"""When the lane must be woken: the deadlines and the risings of the requests it holds.

A heap with lazy deletion: entries of settled requests are passed over, and cleared away once they
are the majority, so that it never keeps much of what is gone. ``lane.py`` says what is due.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heapify, heappop, heappush

from castiron.scheduler.request import Request

_MIN_CLEARED = 64


class Timers:
    """Requests by the time at which something happens to them; ``held`` says which still live.

    Entries hold the id of a request alone, so that one that is settled leaves no memory behind.
    """

    __slots__ = ("_heap", "_held")

    def __init__(self, held: Mapping[int, Request]) -> None:
        self._held = held
        self._heap: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def next_ns(self) -> int | None:
        """When something is due for a request that is not settled."""
        heap = self._heap
        while heap and not self._is_live(heap[0]):
            heappop(heap)
        return heap[0][0] if heap else None

    def add(self, at_ns: int, asked: Request) -> None:
        """Wake for this request at this time."""
        heappush(self._heap, (at_ns, asked.id))

    def due(self, now: int) -> Request | None:
        """Take out one request whose time has come."""
        heap = self._heap
        while heap and heap[0][0] <= now:
            entry = heappop(heap)
            if self._is_live(entry):
                return self._held[entry[1]]
        return None

    def clear(self) -> None:
        """Drop the settled, when the heap has grown to more than twice what is held."""
        if len(self._heap) > 2 * len(self._held) + _MIN_CLEARED:
            self._heap = [entry for entry in self._heap if self._is_live(entry)]
            heapify(self._heap)

    def _is_live(self, entry: tuple[int, int]) -> bool:
        asked = self._held.get(entry[1])
        return asked is not None and not asked.outcome

    def check(self) -> None:
        """Assert that every request which is not settled will be in time."""
        ids = {entry[1] for entry in self._heap if entry[0] <= self._deadline_ns(entry[1])}
        assert all(asked.outcome or asked.id in ids for asked in self._held.values())

    def _deadline_ns(self, request_id: int) -> int:
        asked = self._held.get(request_id)
        return -1 if asked is None else asked.deadline_ns
