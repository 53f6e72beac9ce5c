"""What can be proved about dims: lower bounds, and min, max and division that use them.

Every symbol is taken to be at least 1. A symbol bound to 0 at run time keeps exact values where
nothing had to be proved; where something was, a rule must keep an op inside its operands by checks
that ``holds_at_least`` finds unnecessary only if they hold for 0 too.
"""

from __future__ import annotations

import math
from typing import Any

from castiron.graph.graph import Extent
from castiron.tensor import dim as dims

_Range = tuple[float, float]


def lower(value: Extent) -> float:
    """A number that the dim never falls below; ``-inf`` when none is known."""
    return _range(value)[0]


def holds_at_least(value: Extent, low: int) -> bool:
    """Whether the dim is ``low`` or more for every binding, of symbols to 0 as well."""
    return _range(value, 0.0)[0] >= low


def is_nonnegative(value: Extent) -> bool:
    """Whether the dim is provably at least 0."""
    return lower(value) >= 0


def is_positive(value: Extent) -> bool:
    """Whether the dim is provably at least 1."""
    return lower(value) >= 1


def sub(left: Extent, right: Extent) -> Extent:
    """left - right."""
    return dims.add(left, dims.mul(right, -1))


def _range(value: Extent, least: float = 1.0) -> _Range:
    """Between which numbers the dim lies when no symbol is below ``least``."""
    if not isinstance(value, dims.Dim):
        return float(value), float(value)
    low = high = 0.0
    for atoms, coefficient in value.terms:
        term: _Range = (1.0, 1.0)
        for atom in atoms:
            term = _product(term, _atom_range(atom, least))
        scaled = _product(term, (float(coefficient), float(coefficient)))
        low, high = low + scaled[0], high + scaled[1]
    return low, high


def _product(left: _Range, right: _Range) -> _Range:
    corners = [_times(a, b) for a in left for b in right]
    return min(corners), max(corners)


def _times(left: float, right: float) -> float:
    return 0.0 if left == 0 or right == 0 else left * right


def _atom_range(atom: tuple[Any, ...], least: float) -> _Range:
    if atom[0] == "sym":
        return least, math.inf
    (low, high), (low2, high2) = _range(atom[1], least), _range(atom[2], least)
    if atom[0] == "min":
        return min(low, low2), min(high, high2)
    if atom[0] == "max":
        return max(low, low2), max(high, high2)
    if atom[0] == "floordiv" and low2 >= 1:
        return _floordiv_range((low, high), (low2, high2))
    return -math.inf, math.inf


def _floordiv_range(left: _Range, right: _Range) -> _Range:
    corners = [_floor(a, b) for a in left for b in right]
    return min(corners), max(corners)


def _floor(left: float, right: float) -> float:
    if math.isinf(left):
        return 0.0 if math.isinf(right) else left
    if math.isinf(right):
        return 0.0 if left >= 0 else -1.0
    return float(left // right)


def minimum(left: Extent, right: Extent) -> Extent:
    """The smaller one, without an atom when the order is provable."""
    if is_nonnegative(sub(right, left)):
        return left
    if is_nonnegative(sub(left, right)):
        return right
    return dims.minimum(left, right)


def maximum(left: Extent, right: Extent) -> Extent:
    """The larger one, without an atom when the order is provable."""
    if is_nonnegative(sub(right, left)):
        return right
    if is_nonnegative(sub(left, right)):
        return left
    return dims.maximum(left, right)


def truncdiv(left: Extent, right: Extent) -> Extent | None:
    """left / right rounded towards zero, for a positive divisor; None for any other."""
    if not isinstance(left, dims.Dim) and not isinstance(right, dims.Dim):
        return None if right == 0 else math.trunc(_exact(left, right))
    if not is_positive(right):
        return None
    if is_nonnegative(left):
        return dims.floordiv(left, right)
    above = dims.floordiv(maximum(left, 0), right)
    below = dims.floordiv(maximum(dims.mul(left, -1), 0), right)
    return sub(above, below)


def _exact(left: int, right: int) -> int:
    quotient = abs(left) // abs(right)
    return quotient if (left < 0) == (right < 0) else -quotient


def wrapped(index: Extent, extent: Extent) -> Extent:
    """``index``, plus ``extent`` where it is negative: ONNX's counting from the end."""
    if is_nonnegative(index):
        return index
    if is_nonnegative(sub(-1, index)):
        return dims.add(index, extent)
    is_negative = minimum(maximum(index, -1), 0)  # -1 or 0
    return sub(index, dims.mul(extent, is_negative))


def is_equal(left: Extent, right: Extent) -> bool | None:
    """True or False when provable for every binding, else None."""
    if left == right:
        return True
    if is_positive(sub(left, right)) or is_positive(sub(right, left)):
        return False
    return None


def is_less(left: Extent, right: Extent) -> bool | None:
    """Whether left < right for every binding (True), for none (False), or unknown."""
    if is_positive(sub(right, left)):
        return True
    if is_nonnegative(sub(left, right)):
        return False
    return None
