"""TopK and CumSum: work along one axis that goes element by element.

TopK turns elements into integer keys that sort as wished. A few are kept in order by insertion;
for larger k candidates are gathered in 2 k places and merge-sorted whenever these are full. Elements of up to 32 bits share a 64-bit word with their
position, others are pairs; equal elements come in the order of their positions, NaN is largest.
"""

from __future__ import annotations

from castiron.compiler.codegen import loop, step, sweep, vectors
from castiron.compiler.codegen.kernels import axes
from castiron.compiler.codegen.kernels import lines as frame
from castiron.compiler.codegen.loop import I32, I64, PTR, Function, Module, Value
from castiron.compiler.target import Target
from castiron.graph.graph import Extent, Graph, Node
from castiron.tensor import dim
from castiron.tensor import dtype as dtypes

_DTYPES = ("float32", "float64", "int32", "int64", "int8", "uint8")
# Up to this many are kept by insertion.
_MOST_INSERTED = 64
_GRAIN_ELEMENTS = 8192


def gap(node: Node, graph: Graph) -> str | None:
    """Why there is no kernel for this TopK, or None."""
    kind = graph.types[node.inputs[0]]
    if not kind.shape or any(graph.types[v].shape is None for v in node.outputs if v):
        return "TopK of a scalar or of unknown shape"
    if kind.dtype is None or kind.dtype.name not in _DTYPES:
        return f"TopK of {kind.dtype}"
    if len(node.outputs) < 2 or not all(node.outputs):
        return "TopK without one of its outputs"
    return None


def lower(node: Node, graph: Graph, target: Target) -> step.Lowered:
    """One step; a unit is one line along the axis."""
    shape = graph.shape(node.inputs[0])
    axis = int(node.attr("axis", -1)) % len(shape)
    dtype = graph.dtype(node.inputs[0])
    k = graph.shape(node.outputs[0])[axis]
    count, inner = shape[axis], dim.product(shape[axis + 1 :])
    units = dim.mul(dim.product(shape[:axis]), inner)
    is_largest = bool(node.attr("largest", 1))
    symbol = f"topk_{dtype}_{'largest' if is_largest else 'smallest'}"
    module = Module(target)
    sort = module.function("sort", [(PTR, "a"), (PTR, "b"), (I64, "n")], returns=PTR)
    _TopK(sort, dtype, is_largest=is_largest).print_sort()
    writer = _TopK(module.kernel(symbol), dtype, is_largest=is_largest)
    writer.print(sort)
    size = dim.mul(units, count)
    one = step.Step(
        name=node.name or node.op,
        kernel=step.Kernel(symbol, module.text()),
        operands=(step.Read(node.inputs[0]), *(step.Write(value) for value in node.outputs)),
        params=(count, inner, k),
        units=units,
        grain=_grain(count),
        scratch_bytes=dim.mul(k, 32 * writer.num_words),
        flops=dim.mul(size, 16),
        bytes_moved=dim.mul(size, dtype.size_bytes),
    )
    return step.Lowered(steps=(one,))


def cumsum_gap(node: Node, graph: Graph) -> str | None:
    """Why there is no kernel for this CumSum, or None."""
    kind = graph.types[node.inputs[0]]
    if not kind.shape:
        return "CumSum of a scalar or of unknown rank"
    if kind.dtype is None or kind.dtype.name not in ("float32", "float64", "int32", "int64"):
        return f"CumSum of {kind.dtype}"
    return None if _cumsum_axis(node, graph) is not None else "CumSum whose axis only the data say"


def cumsum_lower(node: Node, graph: Graph, target: Target) -> step.Lowered:
    """One step over lines or blocks of columns; in place if the plan wishes."""
    shape = graph.shape(node.inputs[0])
    axis = _cumsum_axis(node, graph)
    assert axis is not None, "gap() has said so"
    lines = frame.along(shape, axis, axis + 1, graph.dtype(node.inputs[0]))
    lines = frame.Lines(lines.outer, lines.count, lines.inner, lines.dtype, may_fix=False)
    is_exclusive, is_reverse = bool(node.attr("exclusive", 0)), bool(node.attr("reverse", 0))
    flags = f"{'_exclusive' if is_exclusive else ''}{'_reverse' if is_reverse else ''}"
    symbol = f"cumsum_{lines.label}{flags}"
    module = Module(target)
    f = module.kernel(symbol)

    def line(pointers: list[Value], line: frame.Line) -> None:
        _accumulate(f, lines, (pointers, line), (is_exclusive, is_reverse))

    frame.walk(f, lines, 2, line)
    one = step.Step(
        name=node.name or node.op,
        kernel=step.Kernel(symbol, module.text()),
        operands=(step.Read(node.inputs[0]), step.Write(node.outputs[0])),
        params=lines.params,
        units=lines.units,
        grain=lines.grain,
        flops=lines.size,
        bytes_moved=dim.mul(lines.size, 2 * lines.dtype.size_bytes),
        in_place=((1, 0),),
    )
    return step.Lowered(steps=(one,))


