"""Reduce*: sums, products, extremes and norms over any axes.

Neighbouring axes of one kind are merged. If the last axis is reduced, vectors lie along it and a
unit is one result; otherwise vectors lie across it and a unit is a block of results. Long sums go
chunk by chunk in an order that depends on the shape alone. ``accumulators.py`` has the arithmetic.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from castiron.compiler.codegen import loop, step, sweep
from castiron.compiler.codegen.kernels import accumulators, axes, epilogues
from castiron.compiler.codegen.kernels.accumulators import Accumulator
from castiron.compiler.codegen.loop import I64, PTR, Function, Module, Value
from castiron.compiler.target import Target
from castiron.graph.graph import Extent, Graph, Node
from castiron.tensor import dim
from castiron.tensor import dtype as dtypes

OPS = tuple(accumulators.OPS)

_GRAIN_ELEMENTS = 16384
_COLUMNS_ABREAST = 4
_WAYS = 4
# Elements of one partial sum of the innermost reduced axis: along it, and across it.
_CHUNK_ALONG, _CHUNK_ACROSS = 8192, 256
_MOST_AXES = 6
# Lines of a known length up to this are added element by element.
_SHORT = 8


def gap(node: Node, graph: Graph) -> str | None:
    """Why there is no kernel for this node, or None."""
    kind = graph.types[node.inputs[0]]
    if kind.shape is None or kind.dtype is None:
        return f"{node.op} of unknown rank"
    reason = accumulators.gap(node.op, kind.dtype)
    if reason:
        return reason
    if _reduced_axes(node, graph) is None:
        return f"{node.op} whose axes only the data say"
    form = _form(node, graph)
    if len(form.kept) > _MOST_AXES or len(form.reduced) > _MOST_AXES:
        return f"{node.op} over more than {_MOST_AXES} separate groups of axes"
    epilogue, _ = epilogues.of_node(node, graph)
    if epilogue is not None and epilogues.VECTOR in epilogue.kinds and not form.has_vector_axis:
        return f"{node.op} with an epilogue along an axis that is not its vectors'"
    return epilogues.gap(node, graph)


def lower(node: Node, graph: Graph, target: Target) -> step.Lowered:
    """One step over results or blocks of results."""
    form = _form(node, graph)
    epilogue, extras = epilogues.of_node(node, graph)
    where = "along" if form.is_along else "across"
    shape = f"{len(form.kept)}k{len(form.reduced)}r{form.short or ''}"
    symbol = f"{node.op.lower()}_{form.dtype}_{where}_{shape}{epilogues.tag(epilogue)}"
    module = Module(target)
    f = module.kernel(symbol)
    _Printer(f, form, accumulators.of(node.op, form.dtype), epilogue).print()
    size = dim.product(graph.shape(node.inputs[0]))
    lanes = target.vector_bytes // max(form.dtype.size_bytes, 4)
    one = step.Step(
        name=node.name or node.op,
        kernel=step.Kernel(symbol, module.text()),
        operands=(
            step.Read(node.inputs[0]),
            *(step.Read(value) for value in extras),
            step.Write(node.outputs[0]),
        ),
        params=form.params(lanes),
        units=form.units(lanes),
        grain=form.grain(lanes),
        flops=size,
        bytes_moved=dim.mul(size, form.dtype.size_bytes),
    )
    return step.Lowered(steps=(one,))


def _reduced_axes(node: Node, graph: Graph) -> set[int] | None:
    """The reduced axes from the attr or a constant second input; None if neither says."""
    given = node.attr("axes")
    num_own = node.attr("num_own", len(node.inputs))
    if given is None and num_own > 1 and len(node.inputs) > 1 and node.inputs[1]:
        constant = graph.constants.get(node.inputs[1])
        if constant is None:
            return None
        given = constant.reshape(-1).tolist()
    rank = len(graph.shape(node.inputs[0]))
    if not given:
        return set() if node.attr("noop_with_empty_axes", 0) else set(range(rank))
    return {int(axis) % rank for axis in given}


@dataclasses.dataclass(frozen=True, slots=True)
class _Form:
    """Merged axes: ``kept`` and ``reduced``, from the outside in; which kind is innermost."""

    dtype: dtypes.DType
    kept: tuple[axes.Axis, ...]
    reduced: tuple[axes.Axis, ...]
    is_along: bool
    has_vector_axis: bool

    @property
    def short(self) -> int:
        """The length of a line too short for vectors, where it is known; else 0."""
        extent = self.reduced[0].extent
        is_short = self.is_along and len(self.reduced) == 1 and isinstance(extent, int)
        return extent if is_short and isinstance(extent, int) and extent <= _SHORT else 0

    @property
    def inner(self) -> Extent:
        return 1 if self.is_along else self.kept[-1].extent

    @property
    def outer(self) -> tuple[axes.Axis, ...]:
        """Kept axes other than the vectors' one."""
        return self.kept if self.is_along else self.kept[:-1]

    def blocks(self, lanes: int) -> Extent:
        """Blocks of columns of one outer index."""
        return dim.ceildiv(self.inner, lanes * _COLUMNS_ABREAST)

    def units(self, lanes: int) -> Extent:
        return dim.mul(dim.product([axis.extent for axis in self.outer]), self.blocks(lanes))

    def grain(self, lanes: int) -> Extent:
        work = dim.product([axis.extent for axis in self.reduced])
        columns = dim.minimum(self.inner, lanes * _COLUMNS_ABREAST)
        work = dim.maximum(1, dim.mul(work, columns))
        return dim.maximum(1, dim.floordiv(_GRAIN_ELEMENTS, work))

    def params(self, lanes: int) -> tuple[Extent, ...]:
        """Count of reduced elements; extents and byte strides of reduced, then of outer axes."""
        found: list[Extent] = [dim.product([axis.extent for axis in self.reduced])]
        for axis in (*self.reduced, *self.outer):
            found += [axis.extent, dim.mul(axis.strides[0], self.dtype.size_bytes)]
        if not self.is_along:
            found += [self.inner, self.blocks(lanes)]
        return tuple(found)


