"""What runs together: a batch of parts, and what the caller says about the run afterwards.

A part is a range of rows of one request, nearly always all of them. ``waiting.py`` keeps parts in
order, ``lane.py`` makes batches of them; merging inputs and slicing outputs is the caller's work.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from castiron.scheduler.request import Request

Place = tuple[int, int, int, "Part"]
"""Where a part stands: level, nanoseconds, a number that is different for each, the part."""


class Part:
    """Rows ``begin`` to ``end`` of a request."""

    __slots__ = ("begin", "cohort", "end", "place", "request", "result")

    def __init__(
        self, request: Request, begin: int, end: int, cohort: Hashable | None = None
    ) -> None:
        self.request = request
        self.begin = begin
        self.end = end
        # Parts of a batch that failed merge again only inside the half they were put in.
        self.cohort = cohort
        self.place: Place | None = None
        self.result: Any = None

    def __repr__(self) -> str:
        return f"Part({self.request.id}, {self.begin}:{self.end})"

    @property
    def rows(self) -> int:
        """How many rows it has."""
        return self.end - self.begin

    @property
    def is_whole(self) -> bool:
        """Whether it is all of its request."""
        return self.end - self.begin == self.request.rows

    @property
    def key(self) -> Hashable | None:
        """Parts with equal keys may share a batch; None never does."""
        if self.begin == self.end:
            return None  # no rows: what a run makes of them cannot be told apart
        return self.request.batch_key if self.cohort is None else self.cohort


class Batch:
    """Parts that run together, most urgent first, each of another request."""

    __slots__ = ("formed_ns", "launch_ns", "launched_ns", "parts", "rows")

    def __init__(self, parts: list[Part], formed_ns: int) -> None:
        self.parts = parts
        self.rows = sum(part.end - part.begin for part in parts)
        self.formed_ns = formed_ns
        self.launched_ns = 0
        self.launch_ns = 0  # from being formed to being handed over, less what it had to wait

    def __repr__(self) -> str:
        return f"Batch({self.parts})"

    @property
    def is_abandoned(self) -> bool:
        """Whether nobody waits for any of it any more, so that the run may be stopped."""
        return all(part.request.outcome for part in self.parts)


@dataclass(slots=True)
class Ran:
    """The run went through."""

    results: Sequence[Any]
    """One item for each part of the batch, in order: kept for the request, or ``Failed``."""

    row_counts: Sequence[int] = ()
    """The leading extent of each output. A batch of several parts is believed only when each of
    these is the number of its rows."""


@dataclass(slots=True)
class Failed:
    """The run, or one part of it, failed."""

    error: object
    """What the request that is to blame will be told."""

    is_shared: bool = False
    """Whether it is known that no request is to blame, for example when a process died: all of
    them are told, and nothing is run again to find out."""


Outcome = Ran | Failed
