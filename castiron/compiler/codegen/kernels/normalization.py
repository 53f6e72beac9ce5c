"""LayerNormalization, RMSNormalization and LpNormalization: norms along a line.

The mean first, then the squared deviations from it in a second pass over the line, which is then
in the first cache: as exact as float32 sums get. Norms over channels are in ``channel_norms.py``.
"""

from __future__ import annotations

from castiron.compiler.codegen import loop, step, sweep, vectors
from castiron.compiler.codegen.kernels import lines as frame
from castiron.compiler.codegen.loop import Function, Module, Value
from castiron.compiler.target import Target
from castiron.graph.graph import Graph, Node
from castiron.tensor import dim

OPS = ("LayerNormalization", "RMSNormalization", "LpNormalization")
_DTYPES = ("float32", "float64")


def gap(node: Node, graph: Graph) -> str | None:
    """Why there is no kernel for this node, or None."""
    kind = graph.types[node.inputs[0]]
    if kind.shape is None:
        return f"{node.op} of unknown rank"
    if kind.dtype is None or kind.dtype.name not in _DTYPES:
        return f"{node.op} of {kind.dtype}"
    if node.op == "LpNormalization":
        return None if int(node.attr("p", 2)) in (1, 2) else "LpNormalization with p beyond 1 and 2"
    for value in node.inputs[1:]:
        if value and graph.dtype(value) is not kind.dtype:
            return f"{node.op} with {graph.dtype(value)} beside {kind.dtype}"
        if value and dim.product(graph.shape(value)) != _lines(node, graph).count:
            return f"{node.op} whose scale or bias is broadcast along the normalised axes"
    if any(node.outputs[1:]) and (kind.dtype.name != "float32" or node.op != OPS[0]):
        return f"{node.op} of {kind.dtype} with statistics as outputs"
    return None


def lower(node: Node, graph: Graph, target: Target) -> step.Lowered:
    """One step over lines; the output may take the memory of the data."""
    lines = _lines(node, graph)
    writer = _Writer(node, lines)
    module = Module(target)
    symbol = f"{node.op.lower()}_{lines.label}_{step.tag(writer.label)}"
    writer.print(module.kernel(symbol))
    size_bytes = dim.mul(lines.size, lines.dtype.size_bytes)
    reads = [step.Read(value) for value in node.inputs if value]
    writes = [step.Write(value) for value in node.outputs if value]
    one = step.Step(
        name=node.name or node.op,
        kernel=step.Kernel(symbol, module.text()),
        operands=(*reads, *writes),
        params=lines.params,
        units=lines.units,
        grain=lines.grain,
        flops=dim.mul(lines.size, 8),
        bytes_moved=dim.mul(size_bytes, 2),
        in_place=((len(reads), 0),),
    )
    return step.Lowered(steps=(one,))


def _lines(node: Node, graph: Graph) -> frame.Lines:
    shape = graph.shape(node.inputs[0])
    axis = int(node.attr("axis", -1)) % max(len(shape), 1)
    last = axis + 1 if node.op == "LpNormalization" else len(shape)
    return frame.along(shape, axis, last, graph.dtype(node.inputs[0]))