def _grain(count: Extent) -> Extent:
    return dim.maximum(1, dim.floordiv(_GRAIN_ELEMENTS, dim.maximum(count, 1)))


def _cumsum_axis(node: Node, graph: Graph) -> int | None:
    axis = node.attr("axis")
    if axis is None:
        constant = graph.constants.get(node.inputs[1]) if len(node.inputs) > 1 else None
        if constant is None:
            return None
        axis = constant.reshape(-1)[0]
    return int(axis) % len(graph.shape(node.inputs[0]))


def _accumulate(
    f: Function,
    lines: frame.Lines,
    where: tuple[list[Value], frame.Line],
    flags: tuple[bool, bool],
) -> None:
    """Running sums of one line, element by element or column vector by column vector."""
    (source, result), line = where
    is_exclusive, is_reverse = flags
    lanes = line.lanes if line.column is not None else 1
    type_ = loop.vector(lanes, lines.dtype.llvm)
    assert isinstance(line.count, Value), "lengths are run-time values here"
    with f.loop(0, line.count, 1, [f.const(0, type_)]) as position:
        at = line.count - 1 - position.index if is_reverse else position.index
        place = frame.position_bytes(lines, line.offset + at * line.stride)
        start = f.offset(source, place)
        total = position.carried[0] + sweep.read(f, type_, start, line.mask)
        written = position.carried[0] if is_exclusive else total
        sweep.write(f, written, f.offset(result, place), line.mask)
        position.update([total])


