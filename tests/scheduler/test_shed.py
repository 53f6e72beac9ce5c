"""Which classes are refused at which fill."""

from __future__ import annotations

import pytest

from castiron.scheduler import settings
from castiron.scheduler.shed import Shedder


def test_classes_are_refused_one_after_the_other_and_let_in_again_in_reverse() -> None:
    shedder = Shedder(settings.Marks(high=0.8, low=0.6), num_classes=3)

    def shut(fill: float) -> list[bool]:
        return [shedder.is_shut(number, fill) for number in range(3)]

    assert shut(0.79) == [False, False, False]
    assert shut(0.80) == [False, False, True]
    assert shut(0.95) == [False, True, True]
    assert shut(1.00) == [True, True, True]
    assert shedder.num_shut == 3
    assert shut(0.81) == [True, True, True]
    assert shut(0.75) == [False, True, True]
    assert shut(0.65) == [False, False, True]
    assert shut(0.55) == [False, False, False]


def test_a_class_beyond_the_last_counts_as_the_last() -> None:
    shedder = Shedder(settings.Marks(0.5, 0.5), num_classes=2)
    assert shedder.is_shut(7, 0.6)
    assert not shedder.is_shut(0, 0.6)
    assert shedder.low_mark(7) == pytest.approx(0.5)


def test_the_only_class_of_a_lane_is_refused_when_the_lane_is_full() -> None:
    shedder = Shedder(settings.Marks(high=0.8, low=0.6), num_classes=1)
    assert not shedder.is_shut(0, 0.99)
    assert shedder.is_shut(0, 1.0)
    assert shedder.is_shut(0, 0.9)
    assert not shedder.is_shut(0, 0.8)