class _Writer:
    """One kernel being written."""

    def __init__(self, node: Node, lines: frame.Lines) -> None:
        self.op = node.op
        self.lines = lines
        self.epsilon = float(node.attr("epsilon", 1e-5))
        self.power = int(node.attr("p", 2))
        self.has_scale = len(node.inputs) > 1 and bool(node.inputs[1])
        self.has_bias = len(node.inputs) > 2 and bool(node.inputs[2])
        outputs = [*node.outputs, "", ""]
        self.has_mean, self.has_inverse = bool(outputs[1]), bool(outputs[2])

    @property
    def label(self) -> str:
        """What the text depends on beyond the lines."""
        flags = (self.has_scale, self.has_bias, self.has_mean, self.has_inverse)
        return f"{self.op} {self.epsilon!r} {self.power} {flags}"

    def print(self, f: Function) -> None:
        """The whole kernel."""
        self.f = f
        num_operands = 2 + self.has_scale + self.has_bias + self.has_mean + self.has_inverse
        frame.walk(f, self.lines, num_operands, self._line)

    def _line(self, pointers: list[Value], line: frame.Line) -> None:
        f = self.f
        rest = list(pointers)
        source = rest.pop(0)
        scale = rest.pop(0) if self.has_scale else None
        bias = rest.pop(0) if self.has_bias else None
        result = rest.pop(0)
        if self.op == "LpNormalization":
            inverse = self._inverse_norm(line, source)
            self._finish(line, (source, result), (None, inverse), (None, None))
            return
        count = line.count if isinstance(line.count, Value) else f.const(line.count, loop.I64)
        number = f.splat(f.convert("sitofp", count, self.lines.dtype.llvm), line.lanes)
        mean = None
        if self.op == "LayerNormalization":
            mean = self._sum(line, source, None, 1) / number
        variance = self._sum(line, source, mean, 2) / number
        inverse = 1.0 / vectors.square_root(f, variance + self.epsilon)
        for wanted, value in ((self.has_mean, mean), (self.has_inverse, inverse)):
            if wanted and value is not None:
                f.store(f.extract(value, 0), rest.pop(0), line.index * 4)
        self._finish(line, (source, result), (mean, inverse), (scale, bias))

    def _read(self, line: frame.Line, pointer: Value, place: Value, mask: Value | None) -> Value:
        type_ = loop.vector(line.lanes, self.lines.dtype.llvm)
        at = self.f.offset(pointer, frame.position_bytes(self.lines, place))
        return sweep.read(self.f, type_, at, mask)

    def _sum(self, line: frame.Line, source: Value, mean: Value | None, power: int) -> Value:
        """The sum of |x - mean| ** power; power 1 without a mean is the plain sum."""
        f = self.f

        def visit(place: Value, mask: Value | None, carried: list[Value]) -> list[Value]:
            x = self._read(line, source, place, mask)
            if mean is not None:
                x = x - mean
                x = x if mask is None else f.select(mask, x, 0.0)
            if power == 2:
                return [f.fma(x, x, carried[0])]
            return [carried[0] + x]

        return self._total(line, visit)

    def _total(self, line: frame.Line, visit: frame.Visit) -> Value:
        zero = frame.splat(self.f, self.lines, line, 0.0)
        states = frame.over(self.f, line, visit, [zero], ways=4)
        return frame.join(self.f, line, states, [lambda a, b: a + b])[0]

    def _inverse_norm(self, line: frame.Line, source: Value) -> Value:
        """1 / the norm; 1 for a line of zeros, which stays as it is."""
        f = self.f
        if self.power == 2:
            norm = vectors.square_root(f, self._sum(line, source, None, 2))
        else:

            def visit(place: Value, mask: Value | None, carried: list[Value]) -> list[Value]:
                return [carried[0] + vectors.absolute(f, self._read(line, source, place, mask))]

            norm = self._total(line, visit)
        return 1.0 / f.select(norm.equals(0.0), 1.0, norm)

    def _finish(
        self,
        line: frame.Line,
        memory: tuple[Value, Value],
        statistics: tuple[Value | None, Value],
        vectors_along: tuple[Value | None, Value | None],
    ) -> None:
        """result = (x - mean) * inverse * scale + bias along the line."""
        f = self.f
        source, result = memory
        mean, inverse = statistics
        scale, bias = vectors_along

        def visit(place: Value, mask: Value | None, carried: list[Value]) -> list[Value]:
            y = self._read(line, source, place, mask)
            y = y if mean is None else y - mean
            y = y * inverse
            within = place - line.offset
            if scale is not None:
                y = y * self._read(line, scale, within, mask)
            if bias is not None:
                y = y + self._read(line, bias, within, mask)
            at = f.offset(result, frame.position_bytes(self.lines, place))
            sweep.write(f, y, at, mask)
            return carried

        frame.over(f, line, visit, [], ways=2)
