"""Fused elementwise expressions: one loop over the output, every input contiguous or broadcast.

Axes on which all operands walk alike are merged; the last one is the vector axis, the one before
it an inner loop, the rest and blocks of these two are the units. ``pointwise.py`` prints the
expression. Plain elementwise nodes are lowered here too, through ``expression_of``.
"""

from __future__ import annotations

import dataclasses

from castiron.compiler.codegen import loop, pointwise, step, sweep
from castiron.compiler.codegen.kernels import axes as axes_of
from castiron.compiler.codegen.kernels import short_rows
from castiron.compiler.codegen.loop import I64, PTR, Function, Module, Value
from castiron.compiler.target import Target
from castiron.graph.expr import Expr
from castiron.graph.graph import Extent, Graph, Node
from castiron.graph.ops import elementwise
from castiron.tensor import dim
from castiron.tensor import dtype as dtypes

# Every op that this file lowers; in practice passes have made them all into ``Fused``.
OPS = (
    *elementwise.UNARY, *elementwise.ARITHMETIC, *elementwise.COMPARISONS, *elementwise.LOGIC,
    "Where", "Cast", "CastLike", "Clip", "IsNaN", "IsInf", "PRelu", "Dropout", "Fused",
)  # fmt: skip

_UNIT_ELEMENTS = 8192
_GRAIN_ELEMENTS = 65536
# Words of an argument block that operands and params may fill together.
_MOST_WORDS = 90
_LIGHT = frozenset(
    "input const add sub mul min max relu neg abs where less less_equal greater greater_equal"
    " equal and or not xor cast".split()
)
# How an operand moves along the vector axis: by one element, not at all, or one of the two.
_ALONG, _STILL, _EITHER = "a", "s", "e"


def gap(node: Node, graph: Graph) -> str | None:
    """Why there is no kernel for this elementwise node, or None."""
    if node.op == "Dropout" and any(node.inputs[2:]):
        return "Dropout in training mode"
    expression = elementwise.expression_of(node, graph)
    if expression is None:
        return f"no expression for {node.op} of these dtypes"
    if any(node.outputs[1:]):
        return f"{node.op} with a second output"
    reason = pointwise.supported(expression)
    if reason:
        return f"no code for {reason}"
    if any(graph.types[value].shape is None for value in (*node.inputs, node.outputs[0]) if value):
        return "shapes of unknown rank"
    form = _form(node, graph, expression)
    if len(form.params) + form.num_inputs > _MOST_WORDS:
        return f"{form.num_inputs} inputs over {len(form.axes)} axes need too many strides"
    return None


def lower(node: Node, graph: Graph, target: Target) -> step.Lowered:
    """One step; the output may take the memory of any input of its own shape and element size."""
    expression = elementwise.expression_of(node, graph)
    assert expression is not None, "gap() has said so"
    form = _form(node, graph, expression)
    reads = [step.Read(node.inputs[index]) for index in form.inputs]
    total = dim.product([axis.extent for axis in form.axes])
    return step.Lowered(
        steps=(
            step.Step(
                name=node.name or node.op,
                kernel=_kernel(form, target),
                operands=(*reads, step.Write(node.outputs[0])),
                params=form.params,
                units=form.units,
                grain=form.grain,
                flops=dim.mul(total, _num_operations(expression)),
                bytes_moved=form.bytes_moved,
                in_place=_in_place(node, graph, form),
            ),
        )
    )


