"""ArgMax and ArgMin: where the extreme stands along one axis.

Each lane keeps its best value and where that was; lanes are compared at the end, so that the
first (or last) position wins whatever the vector width. NaN counts as the extreme, as in numpy.
"""

from __future__ import annotations

import dataclasses
import math

from castiron.compiler.codegen import conversions, loop, step, sweep, vectors
from castiron.compiler.codegen.kernels import lines as frame
from castiron.compiler.codegen.loop import I32, I64, Function, Module, Value
from castiron.compiler.target import Target
from castiron.graph.graph import Graph, Node
from castiron.tensor import dim

OPS = ("ArgMax", "ArgMin")
_DTYPES = ("float32", "float64", "int32", "int64", "int8", "uint8")
_NOWHERE = (1 << 31) - 1


def gap(node: Node, graph: Graph) -> str | None:
    """Why there is no kernel for this node, or None."""
    kind = graph.types[node.inputs[0]]
    if not kind.shape:
        return f"{node.op} of a scalar or of unknown rank"
    if kind.dtype is None or kind.dtype.name not in _DTYPES:
        return f"{node.op} of {kind.dtype}"
    return None


def lower(node: Node, graph: Graph, target: Target) -> step.Lowered:
    """One step over lines or blocks of columns."""
    shape = graph.shape(node.inputs[0])
    axis = int(node.attr("axis", 0)) % len(shape)
    lines = frame.along(shape, axis, axis + 1, graph.dtype(node.inputs[0]))
    lines = dataclasses.replace(lines, may_fix=False)
    is_last = bool(node.attr("select_last_index", 0))
    symbol = f"{node.op.lower()}_{lines.label}{'_last' if is_last else ''}"
    module = Module(target)
    f = module.kernel(symbol)
    frame.walk(f, lines, 2, _Writer(f, lines, is_largest=node.op == "ArgMax", is_last=is_last).line)
    one = step.Step(
        name=node.name or node.op,
        kernel=step.Kernel(symbol, module.text()),
        operands=(step.Read(node.inputs[0]), step.Write(node.outputs[0])),
        params=lines.params,
        units=lines.units,
        grain=lines.grain,
        flops=dim.mul(lines.size, 3),
        bytes_moved=dim.mul(lines.size, lines.dtype.size_bytes),
    )
    return step.Lowered(steps=(one,))


class _Writer:
    """One kernel being written. A candidate is [value, position as i32]."""

    def __init__(self, f: Function, lines: frame.Lines, *, is_largest: bool, is_last: bool) -> None:
        self.f = f
        self.lines = lines
        self.relation = "gt" if is_largest else "lt"
        self.is_last = is_last
        self.is_float = lines.dtype.is_float

    def line(self, pointers: list[Value], line: frame.Line) -> None:
        """One result, or a vector of them."""
        f = self.f
        source, result = pointers
        worst = frame.splat(f, self.lines, line, self._worst())
        places = loop.vector(line.lanes, I32)
        nowhere = f.const(-1 if self.is_last else _NOWHERE, places)
        if line.column is None:
            best = self._search_along(source, line, [worst, nowhere])
            f.store(self._position(best[1]), result, line.index * 8)
            return
        best = self._search_across(source, line, [worst, nowhere])
        assert isinstance(line.stride, Value), "columns have a stride"
        place = line.index * line.stride + line.column
        sweep.write(f, self._position(best[1]), f.offset(result, place * 8), line.mask)

    def _worst(self) -> float | int:
        dtype = self.lines.dtype
        if self.is_float:
            return -math.inf if self.relation == "gt" else math.inf
        low = -(1 << (8 * dtype.size_bytes - 1)) if dtype.is_signed else 0
        high = (1 << (8 * dtype.size_bytes - 1)) - 1 if dtype.is_signed else -1
        return low if self.relation == "gt" else high

    def _position(self, found: Value) -> Value:
        # Nothing beat the worst value, so every element is that value: the first one it is.
        found = self.f.select(found.equals(_NOWHERE), 0, found)
        return self.f.convert("sext", found, I64)

    def _read(self, line: frame.Line, source: Value, place: Value, mask: Value | None) -> Value:
        type_ = loop.vector(line.lanes, self.lines.dtype.llvm)
        at = self.f.offset(source, frame.position_bytes(self.lines, place))
        return sweep.read(self.f, type_, at, mask)

    def _search_along(self, source: Value, line: frame.Line, start: list[Value]) -> list[Value]:
        f, lanes = self.f, line.lanes
        numbers = ", ".join(f"i32 {lane}" for lane in range(lanes))
        type_ = loop.vector(lanes, I32)
        within = f.emit(type_, f"add {type_} <{numbers}>, zeroinitializer")

        def visit(place: Value, mask: Value | None, best: list[Value]) -> list[Value]:
            x = self._read(line, source, place, mask)
            first = f.splat(f.convert("trunc", place - line.offset, I32), lanes)
            return self._take(best, [x, first + within], mask)

        states = frame.over(f, line, visit, start, ways=2)
        best = self._better(states[0], states[1])
        while lanes > 1:
            lanes //= 2
            lower = [self._lanes_of(value, range(lanes)) for value in best]
            upper = [self._lanes_of(value, range(lanes, 2 * lanes)) for value in best]
            best = self._better(lower, upper)
        return best

    def _lanes_of(self, value: Value, chosen: range) -> Value:
        if len(chosen) == 1:
            return self.f.extract(value, chosen[0])
        return self.f.shuffle(value, value, chosen)

    def _search_across(self, source: Value, line: frame.Line, start: list[Value]) -> list[Value]:
        f = self.f
        zero = f.const(0, start[1].type)

        def visit(place: Value, mask: Value | None, carried: list[Value]) -> list[Value]:
            x = self._read(line, source, place, mask)
            return [*self._take(carried[:2], [x, carried[2]], mask), carried[2] + 1]

        return frame.over(f, line, visit, [*start, zero])[0][:2]

    def _beats(self, x: Value, best: Value) -> Value:
        """Whether x is strictly more extreme; a NaN beats every number."""
        f = self.f
        better = conversions.compare(f, self.relation, x, best, self.lines.dtype.name)
        if not self.is_float:
            return better
        return better | (vectors.is_nan(f, x) & (vectors.is_nan(f, best) ^ True))

    def _ties(self, x: Value, best: Value) -> Value:
        f = self.f
        if not self.is_float:
            return x.equals(best)
        return x.equals(best) | (vectors.is_nan(f, x) & vectors.is_nan(f, best))

    def _take(self, best: list[Value], new: list[Value], mask: Value | None) -> list[Value]:
        """The better of a lane's best and a new element, which stands further on."""
        f = self.f
        wins = self._beats(new[0], best[0])
        if self.is_last:
            wins = wins | self._ties(new[0], best[0])
        if mask is not None:
            wins = wins & mask
        return [f.select(wins, x, old) for x, old in zip(new, best, strict=True)]

    def _better(self, left: list[Value], right: list[Value]) -> list[Value]:
        """The better of two candidates in any order."""
        f = self.f
        relation = "gt" if self.is_last else "lt"
        closer = f.compare(relation, right[1], left[1])
        wins = self._beats(right[0], left[0]) | (self._ties(right[0], left[0]) & closer)
        return [f.select(wins, b, a) for a, b in zip(left, right, strict=True)]
