"""The settings of a lane and of flow control, each with what it is for.

Plain data: the contract of a model says them, the server hands them down.
"""

from __future__ import annotations

from dataclasses import dataclass

MILLISECOND = 1_000_000
SECOND = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Marks:
    """When a lane that fills up begins to refuse, and when it stops."""

    high: float = 0.8
    """How full the lane is, as a share of its tightest bound, when the least important class is
    refused; more important ones follow in even steps, and the first only when all is full."""

    low: float = 0.6
    """How full it is when the least important class is let in again. The distance to ``high`` is
    the same for all classes: it keeps a lane at its mark from changing its mind each time."""


@dataclass(frozen=True, slots=True)
class Lane:
    """The queue of one version."""

    max_requests: int = 1024
    """Requests held at once, waiting or running; those given up count until their run is over."""

    max_rows: int = 8192
    """Rows of all requests held."""

    max_bytes: int = 1 << 30
    """Bytes of all requests held."""

    max_batch_rows: int = 1
    """Rows of one run at most; 1 for a model that cannot merge requests."""

    is_row_wise: bool = False
    """Whether rows do not depend on each other, so that a request larger than a batch may be run
    in parts; otherwise it is refused."""

    runs_oversize: bool = False
    """Whether a request larger than a batch that must not be run in parts runs whole, alone,
    instead of being refused: for limits that are ours, and which nobody declared."""

    concurrency: int = 1
    """Batches under way at once."""

    num_classes: int = 3
    """Priority classes; a request of a higher number counts as one of the last class."""

    ageing_ns: int = SECOND
    """A request rises by one class each time it has waited so long. One that rose above the first
    class is passed by none that came later: a request of class c waits at most
    ``(c + 1) * ageing_ns`` and then for what had come before it."""

    max_hold_ns: int = 0
    """After a run, how long the lane may hold back a batch that is not full, for the clients just
    answered to ask again. A lane that has nothing to do always begins at once."""

    refuses_late: bool = True
    """Whether a request that could not be answered by its deadline is refused when that is clear:
    when it comes, or when it would have been run."""

    marks: Marks = Marks()
    """When priority classes are refused as the lane fills up."""

    max_launch_ns: int = 50 * MILLISECOND
    """Batches that take longer from being formed to their run's beginning become smaller; 0: they
    do not."""

    max_queue_ns: int = 500 * MILLISECOND
    """Batches whose oldest request waited longer become smaller, as long as that makes a row no
    more than a quarter dearer; 0: they do not."""

    min_batch_rows: int = 1
    """Batches do not become smaller than this."""

    recovery_runs: int = 16
    """Runs in time, one after the other, until the batch limit grows again by one step."""


@dataclass(frozen=True, slots=True)
class Rate:
    """How often one client may ask one model."""

    per_second: float
    """Requests a second in the long run."""

    burst: int = 1
    """Requests at once after a pause."""


@dataclass(frozen=True, slots=True)
class Breaker:
    """When a version that fails is given a rest."""

    window_ns: int = 10 * SECOND
    """How far back failures count."""

    min_requests: int = 20
    """Requests in the window below which nothing is concluded."""

    failure_share: float = 0.5
    """The share of them that failed, from which the breaker opens."""

    open_ns: int = 5 * SECOND
    """How long it stays open before it tries again; doubled each time the trial fails."""

    max_open_ns: int = 60 * SECOND
    """How long it stays open at most."""

    num_trials: int = 3
    """Requests let through to try, all of which must be answered."""


@dataclass(frozen=True, slots=True)
class Retry:
    """What clients are told about trying again."""

    min_ns: int = 100 * MILLISECOND
    """No client is told to come back sooner."""

    max_ns: int = 30 * SECOND
    """No client is told to come back later."""

    spread: float = 0.25
    """Up to this share is added, different for each request, so that not all come back at once."""

    share: float = 0.1
    """Retries per first attempt that the server bears; beyond it clients are told not to retry."""

    burst: int = 10
    """Retries borne at once after a quiet time."""
