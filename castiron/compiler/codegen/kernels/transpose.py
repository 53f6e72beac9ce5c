"""Transpose: any order of axes, by square tiles turned over in registers.

After collapsing, a permutation that keeps the last axis copies rows (strided.py). Otherwise one
axis is contiguous in the source and another in the result: tiles over these two are loaded by
rows, transposed by shuffles and stored by rows. A side of 2 to 4 elements (the channels of an
image) is interleaved instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from castiron.compiler.codegen import loop, step
from castiron.compiler.codegen.kernels import strided
from castiron.compiler.codegen.kernels.strided import Axis
from castiron.compiler.codegen.loop import I64, PTR, Function, Module, Value
from castiron.compiler.target import Target
from castiron.graph.graph import Extent, Graph, Node
from castiron.tensor import dim as dims

_TILES_PER_UNIT = 16
_PIECE = 4096  # elements of the long side that one unit interleaves
_CLAIM_ELEMENTS = 32 << 10


def gap(node: Node, graph: Graph) -> str | None:
    """None for a value of known rank and fixed element size."""
    kind = graph.types[node.inputs[0]]
    if kind.shape is None or kind.dtype is None or not kind.dtype.size_bytes:
        return "Transpose of a value whose rank or element size is not known"
    return None


def lower(node: Node, graph: Graph, target: Target) -> step.Lowered:
    """One step."""
    shape = graph.shape(node.inputs[0])
    size = graph.dtype(node.inputs[0]).size_bytes
    perm = node.attr("perm") or tuple(reversed(range(len(shape))))
    source = strided.strides_of(shape, size)
    moved = [shape[axis] for axis in perm]
    result = strided.strides_of(moved, size)
    axes = [
        Axis(extent, source[axis], stride)
        for extent, axis, stride in zip(moved, perm, result, strict=True)
    ]
    name = node.name or node.op
    return step.Lowered(steps=(move(name, (node.inputs[0], node.outputs[0]), axes, size, target),))


def move(
    name: str, values: tuple[str, str], axes: Sequence[Axis], size: int, target: Target
) -> step.Step:
    """A copy between any strides, of values (read, written); axes in the result's order."""
    read, write = step.Read(values[0]), step.Write(values[1])
    found = strided.collapse(axes)
    rows = [n for n, axis in enumerate(found[:-1]) if axis.source == size]
    turned = bool(found) and found[-1].result == size and found[-1].source != size
    if not rows or not turned or size not in (4, 8):
        return strided.copy_step(name, write, read, axes, size, target)
    row, column = found[rows[-1]], found[-1]
    outer = [axis for n, axis in enumerate(found[:-1]) if n != rows[-1]]
    if column.extent in (2, 3, 4) and row.result == dims.mul(column.extent, size):
        form = _interleaved(row, column, size, target)
    elif row.extent in (2, 3, 4) and column.source == dims.mul(row.extent, size):
        form = _deinterleaved(row, column, size, target)
    else:
        form = _tiled(row, column, size, target)
    symbol, text, numbers, cut, claim = form
    params: list[Extent] = list(numbers)
    for axis in [*outer, *cut]:
        params += [axis.extent, axis.source, axis.result]
    total = dims.mul(dims.product([axis.extent for axis in found]), size)
    symbol = f"{symbol}_r{len(outer)}"
    return step.Step(
        name=name,
        kernel=step.Kernel(symbol, text(symbol, len(outer))),
        operands=(write, read),
        params=tuple(params),
        units=dims.product([axis.extent for axis in [*outer, *cut]]),
        grain=claim,
        bytes_moved=dims.mul(total, 2),
    )


# Symbol, text of (symbol, outer axes), leading params, axes of the cut, grain.
_Form = tuple[str, Callable[[str, int], str], list[Extent], list[Axis], Extent]


def _element(size: int) -> str:
    return loop.F32 if size == 4 else loop.I64


def _open(
    module: Module, symbol: str, numbers: int, axes: int
) -> tuple[Function, list[Value], list[Value], strided.Odometer]:
    """The kernel, its two pointers, leading numbers, and the odometer over all axes."""
    f = module.kernel(symbol)
    args = f.params[0]
    pointers = [f.argument(args, 0, PTR), f.argument(args, 1, PTR)]
    leading = [f.argument(args, 2 + n) for n in range(numbers)]
    first = 2 + numbers
    table = [[f.argument(args, first + 3 * axis + k) for axis in range(axes)] for k in range(3)]
    return f, pointers, leading, strided.Odometer(f, table[0], [table[2], table[1]])


