"""Gather, GatherElements, GatherND and OneHot: data at indices that the data decide.

Negative indices count from the end; an index outside is moved to the nearest inside, so that
nothing outside the operand is ever read; where nothing is inside, the result is 0. Rows behind the
indexed axes are copied whole.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from castiron.compiler.codegen import step
from castiron.compiler.codegen.kernels import strided
from castiron.compiler.codegen.loop import I64, PTR, Function, Module, Value
from castiron.compiler.target import Target
from castiron.graph.graph import Extent, Graph, Node
from castiron.tensor import dim as dims

OPS = ("Gather", "GatherElements", "GatherND", "OneHot")
_CLAIM_BYTES = 128 << 10
_INDEX_DTYPES = ("int32", "int64")


def gap(node: Node, graph: Graph) -> str | None:
    """None for indices of int32 or int64 and values of known rank."""
    for value in node.inputs:
        kind = graph.types[value]
        if kind.shape is None or kind.dtype is None or not kind.dtype.size_bytes:
            return f"{node.op} of a value whose rank or element size is not known"
    if node.op == "OneHot" and node.attr("depth") is None:
        return "OneHot whose depth depends on the data"
    indices = node.inputs[0 if node.op == "OneHot" else 1]
    if graph.dtype(indices).name not in _INDEX_DTYPES:
        return f"{node.op} with indices of dtype {graph.dtype(indices)}"
    if node.op == "GatherND" and isinstance(graph.shape(indices)[-1], dims.Dim):
        return "GatherND with index tuples of unknown length"
    return None


def lower(node: Node, graph: Graph, target: Target) -> step.Lowered:
    """One step."""
    build = {"GatherElements": _elements, "OneHot": _one_hot, "GatherND": _tuples}
    return step.Lowered(steps=(build.get(node.op, _rows)(node, graph, target),))


def index_at(f: Function, place: Value, size: int, extent: Value) -> Value:
    """The index in memory as a position inside ``[0, extent)``, for an extent of 1 or more."""
    index = f.load(f"i{8 * size}", place)
    wide = index if size == 8 else f.convert("sext", index, I64)
    wide = f.select(wide < 0, wide + extent, wide)
    return f.maximum(f.minimum(wide, extent - 1), 0)


# -- Gather and GatherND: rows at index tuples ----------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class _Rows:
    """``outer`` times ``count`` index tuples of ``depth``, each picking one row of bytes."""

    depth: int
    index_size: int
    row_bytes: int  # of short rows; 0 where rows are copied by a loop

    def symbol(self) -> str:
        return f"gather_{self.depth}x{self.index_size}_{self.row_bytes or 'rows'}"


def _rows(node: Node, graph: Graph, target: Target) -> step.Step:
    data, indices = graph.shape(node.inputs[0]), graph.shape(node.inputs[1])
    axis = int(node.attr("axis", 0))
    axis += len(data) if axis < 0 else 0
    where = (data[:axis], data[axis : axis + 1], data[axis + 1 :])
    return _row_step(node, graph, where, dims.product(indices), target)


def _tuples(node: Node, graph: Graph, target: Target) -> step.Step:
    data, indices = graph.shape(node.inputs[0]), graph.shape(node.inputs[1])
    batch, depth = int(node.attr("batch_dims", 0)), int(str(indices[-1]))
    where = (data[:batch], data[batch : batch + depth], data[batch + depth :])
    return _row_step(node, graph, where, dims.product(indices[batch:-1]), target)


def _row_step(
    node: Node,
    graph: Graph,
    where: tuple[Sequence[Extent], Sequence[Extent], Sequence[Extent]],
    count: Extent,
    target: Target,
) -> step.Step:
    """``where`` is the data's shape before, at and behind the indexed axes."""
    before, at, behind = where
    size = graph.dtype(node.inputs[0]).size_bytes
    index_size = graph.dtype(node.inputs[1]).size_bytes
    row = dims.mul(dims.product(list(behind)), size)
    is_short = not isinstance(row, dims.Dim) and row in strided.MOVES
    form = _Rows(len(at), index_size, int(str(row)) if is_short else 0)
    strides = [dims.mul(each, 1) for each in strided.strides_of([*at], 1)]
    strides = [dims.mul(each, row) for each in strides]
    outer = dims.product(list(before))
    # Index tuples of Gather are shared by all outer positions; GatherND has its own for each.
    tuple_step = 0 if node.op == "Gather" else dims.mul(count, index_size * len(at))
    params: list[Extent] = [outer, count, row, dims.mul(dims.product(list(at)), row), tuple_step]
    for extent, stride in zip(at, strides, strict=True):
        params += [extent, stride]
    units = dims.mul(outer, count)
    return step.Step(
        name=node.name or node.op,
        kernel=step.Kernel(form.symbol(), _rows_text(form, target)),
        operands=(
            step.Write(node.outputs[0]), step.Read(node.inputs[0]), step.Read(node.inputs[1])
        ),
        params=tuple(params),
        units=units,
        grain=strided.grain_of(dims.add(row, 16), _CLAIM_BYTES),
        bytes_moved=dims.mul(dims.mul(units, row), 2),
    )  # fmt: skip


