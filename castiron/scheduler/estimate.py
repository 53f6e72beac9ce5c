"""How long runs take: so much for each batch and so much for each row, learnt from those seen.

An exponentially weighted least-squares line through (rows, time). While all runs had the same
size, the whole time counts as the batch's: the hopeful reading, since refusing a request that
could have been answered is the worse mistake. For the same reason what came before a much quicker
run is forgotten at first: caches were cold. ``lane.py`` foresees waiting times with it.
"""

from __future__ import annotations

_WEIGHT = 0.1  # of the newest run: the last twenty decide
_NUM_SURE = 8
_COLD_TIMES = 2
# One run that was held up by chance must not make requests be refused; many of them do.
_NUM_FIRST = 5
_MOST_TIMES = 4
_MOST_MORE_NS = 1_000_000
_MIN_VARIANCE = 0.01  # in rows squared; under it all runs had the same size


class Estimate:
    """What a run of so many rows is likely to take: ``batch_ns + row_ns * rows``."""

    __slots__ = (
        "_covariance",
        "_num_kept",
        "_row_costs",
        "_rows",
        "_time",
        "_variance",
        "batch_ns",
        "num_seen",
        "row_ns",
    )

    def __init__(self) -> None:
        self.num_seen = 0
        self.batch_ns = 0.0
        self.row_ns = 0.0
        self._row_costs: dict[int, float] = {}  # by the number of bits of the number of rows
        self._forget()

    def _forget(self) -> None:
        self._row_costs.clear()
        self._num_kept = 0
        self._rows = 0.0
        self._time = 0.0
        self._variance = 0.0
        self._covariance = 0.0

    @property
    def is_sure(self) -> bool:
        """Whether enough runs were seen to refuse anybody for what the next will take."""
        return self.num_seen >= _NUM_SURE

    def observe(self, rows: int, time_ns: int) -> None:
        """One run of ``rows`` rows took so long."""
        if self.num_seen >= _NUM_FIRST:
            time_ns = min(time_ns, _MOST_TIMES * self.run_ns(rows) + _MOST_MORE_NS)
        if not self.is_sure and _COLD_TIMES * time_ns < self.run_ns(rows):
            self._forget()
        self.num_seen += 1
        self._num_kept += 1
        weight = max(_WEIGHT, 1.0 / self._num_kept)
        ahead, late = rows - self._rows, time_ns - self._time
        self._rows += weight * ahead
        self._time += weight * late
        self._variance = (1 - weight) * (self._variance + weight * ahead * ahead)
        self._covariance = (1 - weight) * (self._covariance + weight * ahead * late)
        cost, size = time_ns / max(rows, 1), rows.bit_length()
        kept = self._row_costs.get(size, cost)
        self._row_costs[size] = kept + _WEIGHT * (cost - kept)
        self.row_ns = 0.0
        if self._variance > _MIN_VARIANCE and self._covariance > 0:
            steepest = self._time / max(self._rows, 1.0)  # a batch for itself costs nothing
            self.row_ns = min(self._covariance / self._variance, steepest)
        self.batch_ns = self._time - self.row_ns * self._rows

    def run_ns(self, rows: int) -> int:
        """One run of so many rows."""
        return int(self.batch_ns + self.row_ns * rows)

    def total_ns(self, rows: int, limit: int, most_runs: int | None = None) -> int:
        """Runs of at most ``limit`` rows, one after the other, until so many rows are done.

        There are at most ``most_runs``: requests that are never split may be larger than the limit.
        """
        num_runs = -(-max(rows, 1) // limit)
        if most_runs is not None:
            num_runs = min(num_runs, max(1, most_runs))
        return int(num_runs * self.batch_ns + self.row_ns * rows)

    def is_dearer(self, rows: int, than: int) -> bool:
        """Whether a row is known to cost over a quarter more in batches about so large."""
        known, other = (
            self._row_costs.get(rows.bit_length()),
            self._row_costs.get(than.bit_length()),
        )
        return known is not None and other is not None and known > 1.25 * other