# -- tiles --------------------------------------------------------------------------------------


def _tiled(row: Axis, column: Axis, size: int, target: Target) -> _Form:
    side = target.vector_bytes // size
    piece = side * _TILES_PER_UNIT
    cut = [
        Axis(dims.ceildiv(row.extent, side), side * size, dims.mul(row.result, side)),
        Axis(dims.ceildiv(column.extent, piece), dims.mul(column.source, piece), piece * size),
    ]
    numbers: list[Extent] = [row.extent, row.result, column.extent, column.source]
    length = dims.mul(dims.minimum(column.extent, piece), side)

    def text(symbol: str, outer: int) -> str:
        return _tile_text(symbol, outer, size, target)

    return f"transpose{size}", text, numbers, cut, strided.grain_of(length, _CLAIM_ELEMENTS)


def _tile_text(symbol: str, outer: int, size: int, target: Target) -> str:
    module = Module(target)
    whole, partial = _whole_tile(module, size), _partial_tile(module, size)
    side = target.vector_bytes // size
    piece = side * _TILES_PER_UNIT
    f, pointers, leading, odometer = _open(module, symbol, 4, outer + 2)
    rows, row_step, columns, column_step = leading
    begin, end = f.params[1:3]
    with f.loop(begin, end, carry=odometer.start(begin, pointers)) as unit:
        carried = unit.carried
        to, source = carried[-2:]
        height = f.minimum(rows - carried[outer] * side, side)
        width = f.minimum(columns - carried[outer + 1] * piece, piece)
        with f.loop(0, width, side, carry=[to, source]) as tile:
            here, there = tile.carried
            left = f.minimum(width - tile.index, side)
            is_whole = (height + left).equals(2 * side)
            with f.when(is_whole):
                f.call(whole, [here, row_step, there, column_step])
            with f.unless(is_whole):
                f.call(partial, [here, row_step, there, column_step, height, left])
            tile.update([f.offset(here, side * size), f.offset(there, column_step * side)])
        unit.update(odometer.following(carried))
    f.return_()
    return module.text()


_TILE = [(PTR, "to"), (I64, "to_step"), (PTR, "source"), (I64, "source_step")]


def _whole_tile(module: Module, size: int) -> Function:
    """A full square: source rows ``source_step`` apart become result rows ``to_step`` apart."""
    f = module.function("whole_tile", _TILE)
    to, to_step, source, source_step = f.params
    side = module.target.vector_bytes // size
    type_ = loop.vector(side, _element(size))
    rows = [f.load(type_, f.offset(source, source_step * n)) for n in range(side)]
    for n, row in enumerate(_turn(f, rows)):
        f.store(row, f.offset(to, to_step * n))
    f.return_()
    return f


def _partial_tile(module: Module, size: int) -> Function:
    """The corner of a square: ``height`` result rows of ``width`` elements."""
    f = module.function("partial_tile", [*_TILE, (I64, "height"), (I64, "width")])
    to, to_step, source, source_step, height, width = f.params
    side = module.target.vector_bytes // size
    type_ = loop.vector(side, _element(size))
    mask = f.lane_mask(height, side)
    rows = []
    for n in range(side):
        # Rows behind the last one read it again, so that no address is outside.
        place = f.offset(source, source_step * f.minimum(width - 1, n))
        rows.append(f.masked_load(type_, place, mask))
    mask = f.lane_mask(width, side)
    for n, row in enumerate(_turn(f, rows)):
        with f.when(height > n):
            f.masked_store(row, f.offset(to, to_step * n), mask)
    f.return_()
    return f


def _turn(f: Function, rows: list[Value]) -> list[Value]:
    """The transpose of a square of registers: blocks of 1, 2, 4... change places in turn."""
    side = len(rows)
    block = 1
    while block < side:
        low = [lane if not lane & block else side + lane - block for lane in range(side)]
        high = [lane + block if not lane & block else side + lane for lane in range(side)]
        turned = list(rows)
        for n in range(side):
            if not n & block:
                turned[n] = f.shuffle(rows[n], rows[n + block], low)
                turned[n + block] = f.shuffle(rows[n], rows[n + block], high)
        rows = turned
        block *= 2
    return rows


