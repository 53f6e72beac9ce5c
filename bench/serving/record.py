"""What came of many requests: one line each, and the summary of any stretch of time.

Times are seconds from the beginning of the load. A latency counts from the moment at which the
request was meant to leave, so that a request that had to wait for its turn is not flattered.
"""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import dataclass

import numpy as np

# What stands where an answer would have its status.
UNSETTLED, CLOSED, TIMED_OUT, NOT_CONNECTED = 0, 1, 2, 3
_WORDS = {UNSETTLED: "unsettled", CLOSED: "connection closed", TIMED_OUT: "timed out",
          NOT_CONNECTED: "no connection"}  # fmt: skip
# A server says with these that it could not now, rather than that something went wrong.
REFUSALS = (429, 503)
# A request that leaves later than this after its time, though a connection was free, is late:
# then the generator is too slow for what is asked of it, not the server.
LATE_S = 1e-3


class Record:
    """Grows with the load; nothing is computed meanwhile."""

    def __init__(self) -> None:
        self.intended_s = array("d")
        self.took_s = array("d")
        self.statuses = array("H")
        self.num_connections = 0
        self.num_late = 0
        self.num_waited = 0
        self.most_late_s = 0.0

    def begin(self, intended_s: float) -> int:
        """A request that was meant to leave then; its number."""
        self.intended_s.append(intended_s)
        self.took_s.append(0.0)
        self.statuses.append(UNSETTLED)
        return len(self.statuses) - 1

    def left(self, late_s: float, *, has_waited: bool) -> None:
        """A request left so long after its time; it has waited if no connection was free."""
        if has_waited:
            self.num_waited += 1
        else:
            self.most_late_s = max(self.most_late_s, late_s)
            self.num_late += late_s > LATE_S

    def settle(self, request: int, status: int, now_s: float) -> None:
        """Its one outcome."""
        assert self.statuses[request] == UNSETTLED, "each request has one outcome"
        self.statuses[request] = status
        self.took_s[request] = now_s - self.intended_s[request]

    def summary(self, first_s: float = 0.0, last_s: float = float("inf")) -> Summary:
        """Of the requests that were meant to leave in ``[first_s, last_s)``."""
        intended = np.array(self.intended_s)
        chosen = (intended >= first_s) & (intended < last_s)
        statuses = np.array(self.statuses)[chosen]
        is_ok = (statuses >= 200) & (statuses < 300)
        took = np.array(self.took_s)[chosen][is_ok] * 1e3
        refused = int(np.isin(statuses, REFUSALS).sum())
        rest = statuses[~is_ok & ~np.isin(statuses, REFUSALS)]
        failed = Counter(_WORDS.get(status, str(status)) for status in rest.tolist())
        if not took.size:
            took = np.array([np.nan])
        shown = [float(np.percentile(took, share)) for share in (50, 90, 99, 99.9, 100)]
        return Summary(len(statuses), int(is_ok.sum()), refused, dict(failed), *shown)


@dataclass(frozen=True, slots=True)
class Summary:
    """Latencies are milliseconds, of the requests that went well; NaN when none did."""

    sent: int
    ok: int
    refused: int
    failed: dict[str, int]
    p50_ms: float
    p90_ms: float
    p99_ms: float
    p999_ms: float
    max_ms: float

    @property
    def num_failed(self) -> int:
        """Requests that were neither answered well nor refused."""
        return sum(self.failed.values())

    def __str__(self) -> str:
        failed = ", ".join(f"{count} x {what}" for what, count in sorted(self.failed.items()))
        return (
            f"{self.sent} sent: {self.ok} ok, {self.refused} refused, {failed or 'none'} failed; "
            f"ms p50 {self.p50_ms:.3f}, p90 {self.p90_ms:.3f}, p99 {self.p99_ms:.3f}, "
            f"p99.9 {self.p999_ms:.3f}, max {self.max_ms:.3f}"
        )
