"""MaxPool, AveragePool and LpPool over channels-last images, vectors along the channels.

One unit is one row of the output. Windows are clipped to the image before their loop, so that no
tap needs a test; what padding means is in the initial value and in the divisor.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from castiron.compiler.codegen import loop, step, vectors
from castiron.compiler.codegen.loop import I64, PTR, Function, Module, Value
from castiron.compiler.target import Target
from castiron.graph.graph import Extent, Graph, Node
from castiron.tensor import dim as dims
from castiron.tensor import dtype as dtypes

OPS = ("MaxPool", "AveragePool", "LpPool")
_MAX_DTYPES = ("float32", "float64", "int8", "uint8")
_BLOCK_VECTORS = 4
_CLAIM_TAPS = 1 << 19


def gap(node: Node, graph: Graph) -> str | None:
    """None for 1-D and 2-D pools without indices."""
    shape, dtype = graph.types[node.inputs[0]].shape, graph.types[node.inputs[0]].dtype
    if shape is None or len(shape) not in (3, 4) or dtype is None:
        return f"{node.op} over other than one or two spatial axes"
    allowed = _MAX_DTYPES if node.op == "MaxPool" else ("float32", "float64")
    if dtype.name not in allowed:
        return f"{node.op} of dtype {dtype}"
    if len(node.outputs) > 1 and node.outputs[1]:
        return "MaxPool with the Indices output"
    if node.attr("pads") is None or node.attr("kernel_shape") is None:
        return f"{node.op} whose window is not known"
    if node.op == "LpPool" and node.attr("p", 2) not in (1, 2):
        return f"LpPool with p = {node.attr('p')}"
    return None


@dataclasses.dataclass(frozen=True, slots=True)
class _Axis:
    """One spatial axis; ``end`` is the position behind the end padding."""

    size: Extent
    output: Extent
    kernel: int
    stride: int
    dilation: int
    before: Extent
    end: Extent

    def params(self) -> list[Extent]:
        return [
            self.size, self.output, self.kernel, self.stride, self.dilation, self.before, self.end,
        ]  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True)
class _Form:
    """What the kernel's text depends on: ``kind`` is max, mean, padded (mean), l1 or l2."""

    kind: str
    dtype: dtypes.DType

    def symbol(self) -> str:
        return f"pool_{self.kind}_{self.dtype.name}"


def lower(node: Node, graph: Graph, target: Target) -> step.Lowered:
    """One step; the node is in NHWC layout."""
    assert node.attr("layout") == "NHWC", "pools run channels-last"
    source, result = graph.shape(node.inputs[0]), graph.shape(node.outputs[0])
    rows, columns = _axes(node, source, result)
    channels = source[-1]
    form = _Form(_kind(node), graph.dtype(node.inputs[0]))
    taps = rows.kernel * columns.kernel
    work = dims.mul(dims.mul(columns.output, channels), taps)
    elements = dims.product(result)
    lines = dims.mul(source[0], rows.output)
    return step.Lowered(
        steps=(
            step.Step(
                name=node.name or node.op,
                kernel=step.Kernel(form.symbol(), _text(form, target)),
                operands=(step.Write(node.outputs[0]), step.Read(node.inputs[0])),
                params=(channels, *rows.params(), *columns.params()),
                units=lines,
                grain=dims.maximum(dims.floordiv(_CLAIM_TAPS, dims.add(work, 1)), 1),
                flops=dims.mul(elements, taps),
                bytes_moved=dims.mul(
                    dims.add(elements, dims.product(source)), form.dtype.size_bytes
                ),
            ),
        )
    )


def _kind(node: Node) -> str:
    if node.op == "MaxPool":
        return "max"
    if node.op == "LpPool":
        return f"l{node.attr('p', 2)}"
    return "padded" if node.attr("count_include_pad", 0) else "mean"


def _axes(node: Node, source: Sequence[Extent], result: Sequence[Extent]) -> list[_Axis]:
    """Rows and columns; a single spatial axis becomes the columns."""
    kernel, pads = node.attr("kernel_shape"), node.attr("pads")
    rank = len(kernel)
    strides = node.attr("strides") or (1,) * rank
    dilations = node.attr("dilations") or (1,) * rank
    found = [_Axis(1, 1, 1, 1, 1, 0, 1)] if rank == 1 else []
    for n in range(rank):
        size = source[n + 1]
        end = dims.add(size, pads[n + rank])
        found.append(_Axis(size, result[n + 1], kernel[n], strides[n], dilations[n], pads[n], end))
    return found


@dataclasses.dataclass(frozen=True, slots=True)
class _Span:
    """The taps of one window along one axis that lie in the image."""

    first: Value  # position of tap 0, may be outside
    low: Value
    high: Value
    divisor: Value


class _AxisValues:
    """The params of one axis inside the kernel."""

    def __init__(self, f: Function, values: Sequence[Value]) -> None:
        self.f = f
        self.size, self.output, self.kernel, self.stride, self.dilation = values[:5]
        self.before, self.end = values[5:]

    def span(self, index: Value, is_padded: bool) -> _Span:
        """The window of output ``index``."""
        f = self.f
        first = index * self.stride - self.before
        low = f.maximum(self.dilation - 1 - first, 0) // self.dilation
        high = f.minimum(self._taps_before(first, self.size), self.kernel)
        counted = high - low
        if is_padded:
            counted = f.minimum(self._taps_before(first, self.end), self.kernel)
        return _Span(first, low, high, f.maximum(counted, 0))

    def _taps_before(self, first: Value, limit: Value) -> Value:
        room = self.f.maximum(limit - first, 0)
        return (room + self.dilation - 1) // self.dilation


