"""The strided copy: elements of any size from one set of strides to another.

Every op that only moves data is one or more of these steps: axes with an extent and two strides
in bytes, collapsed to as few as possible. Rows (the last axis) are copied by vectors where both
sides are contiguous, filled where the source does not move, and walked element by element
otherwise. Units are rows, or pieces of long ones. movement.py says which axes an op has.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from castiron.compiler.codegen import step
from castiron.compiler.codegen.loop import I8, I16, I32, I64, PTR, Function, Module, Value
from castiron.compiler.target import Target
from castiron.graph.graph import Extent
from castiron.tensor import dim as dims

# The types that move one element, or a short run of them, in one instruction.
MOVES = {
    1: I8, 2: I16, 4: I32, 8: I64, 16: "<4 x i32>", 32: "<8 x i32>", 64: "<16 x i32>",
}  # fmt: skip
_PIECE_BYTES = 32 << 10  # rows longer than this are cut
_PIECE_ELEMENTS = 8 << 10
_CLAIM_BYTES = 128 << 10
UNROLLED_BYTES = 512  # runs of known size up to this are moved without a loop
_CLAIM_ELEMENTS = 32 << 10


@dataclasses.dataclass(frozen=True, slots=True)
class Axis:
    """``extent`` elements, ``source`` and ``result`` bytes from one to the next."""

    extent: Extent
    source: Extent
    result: Extent


def strides_of(shape: Sequence[Extent], size_bytes: int) -> list[Extent]:
    """Row-major strides in bytes."""
    strides: list[Extent] = []
    stride: Extent = size_bytes
    for extent in reversed(shape):
        strides.insert(0, stride)
        stride = dims.mul(stride, extent)
    return strides


def collapse(axes: Sequence[Axis]) -> list[Axis]:
    """The same elements in the same order with as few axes as can be proved."""
    found: list[Axis] = []
    for axis in axes:
        if axis.extent == 1:
            continue
        last = found[-1] if found else None
        if last is not None and _continues(last, axis):
            found[-1] = Axis(dims.mul(last.extent, axis.extent), axis.source, axis.result)
        else:
            found.append(axis)
    return found


def _continues(outer: Axis, inner: Axis) -> bool:
    return bool(
        outer.source == dims.mul(inner.extent, inner.source)
        and outer.result == dims.mul(inner.extent, inner.result)
    )


class Odometer:
    """Counts through axes like the digits of a clock, moving pointers along.

    ``start`` gives the carried values of a loop at one unit, ``following`` those of the next.
    """

    def __init__(
        self, f: Function, extents: Sequence[Value], strides: Sequence[Sequence[Value]]
    ) -> None:
        self.f = f
        self.extents = [f.maximum(extent, 1) for extent in extents]
        self.strides = [list(each) for each in strides]
        self._back = [
            [row[a - 1] - self.extents[a] * row[a] for a in range(1, len(extents))]
            for row in self.strides
        ]

    def start(self, unit: Value, pointers: Sequence[Value]) -> list[Value]:
        """[index of each axis..., pointers...] of this unit."""
        f, rest = self.f, unit
        places = list(pointers)
        indices: list[Value] = []
        for axis in reversed(range(len(self.extents))):
            index = rest % self.extents[axis] if axis else rest
            rest = rest // self.extents[axis] if axis else rest
            indices.insert(0, index)
            places = [
                f.offset(place, index * row[axis])
                for place, row in zip(places, self.strides, strict=True)
            ]
        return [*indices, *places]

    def following(self, carried: Sequence[Value]) -> list[Value]:
        """The carried values one unit on."""
        f, rank = self.f, len(self.extents)
        if rank == 0:
            return list(carried)
        indices, places = list(carried[:rank]), list(carried[rank:])
        moves = [row[rank - 1] for row in self.strides]
        indices[-1] = indices[-1] + 1
        wraps: Value | None = None
        for axis in range(rank - 1, 0, -1):
            ended = indices[axis].equals(self.extents[axis])
            wraps = ended if wraps is None else wraps & ended
            indices[axis] = f.select(wraps, 0, indices[axis])
            moves = [
                move + f.select(wraps, back[axis - 1], 0)
                for move, back in zip(moves, self._back, strict=True)
            ]
            indices[axis - 1] = indices[axis - 1] + f.convert("zext", wraps, I64)
        moved = [f.offset(place, move) for place, move in zip(places, moves, strict=True)]
        return [*indices, *moved]


def copier(module: Module) -> Function:
    """``copy_bytes(to, source, count)`` for areas that do not overlap."""
    f = module.function("copy_bytes", [(PTR, "to"), (PTR, "source"), (I64, "count")])
    to, source, count = f.params
    width = module.target.vector_bytes
    big = MOVES[width]
    with f.when(count >= width):
        with f.loop(0, count - (2 * width - 1), 2 * width) as turn:
            first = f.load(big, f.offset(source, turn.index), align=1)
            second = f.load(big, f.offset(source, turn.index + width), align=1)
            f.store(first, f.offset(to, turn.index), align=1)
            f.store(second, f.offset(to, turn.index + width), align=1)
        # The last two vectors may overlap what is already there.
        before = f.maximum(count - 2 * width, 0)
        for place in (before, count - width):
            f.store(f.load(big, f.offset(source, place), align=1), f.offset(to, place), align=1)
        f.return_()
    half = width // 2
    while half:
        with f.when(count >= half):
            for place in (f.const(0, I64), count - half):
                value = f.load(MOVES[half], f.offset(source, place), align=1)
                f.store(value, f.offset(to, place), align=1)
            f.return_()
        half //= 2
    f.return_()
    return f


def move_bytes(f: Function, to: Value, source: Value, size: int) -> None:
    """Copy a known number of bytes, in as few instructions as there are whole registers."""
    width, done = f.target.vector_bytes, 0
    if size > UNROLLED_BYTES:
        done = size - size % width
        with f.loop(0, done, width) as turn:
            value = f.load(MOVES[width], f.offset(source, turn.index), align=1)
            f.store(value, f.offset(to, turn.index), align=1)
    while done < size:
        width = min(width, 1 << ((size - done).bit_length() - 1))
        value = f.load(MOVES[width], f.offset(source, done), align=1)
        f.store(value, f.offset(to, done), align=1)
        done += width


def filler(module: Module, size: int) -> Function:
    """``fill(to, value, count)``: ``count`` elements of ``size`` bytes, all equal."""
    element = MOVES[size]
    f = module.function("fill", [(PTR, "to"), (element, "value"), (I64, "count")])
    to, value, count = f.params
    lanes = module.target.vector_bytes // size
    if size <= 8:
        wide = f.splat(value, lanes)
        bulk = count - count % lanes
        with f.loop(0, bulk, lanes) as turn:
            f.store(wide, f.offset(to, turn.index * size), align=size)
    else:
        bulk = f.const(0, I64)
    with f.loop(bulk, count) as turn:
        f.store(value, f.offset(to, turn.index * size), align=1)
    f.return_()
    return f


@dataclasses.dataclass(frozen=True, slots=True)
class _Rows:
    """The shape of a copy kernel's text."""

    kind: str  # "contiguous", "fixed", "fill" or "strided"
    size: int  # bytes of one element; 1 for contiguous, the whole row for fixed
    outer: int
    is_cut: bool

    def symbol(self) -> str:
        return f"copy_{self.kind}{self.size}_r{self.outer}{'c' if self.is_cut else ''}"


