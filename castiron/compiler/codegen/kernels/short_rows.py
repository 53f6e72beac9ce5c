"""Rows shorter than half a vector, several of them in each vector.

With ``inner`` elements to a row, a group of rows fills whole vectors. An operand is read over a
group in one of four ways; shuffles with fixed lanes put its elements where they belong.
``fused.py`` uses this for the two innermost axes.
"""

from __future__ import annotations

import math

from castiron.compiler.codegen import loop
from castiron.compiler.codegen.loop import Function, Value
from castiron.graph.graph import Extent
from castiron.tensor import dtype as dtypes

# An operand has all elements of the rows, one row for all, one element for each row, or just one.
WHOLE, ONE_ROW, ONE_EACH, ONE = "w", "r", "e", "o"

# Longer rows waste little of their vectors.
_LONGEST = 8


def ways_of(inner: int, strides: tuple[tuple[Extent, Extent], ...]) -> tuple[str, ...] | None:
    """How each operand with strides (between rows, within a row) is read; None if one cannot."""
    if not 2 <= inner <= _LONGEST:
        return None
    known: dict[tuple[Extent, Extent], str] = {
        (inner, 1): WHOLE,
        (0, 1): ONE_ROW,
        (1, 0): ONE_EACH,
        (0, 0): ONE,
    }
    ways = tuple(known.get(pair) for pair in strides)
    return tuple(way for way in ways if way) if None not in ways else None


def fits(inner: int, lanes: int) -> bool:
    """Whether at least two rows go into a vector."""
    return 2 * inner <= lanes


def rows_of(inner: int, lanes: int) -> int:
    """Rows of a group: a power of two, as lanes are."""
    return lanes // math.gcd(inner, lanes)


def vectors_of(inner: int, lanes: int) -> int:
    """Vectors of a group."""
    return inner // math.gcd(inner, lanes)


def repeated(
    f: Function, pointer: Value, kind: dtypes.DType, inner: int, lanes: int
) -> list[Value]:
    """One row repeated over a group: its vectors, to be read before the loop over groups."""
    type_ = loop.vector(lanes, kind.llvm)
    row = f.masked_load(type_, pointer, f.lane_mask(f.const(inner, loop.I64), lanes))
    return [
        f.shuffle(row, row, [(first + lane) % inner for lane in range(lanes)])
        for first in range(0, vectors_of(inner, lanes) * lanes, lanes)
    ]


def spread(f: Function, pointer: Value, kind: dtypes.DType, inner: int, lanes: int) -> list[Value]:
    """The elements of a group's rows, each repeated over its row."""
    each = f.load(loop.vector(rows_of(inner, lanes), kind.llvm), pointer)
    return [
        f.shuffle(each, each, [(first + lane) // inner for lane in range(lanes)])
        for first in range(0, vectors_of(inner, lanes) * lanes, lanes)
    ]
