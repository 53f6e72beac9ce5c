"""Runs so short that handing them to the lane costs more than they do.

Waking the lane and being woken by it takes tens of microseconds. A version whose recent runs of
this size took less than ``limit_ns`` of the processor is run by the event loop itself, when nothing
else of it waits or runs. That is bounded: sizes are told apart, a trial is made only when runs on
the lane were short, and one size that grew slow goes back to the lane for a while. What a run took
of the processor is asked for only after the clock found one long, since asking is a system call.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import TypeVar

InputsT = TypeVar("InputsT")
OutputsT = TypeVar("OutputsT")
Run = tuple[OutputsT, int, int]

_WEIGHT = 0.1
_WINDOW = 128
_MOST_SLOW = 12  # of the window: on a busy machine cold caches make one in twenty runs slow
# What a run seems to take on the lane includes the wakes, which are not its own.
_WAKES_NS = 200_000
_NUM_SEEN = 5
_FIRST_PAUSE = 200
_LONGEST_PAUSE = 100_000
_NUM_WATCHED = 16


class Size:
    """What is known of runs whose inputs have about one size."""

    __slots__ = ("lane_ns", "num_lane", "num_watched", "pause", "recent", "run_ns", "waits")

    def __init__(self) -> None:
        self.lane_ns = 0.0
        self.num_lane = 0
        self.run_ns = 0.0
        self.recent: deque[int] = deque(maxlen=_WINDOW)
        self.pause = _FIRST_PAUSE
        self.waits = 0  # requests until it may be tried again
        self.num_watched = _NUM_WATCHED  # runs whose processor time is still to be asked for


class Quick:
    """The short runs of one version; ``limit_ns`` 0: there are none."""

    __slots__ = ("_limit_ns", "_sizes", "num_runs")

    def __init__(self, limit_ns: int) -> None:
        self._limit_ns = limit_ns
        self._sizes: dict[int, Size] = {}
        self.num_runs = 0

    def short(self, size_bytes: int) -> Size | None:
        """The size, if a run of so many bytes of input may be made on the loop."""
        size = self._sizes.get(size_bytes.bit_length())
        if size is None:
            return None
        if size.waits:
            size.waits -= 1
            return None
        is_short = size.num_lane >= _NUM_SEEN and size.lane_ns <= self._limit_ns + _WAKES_NS
        return size if is_short else None

    def observe_lane(self, size_bytes: int, time_ns: int) -> None:
        """A run on the lane took so long, wakes included."""
        if not self._limit_ns:
            return
        size = self._sizes.setdefault(size_bytes.bit_length(), Size())
        size.num_lane += 1
        if size.num_lane == 1:
            size.lane_ns = float(time_ns)
        bounded = min(time_ns, 4 * size.lane_ns + self._limit_ns)  # one may be held up by chance
        size.lane_ns += _WEIGHT * (bounded - size.lane_ns)

    def run(
        self, size: Size, call: Callable[[InputsT], OutputsT], inputs: InputsT
    ) -> Run[OutputsT]:
        """Call it now, and learn from what it took. Outputs, and when it began and ended."""
        self.num_runs += 1
        asks = size.num_watched
        begun_cpu_ns = time.thread_time_ns() if asks else 0
        begun_ns = time.monotonic_ns()
        outputs = call(inputs)
        ended_ns = time.monotonic_ns()
        if asks:
            size.num_watched -= 1
            self._observe(size, time.thread_time_ns() - begun_cpu_ns)
        elif ended_ns - begun_ns > self._limit_ns:
            size.num_watched = _NUM_WATCHED
        return outputs, begun_ns, ended_ns

    def _observe(self, size: Size, time_ns: int) -> None:
        recent = size.recent
        recent.append(time_ns)
        bounded = min(time_ns, 4 * self._limit_ns)
        size.run_ns += (_WEIGHT if len(recent) > 1 else 1.0) * (bounded - size.run_ns)
        if time_ns <= self._limit_ns and size.run_ns <= self._limit_ns:
            if len(recent) == _WINDOW:
                size.pause = _FIRST_PAUSE
            return
        num_slow = sum(each > self._limit_ns for each in recent)
        if num_slow > _MOST_SLOW or (len(recent) >= _NUM_SEEN and size.run_ns > self._limit_ns):
            size.waits = size.pause
            size.pause = min(2 * size.pause, _LONGEST_PAUSE)
            size.recent.clear()
            size.num_watched = _NUM_WATCHED