class _TopK:
    """The kernel being written. An item is [key with position] or [key, position], as i64."""

    def __init__(self, f: Function, dtype: dtypes.DType, *, is_largest: bool) -> None:
        self.f = f
        self.dtype = dtype
        self.is_largest = is_largest
        self.num_words = 1 if dtype.size_bytes <= 4 else 2

    def print(self, sort: Function) -> None:
        """The whole kernel: each line by one of the two ways, then the best k are written."""
        f = self.f
        args, begin, end, scratch = f.params
        source, values, positions = (f.argument(args, n, PTR) for n in range(3))
        count, inner, k = (f.argument(args, n) for n in range(3, 6))
        is_few = k <= _MOST_INSERTED
        size_bytes = self.dtype.size_bytes
        with f.loop(begin, end) as unit:
            before, column = axes.split_index(f, unit.index, [None, inner])
            line = f.offset(source, (before * count * inner + column) * size_bytes)
            first = before * k * inner + column
            stride = inner * size_bytes
            with f.when(is_few):
                self._insert_all(line, stride, scratch, (count, k))
                self._write(line, (scratch, values, positions), (first, inner), (count, k))
            with f.unless(is_few):
                best = self._gather((line, stride, count), scratch, k, sort)
                self._write(line, (best, values, positions), (first, inner), (count, k))
        f.return_()

    # -- items -----------------------------------------------------------------------------------

    def _item(self, line: Value, stride: Value, index: Value) -> list[Value]:
        """The item of the element at ``index``: larger items are better."""
        f = self.f
        x = f.load(self.dtype.llvm, line, index * stride)
        if self.dtype.is_float:
            x = f.select(vectors.is_nan(f, x), float("nan"), x + 0.0)
            width = 8 * self.dtype.size_bytes
            pattern = vectors.bits(f, x)
            lower = (1 << (width - 1)) - 1
            x = pattern ^ ((pattern >> (width - 1)) & lower)
        elif self.dtype.size_bytes < 4:
            x = f.convert("sext" if self.dtype.is_signed else "zext", x, I32)
        if not self.is_largest:
            x = x ^ -1
        if self.num_words == 2:
            return [x, index]
        wide = f.convert("sext", x, I64) << 32
        return [wide | (f.const(0xFFFFFFFF, I64) - index)]

    def _position(self, item: list[Value]) -> Value:
        if self.num_words == 2:
            return item[1]
        return self.f.const(0xFFFFFFFF, I64) - (item[0] & 0xFFFFFFFF)

    def _beats(self, left: list[Value], right: list[Value]) -> Value:
        if self.num_words == 1:
            return left[0] > right[0]
        return (left[0] > right[0]) | (left[0].equals(right[0]) & (left[1] < right[1]))

    def _load(self, items: Value, index: Value) -> list[Value]:
        at = self.f.offset(items, index * (8 * self.num_words))
        return [self.f.load(I64, at, 8 * word) for word in range(self.num_words)]

    def _store(self, item: list[Value], items: Value, index: Value) -> None:
        at = self.f.offset(items, index * (8 * self.num_words))
        for word, value in enumerate(item):
            self.f.store(value, at, 8 * word)

    # -- the two ways ----------------------------------------------------------------------------

    def _insert_all(
        self, line: Value, stride: Value, kept: Value, size: tuple[Value, Value]
    ) -> None:
        """Keep the best k items in order at ``kept``."""
        f = self.f
        count, k = size
        with f.loop(0, k) as slot:
            self._store(self._least(), kept, slot.index)
        with f.when(k > 0), f.loop(0, count) as element:
            item = self._item(line, stride, element.index)
            with f.when(self._beats(item, self._load(kept, k - 1))), f.loop(0, k, 1, item) as slot:
                there = self._load(kept, slot.index)
                wins = self._beats(slot.carried, there)
                pairs = list(zip(slot.carried, there, strict=True))
                self._store([f.select(wins, a, b) for a, b in pairs], kept, slot.index)
                slot.update([f.select(wins, b, a) for a, b in pairs])

    def _least(self) -> list[Value]:
        """An item that every real one beats."""
        return [self.f.const(n, I64) for n in (-(1 << 63), (1 << 63) - 1)][: self.num_words]

    def _gather(
        self, elements: tuple[Value, Value, Value], scratch: Value, k: Value, sort: Function
    ) -> Value:
        """Candidates in scratch, cut to the best k when 2 k are there; returns the sorted ones."""
        f = self.f
        line, stride, count = elements
        room = k + k
        other = f.offset(scratch, room * (8 * self.num_words))
        with f.loop(0, count, 1, [f.const(0, I64), *self._least()]) as element:
            held, *bound = element.carried
            item = self._item(line, stride, element.index)
            self._store(item, scratch, held)
            held = held + f.convert("zext", self._beats(item, bound), I64)
            # A loop of no or one turn, since it carries values.
            is_full = f.convert("zext", held.equals(room), I64)
            with f.loop(0, is_full, 1, [held, *bound]) as cut:
                best = f.call(sort, [scratch, other, room])
                with f.loop(0, k) as slot:
                    self._store(self._load(best, slot.index), scratch, slot.index)
                cut.update([k, *self._load(scratch, k - 1)])
            element.update(cut.results)
        return f.call(sort, [scratch, other, element.results[0]])

    def print_sort(self) -> None:
        """``sort(items, other, count)``: the items in order, in one of the two places."""
        f = self.f
        items, other, count = f.params
        f.module.declare("llvm.ctlz.i64", I64, [I64, "i1 immarg"])
        last = f.maximum(count - 1, 0)
        zeros = f.emit(I64, f"call i64 @llvm.ctlz.i64(i64 {last.text}, i1 false)")
        num_rounds = f.const(64, I64) - zeros
        with f.loop(0, num_rounds, 1, [items, other, f.const(1, I64)]) as rounds:
            old, new, width = rounds.carried
            with f.loop(0, count, width + width) as run:
                self._merge(old, new, run.index, (width, count))
            rounds.update([new, old, width + width])
        f.return_(rounds.results[0])

    def _merge(self, old: Value, new: Value, first: Value, size: tuple[Value, Value]) -> None:
        """Merge two neighbouring runs, the left one first where items are equal."""
        f = self.f
        width, count = size
        middle = f.minimum(first + width, count)
        end = f.minimum(middle + width, count)
        last = count - 1
        with f.loop(first, end, 1, [first, middle]) as out:
            left, right = out.carried
            a = self._load(old, left)
            b = self._load(old, f.minimum(right, last))
            is_right = ((left < middle) ^ True) | ((right < end) & self._beats(b, a))
            chosen = [f.select(is_right, y, x) for x, y in zip(a, b, strict=True)]
            self._store(chosen, new, out.index)
            step_right = f.convert("zext", is_right, I64)
            out.update([left + 1 - step_right, right + step_right])

    def _write(
        self,
        line: Value,
        memory: tuple[Value, Value, Value],
        place: tuple[Value, Value],
        size: tuple[Value, Value],
    ) -> None:
        """The values and positions of the first k items."""
        f = self.f
        items, values, positions = memory
        first, inner = place
        count, k = size
        size_bytes = self.dtype.size_bytes
        with f.loop(0, k) as slot:
            found = self._position(self._load(items, slot.index))
            # More asked for than there are: never read outside the line.
            found = f.maximum(f.minimum(found, count - 1), 0)
            at = first + slot.index * inner
            f.store(
                f.load(self.dtype.llvm, line, found * inner * size_bytes), values, at * size_bytes
            )
            f.store(found, positions, at * 8)
