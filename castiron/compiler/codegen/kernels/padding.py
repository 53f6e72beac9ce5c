"""Pad: borders of a constant, or of the data mirrored, repeated or wrapped; negative pads crop.

One unit is one row of the output. Outer axes map their position into the source by the mode's
rule; the row is a left border, a copy, and a right border. A constant border merges an axis with
what lies behind it, so that channels-last images are padded by whole rows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from castiron.compiler.codegen import step
from castiron.compiler.codegen.kernels import dims as constants
from castiron.compiler.codegen.kernels import strided
from castiron.compiler.codegen.loop import I64, PTR, Function, Module, Value
from castiron.compiler.target import Target
from castiron.graph.graph import Extent, Graph, Node
from castiron.tensor import dim as dims
from castiron.tensor import dtype as dtypes

_MODES = ("constant", "reflect", "edge", "wrap")
_CLAIM_BYTES = 128 << 10


def gap(node: Node, graph: Graph) -> str | None:
    """None where the pads are known before the data are."""
    kind = graph.types[node.inputs[0]]
    if node.attr("pads") is None:
        return "Pad whose pads depend on the data"
    if kind.shape is None or kind.dtype is None or not kind.dtype.size_bytes:
        return "Pad of a value whose rank or element size is not known"
    if node.attr("mode", "constant") not in _MODES:
        return f"Pad in mode {node.attr('mode')}"
    if kind.dtype is dtypes.BFLOAT16 and node.attr("value", 0):
        return "Pad of dtype bfloat16 with other than zero"
    return None


@dataclasses.dataclass(frozen=True, slots=True)
class _Axis:
    """One axis: extents before and after, and the position of the source's first element."""

    source: Extent
    result: Extent
    begin: Extent

    @property
    def is_kept(self) -> bool:
        return self.begin == 0 and self.source == self.result


@dataclasses.dataclass(frozen=True, slots=True)
class _Form:
    """What the kernel's text depends on; a value from memory is read by the kernel."""

    mode: str
    size: int
    outer: int
    reads_value: bool

    def symbol(self) -> str:
        return f"pad_{self.mode}{self.size}_r{self.outer}{'v' if self.reads_value else ''}"


def lower(node: Node, graph: Graph, target: Target) -> step.Lowered:
    """One step."""
    dtype, mode = graph.dtype(node.inputs[0]), node.attr("mode", "constant")
    axes = _merged(_axes(node, graph), mode == "constant")
    row, outer = axes[-1], axes[:-1]
    form = _Form(mode, dtype.size_bytes, len(outer), len(node.inputs) > 1)
    stride: Extent = dims.mul(row.source, dtype.size_bytes)
    strides: list[Extent] = []
    for axis in reversed(outer):
        strides.insert(0, stride)
        stride = dims.mul(stride, axis.source)
    params: list[Extent] = [_bits(node, dtype), row.source, row.result, row.begin]
    for axis, own in zip(outer, strides, strict=True):
        params += [axis.result, axis.source, axis.begin, own]
    reads = [step.Read(value) for value in node.inputs[: 1 + form.reads_value]]
    row_bytes = dims.mul(row.result, dtype.size_bytes)
    units = dims.product([axis.result for axis in outer])
    return step.Lowered(
        steps=(
            step.Step(
                name=node.name or node.op,
                kernel=step.Kernel(form.symbol(), _text(form, target)),
                operands=(step.Write(node.outputs[0]), *reads),
                params=tuple(params),
                units=units,
                grain=strided.grain_of(row_bytes, _CLAIM_BYTES),
                bytes_moved=dims.mul(dims.mul(units, row_bytes), 2),
            ),
        )
    )


def _bits(node: Node, dtype: dtypes.DType) -> int:
    value = node.attr("value", 0) or 0
    if dtype is dtypes.BFLOAT16 or not value:
        return 0
    return constants.bits_of(np.array([value]).astype(dtype.name))


def _axes(node: Node, graph: Graph) -> list[_Axis]:
    source, result = graph.shape(node.inputs[0]), graph.shape(node.outputs[0])
    pads = node.attr("pads")
    return [_Axis(*each) for each in zip(source, result, pads[: len(source)], strict=True)]