def _text(form: _Form, target: Target) -> str:
    module = Module(target)
    size = form.dtype.size_bytes
    f = module.kernel(form.symbol())
    args, begin, end, _ = f.params
    to, source = f.argument(args, 0, PTR), f.argument(args, 1, PTR)
    channels = f.argument(args, 2)
    rows = _AxisValues(f, [f.argument(args, 3 + n) for n in range(7)])
    columns = _AxisValues(f, [f.argument(args, 10 + n) for n in range(7)])
    pixel = channels * size
    line = pixel * columns.size
    block = _block(module, form)
    with f.loop(begin, end) as unit:
        image = unit.index // f.maximum(rows.output, 1)
        row = rows.span(unit.index - image * rows.output, form.kind == "padded")
        base = f.offset(source, (image * rows.size + row.first) * line)
        place = f.offset(to, unit.index * columns.output * pixel)
        with f.loop(0, columns.output) as across:
            column = columns.span(across.index, form.kind == "padded")
            corner = f.offset(base, column.first * pixel)
            here = f.offset(place, across.index * pixel)
            count = f.maximum(row.divisor * column.divisor, 1)
            f.call(
                block,
                [
                    here, corner, channels, count,
                    row.low, row.high, rows.dilation * line,
                    column.low, column.high, columns.dilation * pixel,
                ],
            )  # fmt: skip
    f.return_()
    return module.text()


_BLOCK = [
    (PTR, "to"), (PTR, "corner"), (I64, "channels"), (I64, "count"),
    (I64, "row_low"), (I64, "row_high"), (I64, "row_step"),
    (I64, "column_low"), (I64, "column_high"), (I64, "column_step"),
]  # fmt: skip


def _block(module: Module, form: _Form) -> Function:
    """One output pixel: all channels of one window."""
    f = module.function("pool_window", _BLOCK)
    channels = f.params[2]
    lanes = module.target.vector_bytes // max(form.dtype.size_bytes, 4)
    wide = lanes * _BLOCK_VECTORS
    whole = channels - channels % wide
    with f.loop(0, whole, wide) as turn:
        _window(f, form, turn.index, [None] * _BLOCK_VECTORS)
    with f.loop(whole, channels, lanes) as turn:
        _window(f, form, turn.index, [f.lane_mask(channels - turn.index, lanes)])
    f.return_()
    return f


def _window(f: Function, form: _Form, channel: Value, masks: Sequence[Value | None]) -> None:
    """Reduce the window for one vector of channels per mask."""
    to, corner, _, count, row_low, row_high, row_step, low, high, column_step = f.params
    size = form.dtype.size_bytes
    lanes = f.target.vector_bytes // max(size, 4)
    type_ = loop.vector(lanes, form.dtype.llvm)
    first = f.offset(corner, channel * size + row_low * row_step + low * column_step)
    sums = [f.const(_initial(form), type_)] * len(masks)
    with f.loop(row_low, row_high, carry=[first, *sums]) as down:
        with f.loop(low, high, carry=down.carried) as across:
            place, *now = across.carried
            for n, mask in enumerate(masks):
                there = f.offset(place, n * lanes * size)
                value = f.load(type_, there) if mask is None else f.masked_load(type_, there, mask)
                now[n] = _combined(f, form, now[n], value)
            across.update([f.offset(place, column_step), *now])
        down.update([f.offset(down.carried[0], row_step), *across.results[1:]])
    for n, mask in enumerate(masks):
        value = _finished(f, form, down.results[1 + n], count)
        there = f.offset(to, channel * size + n * lanes * size)
        if mask is None:
            f.store(value, there)
        else:
            f.masked_store(value, there, mask)


def _initial(form: _Form) -> float | int:
    if form.kind != "max" or form.dtype.name == "uint8":
        return 0
    return -128 if form.dtype.name == "int8" else float("-inf")


def _combined(f: Function, form: _Form, total: Value, value: Value) -> Value:
    if form.kind == "max":
        if form.dtype.is_float:
            return vectors.maximum(f, value, total)
        relation = "sgt" if form.dtype.name == "int8" else "ugt"
        mask_type = loop.vector(loop.lanes_of(value.type), loop.I1)
        larger = f.emit(mask_type, f"icmp {relation} {value.type} {value.text}, {total.text}")
        return f.select(larger, value, total)
    if form.kind == "l1":
        value = vectors.absolute(f, value)
    return f.fma(value, value, total) if form.kind == "l2" else total + value


def _finished(f: Function, form: _Form, total: Value, count: Value) -> Value:
    if form.kind in ("mean", "padded"):
        divisor = f.convert("sitofp", count, form.dtype.llvm)
        return total / f.splat(divisor, loop.lanes_of(total.type))
    return vectors.square_root(f, total) if form.kind == "l2" else total
