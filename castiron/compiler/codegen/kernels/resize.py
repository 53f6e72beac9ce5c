"""Resize over channels-last images: nearest, linear and cubic, one or two spatial axes.

Tables of offsets and weights are made first (resample_taps.py). One unit is one row of the
output; each of its pixels is a weighted sum of input pixels, vectors along the channels. Nearest
moves pixels of any dtype.
"""

from __future__ import annotations

import dataclasses

from castiron.compiler.codegen import loop, step
from castiron.compiler.codegen.kernels import narrow_resize, resample_taps, strided
from castiron.compiler.codegen.kernels.resample_taps import Axis, Rule
from castiron.compiler.codegen.loop import F32, I64, PTR, Function, Module, Value
from castiron.compiler.target import Target
from castiron.graph.graph import Extent, Graph, Node
from castiron.tensor import dim as dims

_CLAIM = 1 << 17  # element reads of one claim


def gap(node: Node, graph: Graph) -> str | None:
    """None where only one or two spatial axes change, without antialiasing."""
    kind = graph.types[node.inputs[0]]
    if node.attr("sizes") is None:
        return "Resize whose sizes depend on the data"
    if kind.shape is None or len(kind.shape) not in (3, 4) or kind.dtype is None:
        return "Resize over other than one or two spatial axes"
    mode = node.attr("mode", "nearest")
    if mode not in resample_taps.TAPS or _coordinates(node) not in resample_taps.COORDINATES:
        return f"Resize in mode {mode} with coordinates {_coordinates(node)}"
    if _nearest(node) not in resample_taps.NEAREST:
        return f"Resize with nearest_mode {_nearest(node)}"
    if node.attr("antialias", 0):
        return "Resize with antialias"
    if mode != "nearest" and kind.dtype.name != "float32":
        return f"Resize in mode {mode} of dtype {kind.dtype}"
    channel = len(kind.shape) - 1 if node.attr("layout") == "NHWC" else 1
    if not kind.dtype.size_bytes or not _keeps(node, kind.shape, (0, channel)):
        return "Resize of the batch or channel axis"
    return None


def _keeps(node: Node, shape: tuple[Extent, ...], axes: tuple[int, ...]) -> bool:
    scales, region = node.attr("scales"), node.attr("roi")
    rank = len(shape)
    for axis in axes:
        if node.attr("sizes")[axis] != shape[axis] or (scales and scales[axis] != 1):
            return False
        if region and (region[axis], region[axis + rank]) != (0, 1):
            return False
    return True


def _coordinates(node: Node) -> str:
    return str(node.attr("coordinate_transformation_mode", "half_pixel"))


def _nearest(node: Node) -> str:
    return str(node.attr("nearest_mode", "round_prefer_floor"))


@dataclasses.dataclass(frozen=True, slots=True)
class _Form:
    """What the kernel's text depends on; ``size`` is the bytes of an element.

    ``pixel_bytes`` is 0 unless small pixels of a known size are moved unchanged; ``narrow`` is
    the number of channels where there are too few for a register (narrow_resize.py), else 0.
    """

    row_taps: int
    column_taps: int
    size: int
    may_be_outside: bool
    pixel_bytes: int
    narrow: int

    def symbol(self) -> str:
        outside = "o" if self.may_be_outside else ""
        pixel = f"_{self.pixel_bytes}" if self.pixel_bytes else ""
        narrow = f"_n{self.narrow}" if self.narrow else ""
        return f"resize_{self.row_taps}x{self.column_taps}_{self.size}{outside}{pixel}{narrow}"


