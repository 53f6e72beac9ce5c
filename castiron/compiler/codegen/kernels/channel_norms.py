"""InstanceNormalization, GroupNormalization and BatchNormalization: a scale for each channel.

Data is [N, C, spatial...]. A unit is one group of channels of one image, contiguous in memory;
its statistics cover the whole group, scale and bias change from channel to channel. Batch norms
that passes could fold never come here. InstanceNormalization may also come as [N, spatial..., C]
with attr ``layout`` "NHWC"; then a unit is a block of channels.
"""

from __future__ import annotations

from castiron.compiler.codegen import loop, step, sweep, vectors
from castiron.compiler.codegen.kernels import lines as frame
from castiron.compiler.codegen.loop import I64, PTR, Function, Module, Value
from castiron.compiler.target import Target
from castiron.graph.graph import Extent, Graph, Node
from castiron.tensor import dim

OPS = ("InstanceNormalization", "GroupNormalization", "BatchNormalization")
_DTYPES = ("float32", "float64")
_GRAIN_ELEMENTS = 16384


def gap(node: Node, graph: Graph) -> str | None:
    """Why there is no kernel for this node, or None."""
    kind = graph.types[node.inputs[0]]
    if kind.shape is None or len(kind.shape) < 2:
        return f"{node.op} of rank below 2 or unknown"
    if kind.dtype is None or kind.dtype.name not in _DTYPES:
        return f"{node.op} of {kind.dtype}"
    if any(node.outputs[1:]) or node.attr("training_mode", 0):
        return f"{node.op} in training"
    is_nhwc = node.attr("layout") == "NHWC"
    if is_nhwc and node.op != "InstanceNormalization":
        return f"{node.op} with channels last"
    channels = kind.shape[-1 if is_nhwc else 1]
    for value in node.inputs[1:]:
        if graph.dtype(value) is not kind.dtype or dim.product(graph.shape(value)) != channels:
            return f"{node.op} whose parameters are not one {kind.dtype} for each channel"
    return None


def lower(node: Node, graph: Graph, target: Target) -> step.Lowered:
    """One step; the output may take the memory of the data."""
    data, dtype = node.inputs[0], graph.dtype(node.inputs[0])
    shape = graph.shape(data)
    writer = _Writer(node)
    module = Module(target)
    lines = frame.along(shape, 1, len(shape) - 1, dtype)
    if writer.is_nhwc:
        symbol = f"{node.op.lower()}_nhwc_{lines.label}_{step.tag(repr(writer.epsilon))}"
        writer.print_columns(module.kernel(symbol), lines)
        units, params, grain = lines.units, lines.params, lines.grain
    else:
        symbol = f"{node.op.lower()}_{dtype}_{step.tag(repr(writer.epsilon))}"
        writer.print_groups(module.kernel(symbol), lines)
        units, params, grain = _groups(node, graph)
    size = dim.product(shape)
    reads = [step.Read(value) for value in node.inputs]
    one = step.Step(
        name=node.name or node.op,
        kernel=step.Kernel(symbol, module.text()),
        operands=(*reads, step.Write(node.outputs[0])),
        params=params,
        units=units,
        grain=grain,
        flops=dim.mul(size, 6),
        bytes_moved=dim.mul(size, 2 * dtype.size_bytes),
        in_place=((len(reads), 0),),
    )
    return step.Lowered(steps=(one,))


def _groups(node: Node, graph: Graph) -> tuple[Extent, tuple[Extent, ...], Extent]:
    """Units, params (groups of an image, channels of a group, spatial size), grain."""
    shape = graph.shape(node.inputs[0])
    channels = shape[1]
    groups: Extent = channels
    if node.op == "GroupNormalization":
        groups = int(node.attr("num_groups", 1))
    members = dim.floordiv(channels, groups)
    spatial = dim.product(shape[2:])
    width = dim.maximum(dim.mul(members, spatial), 1)
    grain = dim.maximum(1, dim.floordiv(_GRAIN_ELEMENTS, width))
    return dim.mul(shape[0], groups), (groups, members, spatial), grain


