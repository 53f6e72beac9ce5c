"""Which priority classes are refused as a lane fills up, with hysteresis.

Class c is refused from its high mark on, until the lane has emptied to its low one. The marks lie
in even steps: the last class goes first, the first class only when the lane is full. What full
means is ``lane.py``'s business; this sees a share.
"""

from __future__ import annotations

from castiron.scheduler import settings


class Shedder:
    """The classes that are let in at present."""

    __slots__ = ("_highs", "_is_shut", "_lows")

    def __init__(self, marks: settings.Marks, num_classes: int) -> None:
        assert 0 < marks.low <= marks.high <= 1, marks
        step = (1 - marks.high) / max(1, num_classes - 1)
        self._highs = [round(1 - step * number, 9) for number in range(num_classes)]
        self._lows = [round(high - (marks.high - marks.low), 9) for high in self._highs]
        self._is_shut = [False] * num_classes

    @property
    def num_shut(self) -> int:
        """How many classes are refused, for a metric."""
        return sum(self._is_shut)

    def low_mark(self, priority: int) -> float:
        """How full the lane is when this class is let in again."""
        return self._lows[min(priority, len(self._lows) - 1)]

    def is_shut(self, priority: int, fill: float) -> bool:
        """Whether a request of this class is refused in a lane that is so full (0 to 1)."""
        number = min(priority, len(self._highs) - 1)
        if self._is_shut[number]:
            self._is_shut[number] = fill > self._lows[number]
        else:
            self._is_shut[number] = fill >= self._highs[number]
        return self._is_shut[number]