def _form(node: Node, graph: Graph) -> _Form:
    shape = graph.shape(node.inputs[0])
    reduced = _reduced_axes(node, graph) or set()
    strides = axes.strides_of(shape)
    merged = axes.merged([
        axes.Axis(extent, (stride,), axis in reduced)
        for axis, (extent, stride) in enumerate(zip(shape, strides, strict=True))
    ])  # fmt: skip
    inside = tuple(axis for axis in merged if axis.is_reduced)
    kept = tuple(axis for axis in merged if not axis.is_reduced)
    is_along = not kept or merged[-1].is_reduced
    # With nothing to reduce each result is one element: a line of extent 1 keeps one code path.
    inside = inside or (axes.Axis(1, (1,), is_reduced=True),)
    output = graph.shape(node.outputs[0])
    is_vector = not is_along and bool(output) and output[-1] == kept[-1].extent
    return _Form(graph.dtype(node.inputs[0]), kept, inside, is_along, is_vector)


class _Printer:
    """One kernel being written."""

    def __init__(
        self,
        f: Function,
        form: _Form,
        accumulator: Accumulator,
        epilogue: epilogues.Epilogue | None,
    ) -> None:
        self.f = f
        self.form = form
        self.accumulator = accumulator
        self.epilogue = epilogue
        self.lanes = 1 if form.short else f.target.vector_bytes // max(form.dtype.size_bytes, 4)
        self._next = 0

    def _param(self, type_: str = I64) -> Value:
        self._next += 1
        return self.f.argument(self.f.params[0], self._next - 1, type_)

    def print(self) -> None:
        """The whole kernel."""
        f, form = self.f, self.form
        source = self._param(PTR)
        kinds = self.epilogue.kinds if self.epilogue else ()
        self._extras = [self._param(PTR) for _ in kinds]
        self._result = self._param(PTR)
        self._count = self._param()
        self._reduced = [(self._param(), self._param()) for _ in form.reduced]
        outer = [(self._param(), self._param()) for _ in form.outer]
        inner, blocks = (None, None) if form.is_along else (self._param(), self._param())
        with f.loop(f.params[1], f.params[2]) as unit:
            before, block = unit.index, unit.index
            if blocks is not None:
                before, block = axes.split_index(f, unit.index, [None, blocks])
            place = source
            if outer:
                extents = [None, *(extent for extent, _ in outer[1:])]
                for at, (_, stride) in zip(
                    axes.split_index(f, before, extents), outer, strict=True
                ):
                    place = f.offset(place, at * stride)
            if inner is None:
                self._finish(before, self._along(place), None)
            else:
                self._columns(place, before, block, inner)
        f.return_()

    # -- vectors along the last reduced axis ---------------------------------------------------

    def _along(self, place: Value) -> Value:
        """The reduced scalar of the values at ``place``."""
        accumulator = self.accumulator
        shift = None
        if accumulator.first is not None:
            shift = self._along_with(place, accumulator.first, None)
        total = self._along_with(place, accumulator, shift)
        return accumulator.finish(self.f, total, self._count, shift)

    def _along_with(self, place: Value, accumulator: Accumulator, shift: Value | None) -> Value:
        f, lanes = self.f, self.lanes
        type_ = loop.vector(lanes, self.form.dtype.llvm)
        start = f.const(accumulator.identity, type_)
        wide = None if shift is None else f.splat(shift, lanes)
        size_bytes = self.form.dtype.size_bytes

        def line(at: Value, first: Value | int, count: Value | int) -> Value:
            at = f.offset(at, first * size_bytes)

            def visit(index: Value, mask: Value | None, carried: list[Value]) -> list[Value]:
                x = sweep.read(f, type_, f.offset(at, index * size_bytes), mask, accumulator.fill)
                return [accumulator.take(f, carried[0], x, wide)]

            states = sweep.sweep(f, count, lanes, visit, [start], ways=_WAYS)
            return sweep.fold_ways(states, lambda a, b: accumulator.join(f, a, b))[0]

        if self.form.short:
            return line(place, 0, self.form.short)
        total = self._nest(place, accumulator, [start], lambda *a: [line(*a)], _CHUNK_ALONG)[0]
        return sweep.fold(f, total, lambda a, b: accumulator.join(f, a, b))

    def _nest(
        self,
        place: Value,
        accumulator: Accumulator,
        totals: list[Value],
        line: Callable[[Value, Value, Value], list[Value]],
        chunk: int,
    ) -> list[Value]:
        """Loops over all reduced axes; ``line(place, first, count)`` does a part of the last."""

        def level(number: int, at: Value, sums: list[Value]) -> list[Value]:
            f = self.f
            extent, stride = self._reduced[number]
            if number == len(self._reduced) - 1:
                with f.loop(0, extent, chunk, sums) as part:
                    count = f.minimum(extent - part.index, chunk)
                    parts = line(at, part.index, count)
                    pairs = zip(part.carried, parts, strict=True)
                    part.update([accumulator.join(f, a, b) for a, b in pairs])
                return part.results
            with f.loop(0, extent, 1, sums) as outer:
                outer.update(level(number + 1, f.offset(at, outer.index * stride), outer.carried))
            return outer.results

        return level(0, place, totals)

    # -- vectors across ------------------------------------------------------------------------

    def _columns(self, place: Value, before: Value, block: Value, inner: Value) -> None:
        """One block of columns: several vectors abreast, or what is left one by one."""
        f, lanes = self.f, self.lanes
        width = lanes * _COLUMNS_ABREAST
        first = block * width
        stop = f.minimum(first + width, inner)
        is_full = (stop - first).equals(width)
        with f.when(is_full):
            self._block(place, (before, inner), first, (_COLUMNS_ABREAST, None))
        with f.unless(is_full):
            whole = first + ((stop - first) & -lanes)
            with f.loop(first, whole, lanes) as single:
                self._block(place, (before, inner), single.index, (1, None))
            with f.when(whole < stop):
                mask = f.lane_mask(stop - whole, lanes)
                self._block(place, (before, inner), whole, (1, mask))

    def _block(
        self,
        place: Value,
        row: tuple[Value, Value],
        column: Value,
        width: tuple[int, Value | None],
    ) -> None:
        f, accumulator = self.f, self.accumulator
        num_vectors, mask = width
        at = f.offset(place, column * self.form.dtype.size_bytes)
        shifts: list[Value | None] = [None] * num_vectors
        if accumulator.first is not None:
            shifts = [*self._across(at, accumulator.first, shifts, mask)]
        totals = self._across(at, accumulator, shifts, mask)
        before, inner = row
        for number, (total, shift) in enumerate(zip(totals, shifts, strict=True)):
            value = accumulator.finish(f, total, self._count, shift)
            here = column + number * self.lanes
            self._finish(before * inner + here, value, mask, here)

    def _across(
        self,
        place: Value,
        accumulator: Accumulator,
        shifts: list[Value | None],
        mask: Value | None,
    ) -> list[Value]:
        f = self.f
        type_ = loop.vector(self.lanes, self.form.dtype.llvm)
        start = [f.const(accumulator.identity, type_) for _ in shifts]
        width = self.lanes * self.form.dtype.size_bytes
        stride = self._reduced[-1][1]

        def line(at: Value, first: Value, count: Value) -> list[Value]:
            at = f.offset(at, first * stride)
            with f.loop(0, count, 1, start) as position:
                row = f.offset(at, position.index * stride)
                taken = []
                for number, shift in enumerate(shifts):
                    x = sweep.read(f, type_, f.offset(row, number * width), mask)
                    taken.append(accumulator.take(f, position.carried[number], x, shift))
                position.update(taken)
            return position.results

        return self._nest(place, accumulator, start, line, _CHUNK_ACROSS)

    # -- results -------------------------------------------------------------------------------

    def _finish(
        self, index: Value, value: Value, mask: Value | None, column: Value | None = None
    ) -> None:
        """Apply the epilogue and store at the result's flat index."""
        f, size_bytes = self.f, self.form.dtype.size_bytes
        if self.epilogue is not None:
            places = []
            for kind, pointer in zip(self.epilogue.kinds, self._extras, strict=True):
                at = {epilogues.FULL: index, epilogues.VECTOR: column}.get(kind)
                places.append(pointer if at is None else f.offset(pointer, at * size_bytes))
            value = epilogues.apply(f, self.epilogue, value, (places, mask))
        sweep.write(f, value, f.offset(self._result, index * size_bytes), mask)