def lower(node: Node, graph: Graph, target: Target) -> step.Lowered:
    """A table for each spatial axis, then the pixels; the node is in NHWC layout."""
    assert node.attr("layout") == "NHWC", "Resize runs channels-last"
    shape, size = graph.shape(node.inputs[0]), graph.dtype(node.inputs[0]).size_bytes
    strides = strided.strides_of(shape, size)
    name, out = node.name or node.op, node.outputs[0]
    axes = [_axis(node, shape, strides, n) for n in range(1, len(shape) - 1)]
    if len(axes) == 1:
        axes.insert(0, Axis(1, 1, 0))
    rules = [_rule(node, axis) for axis in axes]
    tables = [f"{out}:row taps", f"{out}:column taps"]
    zipped = list(zip(tables, axes, rules, strict=True))
    crops = rules[1].coordinates == "tf_crop_and_resize"
    moved = _moved_bytes(rules, strides[-2])
    narrow = 0 if crops else narrow_resize.channels_of(rules[1].taps, shape[-1])
    form = _Form(rules[0].taps, rules[1].taps, size, crops, moved, narrow)
    steps = [resample_taps.table_step(name, *each, target) for each in zipped]
    steps.append(_pixels(node, (shape[0], shape[-1]), axes, form, target))
    buffers = [step.Buffer(t, resample_taps.table_bytes(axis, rule)) for t, axis, rule in zipped]
    return step.Lowered(steps=tuple(steps), buffers=tuple(buffers))


def _moved_bytes(rules: list[Rule], pixel: Extent) -> int:
    """Bytes of a pixel that a few instructions can move, else 0."""
    if any(rule.taps > 1 for rule in rules) or isinstance(pixel, dims.Dim):
        return 0
    return pixel if pixel <= strided.UNROLLED_BYTES else 0


def _axis(node: Node, shape: tuple[Extent, ...], strides: list[Extent], n: int) -> Axis:
    scales, region, rank = node.attr("scales"), node.attr("roi"), len(shape)
    return Axis(
        size=shape[n],
        output=node.attr("sizes")[n],
        stride=strides[n],
        scale=float(scales[n]) if scales else 0.0,
        region=(region[n], region[n + rank]) if region else (0.0, 1.0),
    )


def _rule(node: Node, axis: Axis) -> Rule:
    """An axis that keeps its extent and scale is read at its own positions."""
    coordinates = _coordinates(node)
    is_kept = axis.size == axis.output and axis.scale in (0.0, 1.0)
    if is_kept and coordinates != "tf_crop_and_resize":
        return Rule("nearest", "asymmetric", "floor")
    return Rule(
        mode=node.attr("mode", "nearest"),
        coordinates=coordinates,
        nearest=_nearest(node),
        cubic_a=float(node.attr("cubic_coeff_a", -0.75)),
        excludes_outside=bool(node.attr("exclude_outside", 0)),
    )


def _pixels(
    node: Node, ends: tuple[Extent, Extent], axes: list[Axis], form: _Form, target: Target
) -> step.Step:
    """The step that reads both tables; ``ends`` are the batch and the channels."""
    batch, channels = ends
    rows, columns = axes
    image = dims.mul(rows.size, rows.stride) if rows.stride != 0 else None
    if image is None:
        image = dims.mul(columns.size, columns.stride)
    out = node.outputs[0]
    work = dims.mul(dims.mul(columns.output, channels), form.row_taps * form.column_taps)
    outside = resample_taps.float_word(float(node.attr("extrapolation_value", 0.0)), form.size)
    units = dims.mul(batch, rows.output)
    return step.Step(
        name=node.name or node.op,
        kernel=step.Kernel(form.symbol(), _kernel_text(form, target)),
        operands=(
            step.Write(out), step.Read(node.inputs[0]),
            step.Read(f"{out}:row taps"), step.Read(f"{out}:column taps"),
        ),
        params=(channels, rows.output, columns.output, image, outside, columns.size),
        units=units,
        grain=dims.maximum(dims.floordiv(_CLAIM, dims.add(work, 1)), 1),
        scratch_bytes=dims.mul(columns.size, 4 * form.narrow),
        flops=dims.mul(dims.mul(units, work), 0 if form.column_taps == 1 else 2),
        bytes_moved=dims.mul(dims.mul(units, work), form.size),
    )  # fmt: skip


def _kernel_text(form: _Form, target: Target) -> str:
    if form.narrow:
        shape = (form.row_taps, form.column_taps, form.narrow)
        return narrow_resize.text(form.symbol(), shape, target)
    return _text(form, target)