def copy_step(
    name: str, write: step.Write, read: step.Read, axes: Sequence[Axis], size_bytes: int,
    target: Target,
) -> step.Step:  # fmt: skip
    """One step that copies all elements of ``axes``, each ``size_bytes`` long."""
    rows, inner, outer = _rows_of(collapse(axes), size_bytes)
    piece = _PIECE_BYTES if rows.kind == "contiguous" else _PIECE_ELEMENTS
    if rows.is_cut:
        pieces = dims.ceildiv(inner.extent, piece)
        outer = [*outer, Axis(pieces, dims.mul(inner.source, piece), dims.mul(inner.result, piece))]
    units = dims.product([axis.extent for axis in outer])
    params: list[Extent] = [inner.extent, inner.source, inner.result, piece]
    for axis in outer:
        params += [axis.extent, axis.source, axis.result]
    length = dims.minimum(inner.extent, piece) if rows.is_cut else inner.extent
    claim = _CLAIM_BYTES if rows.kind in ("contiguous", "fixed") else _CLAIM_ELEMENTS
    total = dims.mul(dims.product([axis.extent for axis in axes]), size_bytes)
    return step.Step(
        name=name,
        kernel=step.Kernel(rows.symbol(), _text(rows, target)),
        operands=(write, read),
        params=tuple(params),
        units=units,
        grain=grain_of(length, claim),
        bytes_moved=dims.mul(total, 2),
    )