def _rows_text(form: _Rows, target: Target) -> str:
    module = Module(target)
    copy = None if form.row_bytes else strided.copier(module)
    fill = None if form.row_bytes else strided.filler(module, 1)
    f = module.kernel(form.symbol())
    args, begin, end, _ = f.params
    pointers = [f.argument(args, n, PTR) for n in range(3)]
    outer, count, row, data_step, tuple_step = (f.argument(args, 3 + n) for n in range(5))
    axes = [(f.argument(args, 8 + 2 * n), f.argument(args, 9 + 2 * n)) for n in range(form.depth)]
    tuple_bytes = f.const(form.depth * form.index_size, I64)
    zero = f.const(0, I64)
    strides = [[row * count, row], [data_step, zero], [tuple_step, tuple_bytes]]
    odometer = strided.Odometer(f, [outer, count], strides)
    with f.loop(begin, end, carry=odometer.start(begin, pointers)) as unit:
        to, data, indices = unit.carried[-3:]
        has_data = f.const(True, "i1")
        for n, (extent, stride) in enumerate(axes):
            place = f.offset(indices, n * form.index_size)
            data = f.offset(data, index_at(f, place, form.index_size, extent) * stride)
            has_data = has_data & (extent > 0)
        with f.when(has_data):
            if copy:
                f.call(copy, [to, data, row])
            else:
                element = strided.MOVES[form.row_bytes]
                f.store(f.load(element, data, align=1), to, align=1)
        with f.unless(has_data):
            if fill:
                f.call(fill, [to, f.const(0, "i8"), row])
            else:
                f.store(f.const(0, strided.MOVES[form.row_bytes]), to, align=1)
        unit.update(odometer.following(unit.carried))
    f.return_()
    return module.text()


# -- GatherElements: one element for each index ---------------------------------------------------


def _elements(node: Node, graph: Graph, target: Target) -> step.Step:
    walk = element_walk(node, graph, 0)
    symbol = f"gather_elements{walk.size}_{walk.index_size}_r{walk.outer}"
    return step.Step(
        name=node.name or node.op,
        kernel=step.Kernel(symbol, _elements_text(symbol, walk, target)),
        operands=(
            step.Write(node.outputs[0]), step.Read(node.inputs[0]), step.Read(node.inputs[1])
        ),
        params=walk.params,
        units=walk.units,
        grain=strided.grain_of(dims.mul(walk.row, 8), _CLAIM_BYTES),
        bytes_moved=dims.mul(dims.mul(walk.units, walk.row), 2 * walk.size),
    )  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True)
class ElementWalk:
    """Rows of indices beside the data they point into, for GatherElements and its reverse.

    ``params``: row extent, data bytes from one element of a row to the next (0 along the indexed
    axis), extent and stride of the indexed axis, then (extent, data stride) of each outer axis
    and the row's own stride in indices implied by the order.
    """

    size: int
    index_size: int
    outer: int
    row: Extent
    units: Extent
    params: tuple[Extent, ...]


def element_walk(node: Node, graph: Graph, data: int) -> ElementWalk:
    """The walk over input 1, the indices, of a node whose data are input ``data``."""
    shape, indices = graph.shape(node.inputs[data]), graph.shape(node.inputs[1])
    size = graph.dtype(node.inputs[data]).size_bytes
    index_size = graph.dtype(node.inputs[1]).size_bytes
    axis = int(node.attr("axis", 0))
    axis += len(shape) if axis < 0 else 0
    strides = strided.strides_of(shape, size)
    moves = [0 if n == axis else stride for n, stride in enumerate(strides)]
    params: list[Extent] = [indices[-1], moves[-1], shape[axis], strides[axis]]
    for extent, move in zip(indices[:-1], moves[:-1], strict=True):
        params += [extent, move]
    units = dims.product(list(indices[:-1]))
    return ElementWalk(size, index_size, len(indices) - 1, indices[-1], units, tuple(params))


def walk_elements(
    f: Function, walk: ElementWalk, first: int, beside: tuple[Value, Value, Value]
) -> _Walk:
    """The params of a walk in a kernel whose params start at word ``first``."""
    return _Walk(f, walk, first, beside)


