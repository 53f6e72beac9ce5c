"""What a bound lets through, before and after: did a range, a list or a limit narrow or widen?

Each function gives "" (the same), "narrowed", "widened", or "moved" for both at once. Which of
these breaks clients depends on the side, and is ``compare.py``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

Span = tuple[float, float] | None

SAME, NARROWED, WIDENED, MOVED = "", "narrowed", "widened", "moved"


def _verdict(*, loses: bool, gains: bool) -> str:
    if loses and gains:
        return MOVED
    return NARROWED if loses else WIDENED if gains else SAME


def of_spans(old: Span, new: Span) -> str:
    """A least and a greatest value; None is everything."""
    old_low, old_high = old or (-math.inf, math.inf)
    new_low, new_high = new or (-math.inf, math.inf)
    return _verdict(
        loses=new_low > old_low or new_high < old_high,
        gains=new_low < old_low or new_high > old_high,
    )


def of_lists(old: Sequence[Any], new: Sequence[Any]) -> str:
    """The only values; an empty list is everything."""
    if not old or not new:
        return _verdict(loses=bool(new and not old), gains=bool(old and not new))
    before, now = set(old), set(new)
    return _verdict(loses=bool(before - now), gains=bool(now - before))


def of_words(old: str, new: str) -> str:
    """``allow`` or ``refuse``."""
    return _verdict(
        loses=(old, new) == ("allow", "refuse"), gains=(old, new) == ("refuse", "allow")
    )


def of_most(old: float | None, new: float | None) -> str:
    """A greatest number; None and 0 are no limit."""
    before, now = old or math.inf, new or math.inf
    return _verdict(loses=now < before, gains=now > before)


def of_extents(old: Sequence[int], new: Sequence[int]) -> str:
    """A greatest number for each dim; none is no limit."""
    count = max(len(old), len(new))
    before = [*old, *[0] * (count - len(old))]
    now = [*new, *[0] * (count - len(new))]
    found = {of_most(one, other) for one, other in zip(before, now, strict=True)}
    return _verdict(loses=NARROWED in found, gains=WIDENED in found)