class _Writer:
    """One kernel being written."""

    def __init__(self, node: Node) -> None:
        self.is_batch = node.op == "BatchNormalization"
        self.epsilon = float(node.attr("epsilon", 1e-5))
        self.is_nhwc = node.attr("layout") == "NHWC"
        self.num_operands = len(node.inputs) + 1

    def print_groups(self, f: Function, lines: frame.Lines) -> None:
        """Channels first: a unit is a group of one image."""
        self.f, self.lines = f, lines
        args, begin, end, _ = f.params
        pointers = [f.argument(args, number, PTR) for number in range(self.num_operands)]
        groups, members, spatial = (
            f.argument(args, self.num_operands + number) for number in range(3)
        )
        lanes = frame.lanes_for(f, lines.dtype)
        with f.loop(begin, end) as unit:
            size = members * spatial
            whole = frame.Line(lanes, size, unit.index, unit.index * size)
            statistics = None if self.is_batch else self._statistics(pointers[0], whole)
            image = f.emit(I64, f"udiv i64 {unit.index.text}, {groups.text}")
            first = (unit.index - image * groups) * members
            with f.loop(0, members) as member:
                channel = first + member.index
                factors = self._factors(pointers, channel, statistics, lanes)
                offset = whole.offset + member.index * spatial
                line = frame.Line(lanes, spatial, channel, offset)
                self._finish((pointers[0], pointers[-1]), line, factors)
        f.return_()

    def print_columns(self, f: Function, lines: frame.Lines) -> None:
        """Channels last: a unit is a block of channels of one image."""
        self.f, self.lines = f, lines

        def column(pointers: list[Value], line: frame.Line) -> None:
            statistics = self._statistics(pointers[0], line)
            assert line.column is not None, "channels are the columns"
            scale, bias = (
                self._read(pointers[number], line.column, line.mask) for number in (1, 2)
            )
            factors = self._combined(statistics, scale, bias)
            self._finish((pointers[0], pointers[-1]), line, factors)

        frame.walk(f, lines, self.num_operands, column)

    def _read(self, pointer: Value, place: Value, mask: Value | None) -> Value:
        lanes = frame.lanes_for(self.f, self.lines.dtype)
        at = self.f.offset(pointer, frame.position_bytes(self.lines, place))
        return sweep.read(self.f, loop.vector(lanes, self.lines.dtype.llvm), at, mask)

    def _statistics(self, source: Value, line: frame.Line) -> tuple[Value, Value]:
        """Mean and inverse standard deviation of a line."""
        f = self.f
        assert isinstance(line.count, Value), "lengths are run-time values here"
        number = f.splat(f.convert("sitofp", line.count, self.lines.dtype.llvm), line.lanes)

        def plain(place: Value, mask: Value | None, carried: list[Value]) -> list[Value]:
            return [carried[0] + self._read(source, place, mask)]

        mean = self._total(line, plain) / number

        def squared(place: Value, mask: Value | None, carried: list[Value]) -> list[Value]:
            x = self._read(source, place, mask) - mean
            x = x if mask is None else f.select(mask, x, 0.0)
            return [f.fma(x, x, carried[0])]

        variance = self._total(line, squared) / number
        return mean, 1.0 / vectors.square_root(f, variance + self.epsilon)

    def _total(self, line: frame.Line, visit: frame.Visit) -> Value:
        zero = frame.splat(self.f, self.lines, line, 0.0)
        states = frame.over(self.f, line, visit, [zero], ways=4)
        return frame.join(self.f, line, states, [lambda a, b: a + b])[0]

    def _factors(
        self,
        pointers: list[Value],
        channel: Value,
        statistics: tuple[Value, Value] | None,
        lanes: int,
    ) -> tuple[Value, Value, Value]:
        """(mean, factor, addend) of one channel, splatted."""
        f, element = self.f, self.lines.dtype.llvm
        at = frame.position_bytes(self.lines, channel)
        scalars = [f.load(element, f.offset(p, at)) for p in pointers[1:-1]]
        scale, bias, *given = (f.splat(scalar, lanes) for scalar in scalars)
        if statistics is None:
            mean, variance = given
            statistics = mean, 1.0 / vectors.square_root(f, variance + self.epsilon)
        return self._combined(statistics, scale, bias)

    def _combined(
        self, statistics: tuple[Value, Value], scale: Value, bias: Value
    ) -> tuple[Value, Value, Value]:
        # The mean is taken off first: folded into the bias it would cancel badly.
        mean, inverse = statistics
        return mean, inverse * scale, bias

    def _finish(
        self, memory: tuple[Value, Value], line: frame.Line, factors: tuple[Value, Value, Value]
    ) -> None:
        f = self.f
        source, result = memory
        mean, factor, addend = factors

        def visit(place: Value, mask: Value | None, carried: list[Value]) -> list[Value]:
            y = f.fma(self._read(source, place, mask) - mean, factor, addend)
            sweep.write(f, y, f.offset(result, frame.position_bytes(self.lines, place)), mask)
            return carried

        frame.over(f, line, visit, [], ways=4)
