"""LRN: each element divided by a power of the squares in a window over channels.

With channels last (attr ``layout`` "NHWC") vectors lie along the channels and the window is a few
shifted loads; with channels first vectors lie across the image's positions.
"""

from __future__ import annotations

from castiron.compiler.codegen import elementary, loop, step, sweep, vectors
from castiron.compiler.codegen.kernels import lines as frame
from castiron.compiler.codegen.loop import Function, Module, Value
from castiron.compiler.target import Target
from castiron.graph.graph import Graph, Node
from castiron.tensor import dim

OPS = ("LRN",)
_MOST_WIDE = 31


def gap(node: Node, graph: Graph) -> str | None:
    """Why there is no kernel for this node, or None."""
    kind = graph.types[node.inputs[0]]
    if kind.shape is None or len(kind.shape) < 3:
        return "LRN of rank below 3 or unknown"
    if kind.dtype is None or kind.dtype.name != "float32":
        return f"LRN of {kind.dtype}"
    if not 1 <= int(node.attr("size", 1)) <= _MOST_WIDE:
        return f"LRN over more than {_MOST_WIDE} channels"
    return None


def lower(node: Node, graph: Graph, target: Target) -> step.Lowered:
    """One step over pixels, or over blocks of positions."""
    shape = graph.shape(node.inputs[0])
    axis = len(shape) - 1 if node.attr("layout") == "NHWC" else 1
    lines = frame.along(shape, axis, axis + 1, graph.dtype(node.inputs[0]))
    size = int(node.attr("size", 1))
    numbers = (
        size,
        float(node.attr("alpha", 1e-4)) / size,
        float(node.attr("beta", 0.75)),
        float(node.attr("bias", 1.0)),
    )
    symbol = f"lrn_{lines.label}_{step.tag(repr(numbers))}"
    module = Module(target)
    f = module.kernel(symbol)
    frame.walk(f, lines, 2, _Writer(f, lines, numbers).line)
    one = step.Step(
        name=node.name or node.op,
        kernel=step.Kernel(symbol, module.text()),
        operands=(step.Read(node.inputs[0]), step.Write(node.outputs[0])),
        params=lines.params,
        units=lines.units,
        grain=lines.grain,
        flops=dim.mul(lines.size, 2 * size + 10),
        bytes_moved=dim.mul(lines.size, 8),
    )
    return step.Lowered(steps=(one,))


class _Writer:
    """One kernel being written; ``numbers`` are size, alpha / size, beta, bias."""

    def __init__(
        self, f: Function, lines: frame.Lines, numbers: tuple[int, float, float, float]
    ) -> None:
        self.f = f
        self.lines = lines
        self.size, self.factor, self.beta, self.bias = numbers
        self.before = (self.size - 1) // 2

    def line(self, pointers: list[Value], line: frame.Line) -> None:
        """All channels of one pixel, or of one vector of positions."""
        f = self.f
        source, result = pointers

        def visit(place: Value, mask: Value | None, carried: list[Value]) -> list[Value]:
            x = self._read(line, source, place, mask)
            if line.column is None:
                total = self._along(source, line, place)
            else:
                total = self._across(source, line, place)
            base = f.fma(total, f.coerce(self.factor, total.type), f.coerce(self.bias, total.type))
            y = x * self._power(base)
            sweep.write(f, y, f.offset(result, frame.position_bytes(self.lines, place)), mask)
            return carried

        frame.over(f, line, visit, [])

    def _power(self, base: Value) -> Value:
        """base ** -beta."""
        f = self.f
        if self.beta == 0.75:
            root = vectors.square_root(f, base)
            return 1.0 / (root * vectors.square_root(f, root))
        return elementary.exp(f, elementary.log(f, base) * -self.beta)

    def _read(self, line: frame.Line, pointer: Value, place: Value, mask: Value | None) -> Value:
        type_ = loop.vector(line.lanes, self.lines.dtype.llvm)
        at = self.f.offset(pointer, frame.position_bytes(self.lines, place))
        return sweep.read(self.f, type_, at, mask)

    def _along(self, source: Value, line: frame.Line, place: Value) -> Value:
        """Sums of squares for a vector of neighbouring channels."""
        f = self.f
        total = frame.splat(f, self.lines, line, 0.0)
        for shift in range(-self.before, self.size - self.before):
            first = place - line.offset + shift
            count = line.count if isinstance(line.count, Value) else f.const(line.count, loop.I64)
            exists = f.lane_mask(count - first, line.lanes)
            if shift < 0:
                missing = f.lane_mask(f.const(0, loop.I64) - first, line.lanes)
                exists = exists & (missing ^ True)
            x = self._read(line, source, place + shift, exists)
            total = f.fma(x, x, total)
        return total

    def _across(self, source: Value, line: frame.Line, place: Value) -> Value:
        """Sums of squares over the channels around one, for a vector of positions."""
        f = self.f
        assert isinstance(line.stride, Value) and isinstance(line.count, Value), "columns"
        channel = f.emit(loop.I64, f"udiv i64 {(place - line.offset).text}, {line.stride.text}")
        first = f.maximum(channel - self.before, 0)
        stop = f.minimum(channel + (self.size - self.before), line.count)
        zero = frame.splat(f, self.lines, line, 0.0)
        with f.loop(first, stop, 1, [zero]) as window:
            at = line.offset + window.index * line.stride
            x = self._read(line, source, at, line.mask)
            window.update([f.fma(x, x, window.carried[0])])
        return window.results[0]