def _merged(axes: Sequence[_Axis], is_constant: bool) -> list[_Axis]:
    """Fewer axes for the same elements; at least one."""
    found: list[_Axis] = []
    for axis in axes:
        last = found[-1] if found else None
        if last is not None and axis.is_kept and (last.is_kept or is_constant):
            factor = axis.source
            found[-1] = _Axis(
                dims.mul(last.source, factor),
                dims.mul(last.result, factor),
                dims.mul(last.begin, factor),
            )
        elif not (axis.is_kept and axis.source == 1):
            found.append(axis)
    return found or [_Axis(1, 1, 0)]


def _text(form: _Form, target: Target) -> str:
    module = Module(target)
    copy, fill = strided.copier(module), strided.filler(module, form.size)
    f = module.kernel(form.symbol())
    args, begin, end, _ = f.params
    to, source = f.argument(args, 0, PTR), f.argument(args, 1, PTR)
    first = 2 + form.reads_value
    value = constants.from_word(f, f.argument(args, first), strided.MOVES[form.size])
    if form.reads_value:
        value = f.load(strided.MOVES[form.size], f.argument(args, 2, PTR))
    row = [f.argument(args, first + n) for n in (1, 2, 3)]
    table = [
        [f.argument(args, first + 4 + 4 * axis + k) for k in range(4)] for axis in range(form.outer)
    ]
    odometer = strided.Odometer(f, [axis[0] for axis in table], [])
    with f.loop(begin, end, carry=odometer.start(begin, [])) as unit:
        place = f.offset(to, unit.index * row[1] * form.size)
        origin, inside = _row_of(f, form, source, (table, unit.carried))
        if inside is None:
            _write_row(f, form, (place, origin), row, (copy, fill, value))
        else:
            with f.when(inside):
                _write_row(f, form, (place, origin), row, (copy, fill, value))
            with f.unless(inside):
                f.call(fill, [place, value, row[1]])
        unit.update(odometer.following(unit.carried))
    f.return_()
    return module.text()


def _row_of(
    f: Function, form: _Form, source: Value, where: tuple[list[list[Value]], list[Value]]
) -> tuple[Value, Value | None]:
    """The source row of an output row, and whether there is one (None: always)."""
    inside: Value | None = None
    for (_, extent, begin, stride), index in zip(*where, strict=True):
        at = index - begin
        if form.mode == "constant":
            within = (at >= 0) & (at < extent)
            inside = within if inside is None else inside & within
        source = f.offset(source, _mapped(f, form.mode, at, extent) * stride)
    return source, inside


def _mapped(f: Function, mode: str, at: Value, extent: Value) -> Value:
    """A position that may be outside, as one inside ``[0, extent)``."""
    if mode == "constant":
        return at
    if mode == "edge":
        return f.maximum(f.minimum(at, extent - 1), 0)
    period = f.maximum(extent if mode == "wrap" else (extent - 1) * 2, 1)
    rest = at % period
    rest = f.select(rest < 0, rest + period, rest)
    return rest if mode == "wrap" else f.minimum(rest, period - rest)


def _write_row(
    f: Function,
    form: _Form,
    places: tuple[Value, Value],
    row: Sequence[Value],
    routines: tuple[Function, Function, Value],
) -> None:
    """Left border, copy, right border."""
    to, source = places
    extent, length, begin = row
    copy, fill, value = routines
    low = f.maximum(f.minimum(begin, length), 0)
    high = f.maximum(f.minimum(begin + extent, length), low)
    start = f.offset(source, (low - begin) * form.size)
    f.call(copy, [f.offset(to, low * form.size), start, (high - low) * form.size])
    if form.mode == "constant":
        f.call(fill, [to, value, low])
        f.call(fill, [f.offset(to, high * form.size), value, length - high])
        return
    element = strided.MOVES[form.size]
    for first, last in ((f.const(0, I64), low), (high, length)):
        with f.loop(first, last) as turn:
            at = _mapped(f, form.mode, turn.index - begin, extent)
            f.store(f.load(element, f.offset(source, at * form.size)), to, turn.index * form.size)
