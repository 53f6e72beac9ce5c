"""One request on its way through a lane, and the one outcome it ends with.

Plain data. What the request asks for is ``payload``, which nothing here looks into: the scheduler
knows neither models nor machine code. ``lane.py`` moves requests; the server makes them.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from castiron.scheduler import batch

# Where a request is. SETTLED is the end, whatever the outcome.
NEW = "new"
WAITING = "waiting"
RUNNING = "running"
SETTLED = "settled"

# How it ended.
ANSWERED = "answered"
FAILED = "failed"
REFUSED = "refused"
EXPIRED = "expired"
CANCELLED = "cancelled"
OUTCOMES = (ANSWERED, FAILED, REFUSED, EXPIRED, CANCELLED)

# Why it was refused.
FULL = "full"
"""The lane holds as much as it may: 503, try again after the time given."""
SHED = "shed"
"""The lane is nearly full and keeps what is left for more important requests: 503."""
TOO_LARGE = "too_large"
"""The request alone passes a bound, so that trying again cannot help: 413."""
TOO_LATE = "too_late"
"""It would be ready only after its deadline: 503, or 504 when the deadline has passed."""
CLOSED = "closed"
"""The version is being taken away: 503."""
RATE = "rate"
"""The client asks more often than it may: 429."""
BROKEN = "broken"
"""The version fails too often and is given a rest: 503."""


@dataclass(slots=True, eq=False)
class Request:
    """What the scheduler knows of a request. Times are nanoseconds of one monotonic clock."""

    id: int
    """Names it in its lane: no two requests that the lane holds share one."""

    arrival_ns: int
    """When it came; its waiting time counts from here."""

    deadline_ns: int
    """When it is settled at the latest, by a timer, whatever runs then."""

    rows: int = 1
    """Its share of a batch: the extent of the batch dim; 1 for a model without one."""

    size_bytes: int = 0
    """Memory held as long as the lane holds the request."""

    priority: int = 0
    """Its class: 0 is the most important one."""

    batch_key: Hashable | None = None
    """Requests merge only when their keys are equal: a hash of outputs asked for, parameters,
    trailing dims and dtypes. None: it always runs alone."""

    client: str = ""
    """Who asks, for rate limits."""

    model: str = ""
    """What is asked, for rate limits and messages."""

    payload: Any = None
    """The caller's own: inputs, and whom to tell."""

    timeline: Any = None
    """Where its owner notes what happened when; the scheduler looks at no time of it."""

    outcome: str = ""
    """One of OUTCOMES once it is settled."""

    reason: str = ""
    """Why it was refused; for other outcomes a word or nothing."""

    error: object = None
    """What the run failed with, when it failed."""

    results: list[Any] = field(default_factory=list)
    """What its runs handed back, in order of rows: one item, or one for each part of it."""

    waiting: list[batch.Part] = field(default_factory=list, repr=False)
    """Kept by the lane: its parts that wait; more than one only when it was split."""

    running: int = 0
    """Kept by the lane: how many of its parts are in a batch under way."""

    ended: list[batch.Part] = field(default_factory=list, repr=False)
    """Kept by the lane: its parts that ran well."""

    @property
    def state(self) -> str:
        """NEW, WAITING, RUNNING or SETTLED; a settled one may still have a run under way."""
        if self.outcome:
            return SETTLED
        if self.running:
            return RUNNING
        return WAITING if self.waiting else NEW

    @property
    def is_cancelled(self) -> bool:
        """Whether its client gave it up."""
        return self.outcome == CANCELLED

    def settle(self, outcome: str, reason: str = "", error: object = None) -> None:
        """Give it its outcome, which is the only one."""
        assert not self.outcome, f"request {self.id} is {self.outcome}, and now {outcome}"
        assert outcome in OUTCOMES, outcome
        self.outcome = outcome
        self.reason = reason
        self.error = error


@dataclass(slots=True)
class Admitted:
    """The lane holds the request and will settle it."""

    ready_ns: int
    """When it is likely to be answered; the present time when nothing is known yet."""


@dataclass(slots=True)
class Refused:
    """The lane did not take the request; it is settled."""

    reason: str
    """One of the reasons of this file."""

    retry_after_ns: int
    """How long the client should wait; 0 when trying again cannot help."""
