"""Kernels that work along one axis: the frame of softmax, norms, sums and searches along a line.

A value is seen as [outer, count, inner]. With inner 1 a unit is one line, contiguous in memory,
and vectors lie along it; otherwise a unit is a block of neighbouring columns and vectors lie
across them. A family writes only what happens to one line or to one vector of columns.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from castiron.compiler.codegen import loop, sweep
from castiron.compiler.codegen.kernels import axes
from castiron.compiler.codegen.loop import PTR, Function, Value
from castiron.graph.graph import Extent, Shape
from castiron.tensor import dim
from castiron.tensor import dtype as dtypes

# Columns of one unit, and elements that are worth a claim.
_BLOCK_COLUMNS = 128
_GRAIN_ELEMENTS = 16384
# A known extent is written into the kernel when the line then needs no loop.
_MOST_FIXED = 96


@dataclasses.dataclass(frozen=True, slots=True)
class Lines:
    """A value of ``dtype`` as [outer, count, inner]; symbolic extents may turn out to be 1 or 0.

    ``may_fix``: a short known count is written into the kernel's text.
    """

    outer: Extent
    count: Extent
    inner: Extent
    dtype: dtypes.DType
    may_fix: bool = True

    @property
    def is_contiguous(self) -> bool:
        """Whether each line is contiguous."""
        return self.inner == 1

    @property
    def fixed_count(self) -> int:
        """The line's length where the kernel's text may hold it, else 0."""
        if not self.may_fix or not self.is_contiguous or not isinstance(self.count, int):
            return 0
        return self.count if self.count <= _MOST_FIXED else 0

    @property
    def label(self) -> str:
        """What a kernel's text depends on, for its symbol."""
        return f"{self.dtype}_{'row' if self.is_contiguous else 'column'}{self.fixed_count or ''}"

    @property
    def units(self) -> Extent:
        """Lines, or blocks of columns."""
        if self.is_contiguous:
            return self.outer
        return dim.mul(self.outer, dim.ceildiv(self.inner, _BLOCK_COLUMNS))

    @property
    def grain(self) -> Extent:
        """Units that make a claim worth its while."""
        width = self.count
        if not self.is_contiguous:
            width = dim.mul(self.count, dim.minimum(self.inner, _BLOCK_COLUMNS))
        return dim.maximum(1, dim.floordiv(_GRAIN_ELEMENTS, dim.maximum(width, 1)))

    @property
    def params(self) -> tuple[Extent, ...]:
        """Run-time numbers, as ``walk`` reads them."""
        if self.is_contiguous:
            return () if self.fixed_count else (self.count,)
        return (self.count, self.inner, dim.ceildiv(self.inner, _BLOCK_COLUMNS))

    @property
    def size(self) -> Extent:
        """Number of elements."""
        return dim.mul(self.outer, dim.mul(self.count, self.inner))


def along(shape: Shape, first: int, last: int, dtype: dtypes.DType) -> Lines:
    """The value with axes ``first`` to ``last`` (exclusive) as its lines."""
    return Lines(
        dim.product(shape[:first]),
        dim.product(shape[first:last]),
        dim.product(shape[last:]),
        dtype,
    )


@dataclasses.dataclass(frozen=True, slots=True)
class Line:
    """One unit being written: a line, or a vector of columns.

    ``offset`` is the number of elements before the line's first one (a column vector's first
    element); ``index`` counts lines, and column vectors start at column ``column`` of it.
    ``stride`` is the distance of neighbours in elements; ``mask`` covers missing columns.
    """

    lanes: int
    count: Value | int
    index: Value
    offset: Value
    stride: Value | int = 1
    column: Value | None = None
    mask: Value | None = None


def lanes_for(f: Function, dtype: dtypes.DType) -> int:
    """Vector lanes of this dtype; booleans and bytes take as many as float32."""
    return f.target.vector_bytes // max(dtype.size_bytes, 4)


def walk(
    f: Function, lines: Lines, num_operands: int, write: Callable[[list[Value], Line], None]
) -> None:
    """The kernel's loop over its units; ``write`` gets the operands' pointers and a line."""
    args, begin, end, _ = f.params
    pointers = [f.argument(args, number, PTR) for number in range(num_operands)]
    lanes = lanes_for(f, lines.dtype)
    if lines.is_contiguous:
        count = lines.fixed_count or f.argument(args, num_operands)
        with f.loop(begin, end) as unit:
            write(pointers, Line(lanes, count, unit.index, unit.index * count))
        f.return_()
        return
    count, inner, blocks = (f.argument(args, num_operands + number) for number in range(3))
    with f.loop(begin, end) as unit:
        before, block = axes.split_index(f, unit.index, [None, blocks])
        first = block * _BLOCK_COLUMNS
        base = before * count * inner

        def columns(at: Value, mask: Value | None, carried: list[Value]) -> list[Value]:
            column = first + at
            write(pointers, Line(lanes, count, before, base + column, inner, column, mask))
            return carried

        sweep.sweep(f, f.minimum(inner - first, _BLOCK_COLUMNS), lanes, columns)
    f.return_()


# (vector's place in elements, mask or None, carried values) -> carried values updated
Visit = Callable[[Value, Value | None, list[Value]], list[Value]]


def over(
    f: Function, line: Line, visit: Visit, carry: Sequence[Value], *, ways: int = 1
) -> list[list[Value]]:
    """Visit the line's elements in order: by vectors along it, or one vector of columns a time.

    The result has the carried values of each way, of ``line.lanes`` lanes.
    """
    if line.column is None:

        def along_line(at: Value, mask: Value | None, carried: list[Value]) -> list[Value]:
            return visit(line.offset + at, mask, carried)

        return sweep.sweep(f, line.count, line.lanes, along_line, carry, ways=ways)
    with f.loop(0, line.count, 1, carry) as position:
        place = line.offset + position.index * line.stride
        position.update(visit(place, line.mask, position.carried))
    return [position.results]


def join(
    f: Function,
    line: Line,
    states: list[list[Value]],
    joins: Sequence[Callable[[Value, Value], Value]],
) -> list[Value]:
    """One value for each carried one: the ways joined and, along a line, all lanes, splatted."""
    joined = []
    for number, combine in enumerate(joins):
        value = sweep.fold_ways([[state[number]] for state in states], combine)[0]
        if line.column is None:
            value = f.splat(sweep.fold(f, value, combine), line.lanes)
        joined.append(value)
    return joined


def splat(f: Function, lines: Lines, line: Line, number: float | int) -> Value:
    """A constant of the line's vector type."""
    return f.const(number, loop.vector(line.lanes, lines.dtype.llvm))


def position_bytes(lines: Lines, place: Value) -> Value:
    """The byte offset of an element."""
    return place * lines.dtype.size_bytes
