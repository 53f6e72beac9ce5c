"""Softmax and LogSoftmax along any axis, in place where the plan wishes.

Three passes over a line that then lies in the first cache: its maximum, exponentials and their
sum, the scaling. A line of -inf gives NaN, as ONNX's formula does.
"""

from __future__ import annotations

from castiron.compiler.codegen import elementary, loop, step, sweep
from castiron.compiler.codegen.kernels import lines as frame
from castiron.compiler.codegen.loop import Function, Module, Value
from castiron.compiler.target import Target
from castiron.graph.graph import Graph, Node
from castiron.tensor import dim

OPS = ("Softmax", "LogSoftmax")
_DTYPES = ("float32", "float64")


def gap(node: Node, graph: Graph) -> str | None:
    """Why there is no kernel for this node, or None."""
    kind = graph.types[node.inputs[0]]
    if kind.shape is None:
        return f"{node.op} of unknown rank"
    if kind.dtype is None or kind.dtype.name not in _DTYPES:
        return f"{node.op} of {kind.dtype}"
    return None


def lower(node: Node, graph: Graph, target: Target) -> step.Lowered:
    """One step over lines or blocks of columns."""
    shape = graph.shape(node.inputs[0])
    axis = int(node.attr("axis", -1)) % max(len(shape), 1)
    lines = frame.along(shape, axis, axis + 1, graph.dtype(node.inputs[0]))
    is_log = node.op == "LogSoftmax"
    symbol = f"{node.op.lower()}_{lines.label}"
    module = Module(target)
    f = module.kernel(symbol)
    writer = _Writer(f, lines)
    frame.walk(f, lines, 2, writer.log_line if is_log else writer.line)
    size_bytes = dim.mul(lines.size, lines.dtype.size_bytes)
    one = step.Step(
        name=node.name or node.op,
        kernel=step.Kernel(symbol, module.text()),
        operands=(step.Read(node.inputs[0]), step.Write(node.outputs[0])),
        params=lines.params,
        units=lines.units,
        grain=lines.grain,
        flops=dim.mul(lines.size, 20),
        bytes_moved=dim.mul(size_bytes, 2),
        in_place=((1, 0),),
    )
    return step.Lowered(steps=(one,))


class _Writer:
    """One kernel being written."""

    def __init__(self, f: Function, lines: frame.Lines) -> None:
        self.f = f
        self.lines = lines

    def _read(self, line: frame.Line, pointer: Value, place: Value, mask: Value | None) -> Value:
        """The vector at ``place``; lanes that the mask excludes are -inf, neutral throughout."""
        type_ = loop.vector(line.lanes, self.lines.dtype.llvm)
        at = self.f.offset(pointer, frame.position_bytes(self.lines, place))
        return sweep.read(self.f, type_, at, mask, float("-inf"))

    def _write(self, pointer: Value, place: Value, value: Value, mask: Value | None) -> None:
        at = self.f.offset(pointer, frame.position_bytes(self.lines, place))
        sweep.write(self.f, value, at, mask)

    def _larger(self, a: Value, b: Value) -> Value:
        # NaN may get lost here: the exponentials meet it again.
        return self.f.select(b > a, b, a)

    def _add(self, a: Value, b: Value) -> Value:
        return a + b

    def _maximum(self, line: frame.Line, source: Value) -> Value:
        def visit(place: Value, mask: Value | None, carried: list[Value]) -> list[Value]:
            return [self._larger(carried[0], self._read(line, source, place, mask))]

        lowest = frame.splat(self.f, self.lines, line, float("-inf"))
        states = frame.over(self.f, line, visit, [lowest], ways=4)
        return frame.join(self.f, line, states, [self._larger])[0]

    def _sum(self, line: frame.Line, source: Value, top: Value, kept: Value | None) -> Value:
        """The sum of exponentials; each is stored to ``kept`` if that is given."""

        def visit(place: Value, mask: Value | None, carried: list[Value]) -> list[Value]:
            x = self._read(line, source, place, mask)
            e = elementary.exp_or_zero(self.f, x - top)
            if kept is not None:
                self._write(kept, place, e, mask)
            return [carried[0] + e]

        zero = frame.splat(self.f, self.lines, line, 0.0)
        states = frame.over(self.f, line, visit, [zero], ways=2)
        return frame.join(self.f, line, states, [self._add])[0]

    def line(self, pointers: list[Value], line: frame.Line) -> None:
        """Softmax of one line."""
        source, result = pointers
        top = self._maximum(line, source)
        scale = 1.0 / self._sum(line, source, top, result)

        def visit(place: Value, mask: Value | None, carried: list[Value]) -> list[Value]:
            e = self._read(line, result, place, mask)
            self._write(result, place, e * scale, mask)
            return carried

        frame.over(self.f, line, visit, [], ways=4)

    def log_line(self, pointers: list[Value], line: frame.Line) -> None:
        """LogSoftmax of one line."""
        source, result = pointers
        top = self._maximum(line, source)
        total = elementary.log(self.f, self._sum(line, source, top, None))

        def visit(place: Value, mask: Value | None, carried: list[Value]) -> list[Value]:
            x = self._read(line, source, place, mask)
            self._write(result, place, (x - top) - total, mask)
            return carried

        frame.over(self.f, line, visit, [], ways=4)
