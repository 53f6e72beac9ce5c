"""The batch size that adapts itself: halved when latency passes its threshold, grown step by step.

Additive increase, multiplicative decrease, as for congestion in networks. A launch that takes long
halves it. A long queue does so too, unless rows are known to be much dearer in smaller batches:
then the queue would grow for it. ``lane.py`` feeds it.
"""

from __future__ import annotations

from castiron.scheduler import estimate, settings


class BatchLimit:
    """The rows that a batch may have at present: ``rows``."""

    __slots__ = ("_num_in_time", "_settings", "num_lowered", "rows")

    def __init__(self, given: settings.Lane) -> None:
        self._settings = given
        self._num_in_time = 0
        self.rows = given.max_batch_rows
        self.num_lowered = 0

    def observe(self, launch_ns: int, queue_ns: int, costs: estimate.Estimate) -> None:
        """A run ended that had waited so long for its launch, and its oldest request before."""
        given = self._settings
        lowered = max(min(given.min_batch_rows, given.max_batch_rows), self.rows // 2)
        if given.max_launch_ns and launch_ns > given.max_launch_ns:
            self._lower(lowered)
        elif not given.max_queue_ns or queue_ns <= given.max_queue_ns:
            self._recover()
        elif costs.is_dearer(self.rows, given.max_batch_rows):
            self.rows = min(2 * self.rows, given.max_batch_rows)  # it was tried, and did not help
        elif not costs.is_dearer(lowered, given.max_batch_rows):
            self._lower(lowered)

    def _lower(self, rows: int) -> None:
        self._num_in_time = 0
        if rows < self.rows:
            self.rows = rows
            self.num_lowered += 1

    def _recover(self) -> None:
        if self.rows >= self._settings.max_batch_rows:
            return
        self._num_in_time += 1
        if self._num_in_time >= self._settings.recovery_runs:
            self._num_in_time = 0
            step = max(1, self._settings.max_batch_rows // 16)
            self.rows = min(self._settings.max_batch_rows, self.rows + step)