@dataclasses.dataclass(frozen=True, slots=True)
class _Form:
    """What a kernel's text depends on (the fields above ``axes``), and the numbers it is given."""

    expression: Expr
    inputs: tuple[int, ...]
    dtypes: tuple[str, ...]
    classes: tuple[str, ...]
    moves: tuple[tuple[bool, ...], ...]
    fixed_inner: int
    ways: tuple[str, ...]
    axes: tuple[axes_of.Axis, ...]

    @property
    def num_inputs(self) -> int:
        return len(self.inputs)

    @property
    def inner(self) -> Extent:
        return self.axes[-1].extent

    @property
    def mid(self) -> Extent:
        return self.axes[-2].extent if len(self.axes) > 1 else 1

    @property
    def mid_step(self) -> Extent:
        return dim.maximum(1, dim.floordiv(_UNIT_ELEMENTS, dim.maximum(self.inner, 1)))

    @property
    def inner_blocks(self) -> Extent:
        return dim.ceildiv(self.inner, _UNIT_ELEMENTS)

    @property
    def mid_blocks(self) -> Extent:
        return dim.ceildiv(self.mid, self.mid_step)

    @property
    def units(self) -> Extent:
        outer = dim.product([axis.extent for axis in self.axes[:-2]])
        return dim.mul(outer, dim.mul(self.mid_blocks, self.inner_blocks))

    @property
    def grain(self) -> Extent:
        work = 4 if _is_light(self.expression) else 16
        across = dim.minimum(dim.maximum(self.inner, 1), _UNIT_ELEMENTS)
        unit = dim.mul(across, dim.minimum(dim.maximum(self.mid, 1), self.mid_step))
        return dim.maximum(1, dim.floordiv(4 * _GRAIN_ELEMENTS // work, unit))

    @property
    def bytes_moved(self) -> Extent:
        total: Extent = 0
        for number, dtype in enumerate(self.dtypes):
            moving = [axis.extent for axis in self.axes if axis.strides[number] != 0]
            total = dim.add(total, dim.mul(dim.product(moving), dtypes.named(dtype).size_bytes))
        return total

    @property
    def params(self) -> tuple[Extent, ...]:
        """Extents from the inside out, then byte strides of each operand that moves."""
        found: list[Extent] = []
        if not self.fixed_inner:
            found += [self.inner, self.inner_blocks]
        if len(self.axes) > 1:
            found += [self.mid, self.mid_step, self.mid_blocks]
        found += [axis.extent for axis in self.axes[1:-2]]
        sizes = [dtypes.named(dtype).size_bytes for dtype in self.dtypes]
        for number, size in enumerate(sizes):
            if self.classes[number] == _EITHER:
                found.append(dim.mul(self.axes[-1].strides[number], size))
        for number, size in enumerate(sizes):
            for axis, moves in zip(self.axes[:-1], self.moves[number], strict=True):
                if moves:
                    found.append(dim.mul(axis.strides[number], size))
        return tuple(found)


def _form(node: Node, graph: Graph, expression: Expr) -> _Form:
    output = node.outputs[0]
    shape = graph.shape(output)
    inputs = _inputs_read(expression)
    strides = [
        axes_of.broadcast_strides(graph.shape(node.inputs[index]), shape) for index in inputs
    ]
    strides.append(axes_of.strides_of(shape))
    axes = axes_of.merged(
        [
            axes_of.Axis(extent, tuple(operand[number] for operand in strides))
            for number, extent in enumerate(shape)
        ]
        or [axes_of.Axis(1, (1,) * len(strides))]
    )
    named = [graph.dtype(node.inputs[index]).name for index in inputs]
    inner = axes[-1]
    fixed = inner.extent if isinstance(inner.extent, int) and len(axes) > 1 else 0
    return _Form(
        expression=expression,
        inputs=inputs,
        dtypes=(*named, graph.dtype(output).name),
        classes=tuple(_class_of(stride) for stride in inner.strides),
        moves=tuple(
            tuple(axis.strides[number] != 0 for axis in axes[:-1]) for number in range(len(strides))
        ),
        fixed_inner=fixed if fixed <= 96 else 0,
        ways=_short_ways(axes, fixed),
        axes=tuple(axes),
    )


def _short_ways(axes: list[axes_of.Axis], inner: int) -> tuple[str, ...]:
    """How operands are read when several short rows go into a vector; () when they do not."""
    if len(axes) < 2:
        return ()
    pairs = tuple(zip(axes[-2].strides, axes[-1].strides, strict=True))
    return short_rows.ways_of(inner, pairs) or ()


def _class_of(stride: Extent) -> str:
    if stride == 0:
        return _STILL
    return _ALONG if stride == 1 else _EITHER


def _inputs_read(expression: Expr) -> tuple[int, ...]:
    return tuple(sorted({expr.index for expr in _all_of(expression) if expr.op == "input"}))


def _all_of(expression: Expr) -> list[Expr]:
    found: list[Expr] = []
    waiting, seen = [expression], {id(expression)}
    while waiting:
        expr = waiting.pop()
        found.append(expr)
        for arg in expr.args:
            if id(arg) not in seen:
                seen.add(id(arg))
                waiting.append(arg)
    return found


def _is_light(expression: Expr) -> bool:
    every = _all_of(expression)
    return len(every) <= 24 and all(expr.op in _LIGHT for expr in every)


def _num_operations(expression: Expr) -> int:
    return sum(expr.op not in ("input", "const") for expr in _all_of(expression))


def _in_place(node: Node, graph: Graph, form: _Form) -> tuple[tuple[int, int], ...]:
    size = dtypes.named(form.dtypes[-1]).size_bytes
    shape = graph.shape(node.outputs[0])
    return tuple(
        (form.num_inputs, number)
        for number, index in enumerate(form.inputs)
        if dtypes.named(form.dtypes[number]).size_bytes == size
        and graph.shape(node.inputs[index]) == shape
    )


def _kernel(form: _Form, target: Target) -> step.Kernel:
    described = repr((
        form.expression, form.inputs, form.dtypes, form.classes, form.moves, form.fixed_inner,
        form.ways,
    ))  # fmt: skip
    symbol = f"fused_{form.dtypes[-1]}_{len(form.axes)}d_{step.tag(described)}"
    module = Module(target)
    _Printer(module.kernel(symbol), form).print()
    return step.Kernel(symbol, module.text())


class _Printer:
    """One kernel being written; pointers of operands narrow from the unit to the row."""

    def __init__(self, f: Function, form: _Form) -> None:
        self.f = f
        self.form = form
        self.kinds = [dtypes.named(name) for name in form.dtypes]
        every = {dtypes.named(expr.dtype).size_bytes for expr in _all_of(form.expression)}
        widest = max(every | {kind.size_bytes for kind in self.kinds})
        self.lanes = f.target.vector_bytes // widest
        self._next = len(form.dtypes)
        self._scalars: dict[int, Value] = {}

    def _param(self, type_: str = I64) -> Value:
        self._next += 1
        return self.f.argument(self.f.params[0], self._next - 1, type_)

    def print(self) -> None:
        """The whole kernel."""
        f, form = self.f, self.form
        pointers = [f.argument(f.params[0], n, PTR) for n in range(len(form.dtypes))]
        inner: Value | int = form.fixed_inner or self._param()
        inner_blocks: Value | int = 1 if form.fixed_inner else self._param()
        sizes = [self._param() for _ in range(3)] if len(form.axes) > 1 else []
        outer = [None, *(self._param() for _ in form.axes[1:-2])] if len(form.axes) > 2 else []
        self._steps = [self._param() if c == _EITHER else None for c in form.classes]
        self._strides = [[self._param() if moves else None for moves in m] for m in form.moves]
        self._load_constants(pointers)
        with f.loop(f.params[1], f.params[2]) as unit:
            rest: Value = unit.index
            block: Value | int = 0
            if not isinstance(inner_blocks, int):
                rest, block = axes_of.split_index(f, rest, [None, inner_blocks])
            if not sizes:
                self._row(pointers, block, inner)
            else:
                self._rows(pointers, (rest, block, inner), sizes, outer)
        f.return_()

    def _load_constants(self, pointers: list[Value]) -> None:
        """Read the operands that are one element once, before all loops."""
        for number, class_ in enumerate(self.form.classes[:-1]):
            if class_ == _STILL and not any(self.form.moves[number]):
                self._scalars[number] = self._splat(number, pointers[number])

    def _splat(self, number: int, pointer: Value) -> Value:
        value = self.f.load(self.kinds[number].llvm, pointer)
        value = pointwise.from_memory(value, self.form.dtypes[number])
        return self.f.splat(value, self.lanes)

    def _rows(
        self,
        pointers: list[Value],
        where: tuple[Value, Value | int, Value | int],
        sizes: list[Value],
        outer: list[Value | None],
    ) -> None:
        f = self.f
        rest, block, inner = where
        mid, mid_step, mid_blocks = sizes
        before, mid_block = axes_of.split_index(f, rest, [None, mid_blocks])
        coordinates = axes_of.split_index(f, before, outer) if outer else []
        moved = [self._moved(number, p, coordinates) for number, p in enumerate(pointers)]
        first = mid_block * mid_step
        stop = f.minimum(first + mid_step, mid)
        if self.form.ways and short_rows.fits(self.form.fixed_inner, self.lanes):
            first = self._groups(moved, first, stop)
        with f.loop(first, stop) as row:
            last = [
                pointer if strides[-1] is None else f.offset(pointer, row.index * strides[-1])
                for pointer, strides in zip(moved, self._strides, strict=True)
            ]
            self._row(last, block, inner)

    def _groups(self, pointers: list[Value], first: Value, stop: Value) -> Value:
        """Short rows, several to a vector, as far as groups are full; returns the next row."""
        f, form, lanes = self.f, self.form, self.lanes
        inner = form.fixed_inner
        rows = short_rows.rows_of(inner, lanes)
        num_vectors = short_rows.vectors_of(inner, lanes)
        sizes = [kind.size_bytes for kind in self.kinds]
        fixed: dict[int, list[Value]] = {}
        for number, way in enumerate(form.ways):
            if way == short_rows.ONE_ROW:
                fixed[number] = short_rows.repeated(
                    f, pointers[number], self.kinds[number], inner, lanes
                )
            elif way == short_rows.ONE:
                value = self._scalars.get(number) or self._splat(number, pointers[number])
                fixed[number] = [value] * num_vectors
        end = first + ((stop - first) & -rows)
        with f.loop(first, end, rows) as group:
            given: dict[int, list[Value]] = dict(fixed)
            for number, way in enumerate(form.ways[:-1]):
                if way == short_rows.ONE_EACH:
                    place = f.offset(pointers[number], group.index * sizes[number])
                    kind = self.kinds[number]
                    given[number] = short_rows.spread(f, place, kind, inner, lanes)
                elif way == short_rows.WHOLE:
                    place = f.offset(pointers[number], group.index * (inner * sizes[number]))
                    type_ = loop.vector(lanes, self.kinds[number].llvm)
                    given[number] = [
                        f.load(type_, place, vector * lanes * sizes[number])
                        for vector in range(num_vectors)
                    ]
            place = f.offset(pointers[-1], group.index * (inner * sizes[-1]))
            for vector in range(num_vectors):
                inputs = {form.inputs[number]: given[number][vector] for number in given}
                f.store(self._value(inputs, lanes), place, vector * lanes * sizes[-1])
        return end

    def _value(self, inputs: dict[int, Value], lanes: int) -> Value:
        """The expression's value in memory form; ``inputs`` by their number in it."""
        f, form = self.f, self.form
        last = max(form.inputs, default=-1)
        nothing = f.const(0, I64)
        given = [inputs.get(position, nothing) for position in range(last + 1)]
        result = pointwise.emit(f, form.expression, given, lanes=lanes)
        return pointwise.to_memory(f, result, form.dtypes[-1])

    def _moved(self, number: int, pointer: Value, coordinates: list[Value]) -> Value:
        for coordinate, stride in zip(coordinates, self._strides[number], strict=False):
            if stride is not None:
                pointer = self.f.offset(pointer, coordinate * stride)
        return pointer

    def _row(self, pointers: list[Value], block: Value | int, inner: Value | int) -> None:
        """One block of the vector axis; ``pointers`` are at the row's first element."""
        f = self.f
        count = inner
        first: Value | int = 0
        if not isinstance(inner, int):
            first = block * _UNIT_ELEMENTS
            assert isinstance(first, Value), "a run-time extent has run-time blocks"
            count = f.minimum(inner - first, _UNIT_ELEMENTS)
        uncertain = [number for number, class_ in enumerate(self.form.classes) if class_ == _EITHER]
        if not uncertain:
            self._sweep(pointers, first, count, self.lanes)
            return
        is_dense = f.const(True, loop.I1)
        for number in uncertain:
            stride = self._steps[number]
            assert stride is not None, "uncertain operands have a stride"
            is_dense = is_dense & stride.equals(self.kinds[number].size_bytes)
        with f.when(is_dense):
            self._sweep(pointers, first, count, self.lanes)
        with f.unless(is_dense):
            self._sweep(pointers, first, count, 1)

    def _sweep(
        self, pointers: list[Value], first: Value | int, count: Value | int, lanes: int
    ) -> None:
        f, form = self.f, self.form
        starts = list(pointers)
        still: dict[int, Value] = {}
        for number, class_ in enumerate(form.classes):
            if class_ == _STILL and number < form.num_inputs:
                scalar = self._scalars.get(number)
                still[number] = scalar or self._splat(number, pointers[number])
                if lanes == 1:
                    still[number] = f.extract(still[number], 0)
            elif isinstance(first, Value):
                starts[number] = f.offset(pointers[number], first * self._step_of(number, lanes))

        def body(index: Value, mask: Value | None, _: list[Value]) -> list[Value]:
            inputs: dict[int, Value] = {}
            for number, position in enumerate(form.inputs):
                if number in still:
                    inputs[position] = still[number]
                    continue
                place = f.offset(starts[number], index * self._step_of(number, lanes))
                type_ = loop.vector(lanes, self.kinds[number].llvm)
                inputs[position] = sweep.read(f, type_, place, mask)
            result = self._value(inputs, lanes)
            place = f.offset(starts[-1], index * self.kinds[-1].size_bytes)
            sweep.write(f, result, place, mask)
            return []

        sweep.sweep(f, count, lanes, body, ways=4 if _is_light(form.expression) else 1)

    def _step_of(self, number: int, lanes: int) -> Value | int:
        stride = self._steps[number]
        if lanes == 1 and stride is not None:
            return stride
        return self.kinds[number].size_bytes