# -- a short side -------------------------------------------------------------------------------


def _interleaved(row: Axis, column: Axis, size: int, target: Target) -> _Form:
    """Few source rows, whose elements lie side by side in the result."""
    count = int(str(column.extent))
    cut = [Axis(dims.ceildiv(row.extent, _PIECE), _PIECE * size, _PIECE * size * count)]

    def text(symbol: str, outer: int) -> str:
        return _short_text(symbol, outer, (count, size, True), target)

    numbers: list[Extent] = [row.extent, column.source]
    return f"interleave{count}x{size}", text, numbers, cut, max(1, _CLAIM_ELEMENTS // _PIECE)


def _deinterleaved(row: Axis, column: Axis, size: int, target: Target) -> _Form:
    """Few elements side by side in the source, which go to a row each."""
    count = int(str(row.extent))
    cut = [Axis(dims.ceildiv(column.extent, _PIECE), _PIECE * size * count, _PIECE * size)]

    def text(symbol: str, outer: int) -> str:
        return _short_text(symbol, outer, (count, size, False), target)

    numbers: list[Extent] = [column.extent, row.result]
    return f"deinterleave{count}x{size}", text, numbers, cut, max(1, _CLAIM_ELEMENTS // _PIECE)


def _short_text(symbol: str, outer: int, form: tuple[int, int, bool], target: Target) -> str:
    """``apart`` is the distance of the rows on the side where the elements are in rows."""
    count, size, joins = form
    module = Module(target)
    lanes = target.vector_bytes // size
    f, pointers, (long, apart), odometer = _open(module, symbol, 2, outer + 1)
    begin, end = f.params[1:3]
    with f.loop(begin, end, carry=odometer.start(begin, pointers)) as unit:
        to, source = unit.carried[-2:]
        length = f.minimum(long - unit.carried[outer] * _PIECE, _PIECE)
        whole = length - length % lanes
        for start, stop, width in ((f.const(0, I64), whole, lanes), (whole, length, 1)):
            with f.loop(start, stop, width) as at:
                rows, packed = (source, to) if joins else (to, source)
                apart_places = [
                    f.offset(f.offset(rows, apart * n), at.index * size) for n in range(count)
                ]
                base = f.offset(packed, at.index * (size * count))
                packed_places = [f.offset(base, n * width * size) for n in range(count)]
                places = (apart_places, packed_places) if joins else (packed_places, apart_places)
                _rearrange(f, places, (width, size, joins))
        unit.update(odometer.following(unit.carried))
    f.return_()
    return module.text()


def _rearrange(
    f: Function, places: tuple[list[Value], list[Value]], form: tuple[int, int, bool]
) -> None:
    """Load one vector from each place of the first list, store one to each of the second."""
    width, size, joins = form
    sources, results = places
    type_ = loop.vector(width, _element(size))
    loaded = [f.load(type_, place) for place in sources]
    count = len(loaded)
    for n, place in enumerate(results):
        if width == 1:
            f.store(loaded[n], place)
            continue
        picks = []
        for lane in range(width):
            if joins:
                at = n * width + lane
                picks.append((at % count, at // count))
            else:
                at = lane * count + n
                picks.append((at // width, at % width))
        f.store(_gathered(f, loaded, picks), place)


def _gathered(f: Function, vectors: list[Value], picks: list[tuple[int, int]]) -> Value:
    """Lanes (vector, lane) of several vectors, two vectors at a time."""
    width = len(picks)
    result: Value | None = None
    for number, vector in enumerate(vectors):
        if not any(source == number for source, _ in picks):
            continue
        if result is None:
            lanes = [lane if source == number else 0 for source, lane in picks]
            result = f.shuffle(vector, vector, lanes)
        else:
            lanes = [
                width + lane if source == number else at for at, (source, lane) in enumerate(picks)
            ]
            result = f.shuffle(result, vector, lanes)
    assert result is not None, "every result has lanes"
    return result