class _Walk:
    """The kernel side of an ElementWalk: ``beside`` are (other, data, indices) pointers.

    ``other`` has one element for each index, in the same order.
    """

    def __init__(
        self, f: Function, walk: ElementWalk, first: int, beside: tuple[Value, Value, Value]
    ) -> None:
        args = f.params[0]
        self.f, self.walk, self.pointers = f, walk, beside
        self.row, self.move, self.extent, self.stride = (
            f.argument(args, first + n) for n in range(4)
        )
        self.axes = [
            (f.argument(args, first + 4 + 2 * n), f.argument(args, first + 5 + 2 * n))
            for n in range(walk.outer)
        ]

    def rows(self) -> tuple[strided.Odometer, list[Value]]:
        """The odometer over rows and its start at the kernel's first unit."""
        f, begin = self.f, self.f.params[1]
        moves = [move for _, move in self.axes]
        odometer = strided.Odometer(f, [extent for extent, _ in self.axes], [moves])
        return odometer, odometer.start(begin, [self.pointers[1]])

    def element(self, data: Value, unit: Value, index: Value) -> tuple[Value, Value]:
        """Addresses of (other, data) for element ``index`` of row ``unit``."""
        f, walk = self.f, self.walk
        other, _, indices = self.pointers
        at = unit * self.row + index
        position = index_at(
            f, f.offset(indices, at * walk.index_size), walk.index_size, self.extent
        )
        place = f.offset(f.offset(data, index * self.move), position * self.stride)
        return f.offset(other, at * walk.size), place


def _elements_text(symbol: str, walk: ElementWalk, target: Target) -> str:
    module = Module(target)
    fill = strided.filler(module, walk.size)
    f = module.kernel(symbol)
    args, begin, end, _ = f.params
    to, data, indices = (f.argument(args, n, PTR) for n in range(3))
    at = walk_elements(f, walk, 3, (to, data, indices))
    odometer, start = at.rows()
    element = strided.MOVES[walk.size]
    with f.when(at.extent > 0), f.loop(begin, end, carry=start) as unit:
        with f.loop(0, at.row) as turn:
            there, place = at.element(unit.carried[-1], unit.index, turn.index)
            f.store(f.load(element, place), there)
        unit.update(odometer.following(unit.carried))
    with f.unless(at.extent > 0):
        first = f.offset(to, begin * at.row * walk.size)
        f.call(fill, [first, f.const(0, element), (end - begin) * at.row])
    f.return_()
    return module.text()


# -- OneHot ---------------------------------------------------------------------------------------


def _one_hot(node: Node, graph: Graph, target: Target) -> step.Step:
    indices, depth = graph.shape(node.inputs[0]), node.attr("depth")
    axis = int(node.attr("axis", -1))
    axis += len(indices) + 1 if axis < 0 else 0
    size = graph.dtype(node.inputs[1]).size_bytes
    index_size = graph.dtype(node.inputs[0]).size_bytes
    inner = dims.product(list(indices[axis:]))
    symbol = f"one_hot{size}_{index_size}"
    return step.Step(
        name=node.name or node.op,
        kernel=step.Kernel(symbol, _one_hot_text(symbol, size, index_size, target)),
        operands=(
            step.Write(node.outputs[0]), step.Read(node.inputs[0]), step.Read(node.inputs[1])
        ),
        params=(depth, inner),
        units=dims.product(list(indices)),
        grain=strided.grain_of(dims.mul(depth, 4), _CLAIM_BYTES),
        bytes_moved=dims.mul(dims.product(graph.shape(node.outputs[0])), size),
    )  # fmt: skip


def _one_hot_text(symbol: str, size: int, index_size: int, target: Target) -> str:
    module = Module(target)
    f = module.kernel(symbol)
    args, begin, end, _ = f.params
    to, indices, values = (f.argument(args, n, PTR) for n in range(3))
    depth, inner = f.argument(args, 3), f.argument(args, 4)
    element = strided.MOVES[size]
    off, on = f.load(element, values), f.load(element, values, size)
    with f.loop(begin, end) as unit:
        found = f.load(f"i{8 * index_size}", f.offset(indices, unit.index * index_size))
        wide = found if index_size == 8 else f.convert("sext", found, I64)
        wide = f.select(wide < 0, wide + depth, wide)
        outer = unit.index // f.maximum(inner, 1)
        first = outer * (depth * inner) + (unit.index - outer * inner)
        with f.loop(0, depth) as turn:
            value = f.select(turn.index.equals(wide), on, off)
            f.store(value, to, (first + turn.index * inner) * size)
    f.return_()
    return module.text()