def _text(form: _Form, target: Target) -> str:
    module = Module(target)
    is_copy = form.row_taps == form.column_taps == 1
    pixel = strided.copier(module) if is_copy else _blend(module, form)
    fill = strided.filler(module, form.size) if form.may_be_outside else None
    f = module.kernel(form.symbol())
    args, begin, end, _ = f.params
    to, source, row_table, column_table = (f.argument(args, n, PTR) for n in range(4))
    channels, num_rows, num_columns, image_bytes, outside = (
        f.argument(args, n) for n in range(4, 9)
    )
    row_weights = f.offset(row_table, num_rows * (8 * form.row_taps))
    column_weights = f.offset(column_table, num_columns * (8 * form.column_taps))
    pixel_bytes = channels * form.size
    with f.loop(begin, end) as unit:
        image = unit.index // f.maximum(num_rows, 1)
        row = unit.index - image * num_rows
        base = f.offset(source, image * image_bytes)
        place = f.offset(to, unit.index * num_columns * pixel_bytes)
        row_place = f.offset(row_table, row * (8 * form.row_taps))
        row_weight = f.offset(row_weights, row * (4 * form.row_taps))
        first_row = f.load(I64, row_place)
        with f.loop(0, num_columns) as across:
            here = f.offset(place, across.index * pixel_bytes)
            column_place = f.offset(column_table, across.index * (8 * form.column_taps))
            weight = f.offset(column_weights, across.index * (4 * form.column_taps))
            first = f.load(I64, column_place)
            if is_copy:
                corner = f.offset(f.offset(base, first_row), first)
                args_ = [here, corner, pixel_bytes]
            else:
                args_ = [here, base, channels, row_place, row_weight, column_place, weight]
            if form.pixel_bytes and fill is None:
                strided.move_bytes(f, here, args_[1], form.pixel_bytes)
            elif fill is None:
                f.call(pixel, args_)
            else:
                is_outside = (first < 0) | (first_row < 0)
                with f.when(is_outside):
                    value = resample_taps.element_of(f, outside, form.size)
                    f.call(fill, [here, value, channels])
                with f.unless(is_outside):
                    f.call(pixel, args_)
    f.return_()
    return module.text()


def _blend(module: Module, form: _Form) -> Function:
    """One pixel: the weighted sum over all taps, columns first."""
    names = [
        (PTR, "to"), (PTR, "base"), (I64, "channels"), (PTR, "row_place"), (PTR, "row_weight"),
        (PTR, "column_place"), (PTR, "column_weight"),
    ]  # fmt: skip
    f = module.function("blend", names)
    to, base, channels, row_place, row_weight, column_place, column_weight = f.params
    rows = [f.offset(base, f.load(I64, row_place, 8 * n)) for n in range(form.row_taps)]
    columns = [f.load(I64, column_place, 8 * n) for n in range(form.column_taps)]
    weights = (
        [f.load(F32, row_weight, 4 * n) for n in range(form.row_taps)],
        [f.load(F32, column_weight, 4 * n) for n in range(form.column_taps)],
    )
    lanes = module.target.vector_lanes_f32
    whole = channels - channels % lanes
    starts = [[f.offset(row, column) for column in columns] for row in rows]
    with f.loop(0, whole, lanes) as turn:
        value = _sum(f, starts, weights, (turn.index * 4, None))
        f.store(value, f.offset(to, turn.index * 4))
    with f.when(whole < channels):
        mask = f.lane_mask(channels - whole, lanes)
        value = _sum(f, starts, weights, (whole * 4, mask))
        f.masked_store(value, f.offset(to, whole * 4), mask)
    f.return_()
    return f


def _sum(
    f: Function,
    starts: list[list[Value]],
    weights: tuple[list[Value], list[Value]],
    where: tuple[Value, Value | None],
) -> Value:
    """The blend of one vector of channels at a byte offset, masked or not."""
    offset, mask = where
    type_ = loop.vector(f.target.vector_lanes_f32, F32)
    total: Value | None = None
    for row, row_weight in zip(starts, weights[0], strict=True):
        line: Value | None = None
        for place, weight in zip(row, weights[1], strict=True):
            there = f.offset(place, offset)
            value = f.load(type_, there) if mask is None else f.masked_load(type_, there, mask)
            line = value * weight if line is None else f.fma(value, weight, line)
        assert line is not None
        total = line * row_weight if total is None else f.fma(line, row_weight, total)
    assert total is not None
    return total
