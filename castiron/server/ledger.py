"""The times of one version's answers and runs, counted in bulk.

``meters.py`` keeps what a request leaves behind and brings it here, many at once, where numpy counts
the same as ``Histogram.observe`` one by one in a quarter of its time. Who reads asks ``VersionMeters``.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from castiron.telemetry import metrics

Times: TypeAlias = tuple[int, ...]
_Values: TypeAlias = NDArray[np.float64]

# What is kept of an answer's timeline: its begin, when each stage was over, and its end.
times_of: operator.attrgetter[Times] = operator.attrgetter(
    "accepted_ns", "read_ns", "parsed_ns", "queued_ns", "batched_ns", "computed_ns",
    "rendered_ns", "ended_ns",
)  # fmt: skip
_MOST_ROWS = 1024


class Ledger:
    """What was counted: read it, and leave writing to ``VersionMeters``."""

    __slots__ = ("batch_rows", "batches", "busy", "last_ms", "latency", "stages")

    def __init__(
        self,
        latency: metrics.Histogram,
        stages: Mapping[str, metrics.Histogram],
        batch_rows: metrics.Histogram,
        busy: metrics.Counter,
    ) -> None:
        """Count in these; ``stages`` are in the order in which a request goes through them."""
        self.latency = latency
        self.stages = stages
        self.batch_rows = batch_rows
        self.busy = busy
        self.last_ms = 0  # of the last answer, since 1970
        self.batches: dict[int, tuple[int, int]] = {}  # rows: runs, and their nanoseconds

    def count_answers(self, kept: Sequence[Times]) -> None:
        """Each is what ``times_of`` gave; of a stage that did not happen the time is 0."""
        times = np.array(kept, np.int64).T
        has_happened = times[1:] != 0
        has_happened[-1] = True  # that one is the whole, from its begin to its end
        took_ns = times[1:] - times[0]
        begins = times[0]
        for index, ends in enumerate(times[1:-1]):
            took_ns[index] = ends - begins
            begins = np.where(has_happened[index], ends, begins)
        observe([*self.stages.values(), self.latency], took_ns / 1e9, has_happened)
        passed_ns = time.monotonic_ns() - kept[-1][-1]
        self.last_ms = (time.time_ns() - passed_ns) // 1_000_000

    def count_runs(self, kept: Sequence[tuple[int, int]]) -> None:
        """(rows, nanoseconds) of each; sizes above a thousand are counted as one."""
        num_rows, times_ns = np.array(kept, np.int64).T
        num_rows = np.minimum(num_rows, _MOST_ROWS)
        observe([self.batch_rows], num_rows[None] * 1.0, np.ones((1, len(kept)), np.bool_))
        self.busy.value = float(_sums([self.busy.value], times_ns[None] / 1e9)[0])
        for size, time_ns in zip(num_rows.tolist(), times_ns.tolist(), strict=True):
            count, total_ns = self.batches.get(size, (0, 0))
            self.batches[size] = count + 1, total_ns + time_ns


def observe(
    histograms: Sequence[metrics.Histogram], values: _Values, is_seen: NDArray[np.bool_]
) -> None:
    """Count in each histogram its row of ``values``, without those that nobody saw.

    The same, to the last bit, as ``Histogram.observe`` of one value after the other. All have the
    bounds of the first; ``values`` and ``is_seen`` are [histogram, value].
    """
    num_cells = len(histograms[0].cells) - 1
    first = np.arange(len(histograms))[:, None] * num_cells
    cells = (np.searchsorted(histograms[0].bounds, values) + first)[is_seen]
    counts = np.bincount(cells, minlength=len(histograms) * num_cells)
    sums = _sums([each.total for each in histograms], np.where(is_seen, values, 0.0))
    for each, more, total in zip(histograms, counts.reshape(-1, num_cells), sums, strict=True):
        own = np.asarray(each.counts)  # a view: what is added is in the histogram
        own += more
        each.cells[-1] = total


def _sums(totals: Sequence[float], values: _Values) -> _Values:
    """Each total and its row of values, added in turn; ``np.sum`` takes another order, and rounds
    otherwise.
    """
    sums: _Values = np.add.accumulate(np.column_stack([totals, values]), axis=1)[:, -1]
    return sums