def grain_of(length: Extent, claim: int) -> Extent:
    """Units of ``length`` that together make about ``claim``."""
    return dims.maximum(dims.floordiv(claim, dims.add(length, 1)), 1)


def _rows_of(axes: list[Axis], size_bytes: int) -> tuple[_Rows, Axis, list[Axis]]:
    """The kind of kernel, the axis of a row (in the kernel's elements), and the outer axes."""
    size = size_bytes
    while axes and axes[-1].source == size and axes[-1].result == size:
        run = dims.mul(axes[-1].extent, size)
        if isinstance(run, dims.Dim) or run not in MOVES or len(axes) == 1:
            return _contiguous(run, axes[:-1])
        size, axes = run, axes[:-1]
    inner, outer = (axes[-1], axes[:-1]) if axes else (Axis(1, 0, size), [])
    is_fill = inner.source == 0 and inner.result == size
    is_long = _is_long(inner.extent, _PIECE_ELEMENTS)
    return _Rows("fill" if is_fill else "strided", size, len(outer), is_long), inner, outer


def _contiguous(run: Extent, outer: list[Axis]) -> tuple[_Rows, Axis, list[Axis]]:
    """Rows of ``run`` bytes."""
    if outer and not isinstance(run, dims.Dim) and 0 < run <= UNROLLED_BYTES:
        return _Rows("fixed", run, len(outer), False), Axis(run, 1, 1), outer
    return _Rows("contiguous", 1, len(outer), _is_long(run, _PIECE_BYTES)), Axis(run, 1, 1), outer


def _is_long(extent: Extent, limit: int) -> bool:
    return isinstance(extent, dims.Dim) or extent > limit


def _text(rows: _Rows, target: Target) -> str:
    module = Module(target)
    routine = _routine(module, rows)
    f = module.kernel(rows.symbol())
    args, begin, end, _ = f.params
    to, source = f.argument(args, 0, PTR), f.argument(args, 1, PTR)
    count, source_step, to_step, piece = (f.argument(args, n) for n in range(2, 6))
    num = rows.outer + rows.is_cut
    table = [[f.argument(args, 6 + 3 * axis + k) for axis in range(num)] for k in range(3)]
    odometer = Odometer(f, table[0], [table[2], table[1]])
    # A step that may work in place and does has nothing to move.
    last = f.select(to.equals(source), begin, end)
    with f.loop(begin, last, carry=odometer.start(begin, [to, source])) as unit:
        place, origin = unit.carried[-2:]
        length = count
        if rows.is_cut:
            length = f.minimum(count - unit.carried[num - 1] * piece, piece)
        if routine is None:
            move_bytes(f, place, origin, rows.size)
        elif rows.kind == "contiguous":
            f.call(routine, [place, origin, length])
        elif rows.kind == "fill":
            value = f.load(MOVES[rows.size], origin, align=min(rows.size, 4))
            f.call(routine, [place, value, length])
        else:
            f.call(routine, [place, origin, length, to_step, source_step])
        unit.update(odometer.following(unit.carried))
    f.return_()
    return module.text()


def _routine(module: Module, rows: _Rows) -> Function | None:
    """What moves one row; None where it is printed in place."""
    if rows.kind == "contiguous":
        return copier(module)
    if rows.kind == "fill":
        return filler(module, rows.size)
    return _walker(module, rows.size) if rows.kind == "strided" else None


def _walker(module: Module, size: int) -> Function:
    """``walk(to, source, count, to_step, source_step)``: one element after the other."""
    params = [(PTR, "to"), (PTR, "source"), (I64, "count"), (I64, "to_step"), (I64, "source_step")]
    f = module.function("walk", params)
    to, source, count, to_step, source_step = f.params
    with f.loop(0, count, carry=[to, source]) as turn:
        place, origin = turn.carried
        f.store(f.load(MOVES[size], origin, align=1), place, align=1)
        turn.update([f.offset(place, to_step), f.offset(origin, source_step)])
    f.return_()
    return f
