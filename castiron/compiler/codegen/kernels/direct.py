"""Convolution as strips of output pixels: every kernel, stride, dilation and group.

The strip of pixels of one output row walks the taps in three levels; taps of neighbouring pixels
lie at one distance, so no gathered copy of the input is made. Where windows reach past the border,
the unit's band of input rows is first copied to scratch with zeros around it (bands.py). Units
are images times bands of output rows times groups of panels.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from castiron.compiler.codegen import step
from castiron.compiler.codegen.kernels import bands, epilogues, gemm, packing, tiles
from castiron.compiler.codegen.kernels.geometry import Geometry, usual
from castiron.compiler.codegen.loop import I64, PTR, Module, Value
from castiron.compiler.target import Target
from castiron.graph.graph import Extent
from castiron.tensor import dim
from castiron.tensor.dim import Dim

_UNIT_FLOPS = 4_000_000


@dataclasses.dataclass(frozen=True, slots=True)
class Convolution:
    """One convolution; ``weights`` is [group, depth, filters / group], or packed at run time.

    Depth runs over (kernel row, kernel column, channel). ``strides`` are the bytes from one
    image, one row and one pixel of the output to the next.
    """

    name: str
    input: step.Read
    output: step.Write
    geometry: Geometry
    weights: np.ndarray | step.Read
    bias: np.ndarray | None
    strides: tuple[Extent, Extent, Extent]
    epilogue: epilogues.Epilogue | None = None
    extras: tuple[step.Read, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Cut:
    """How the work becomes units: bands of at most ``rows`` rows times groups of panels."""

    rows: int
    bands: Extent
    groups: int


def dense_strides(geometry: Geometry, size: int = 4) -> tuple[Extent, Extent, Extent]:
    """The strides of a contiguous output."""
    pixel = geometry.filters * size
    row = dim.mul(geometry.columns.output, pixel)
    return dim.mul(geometry.rows.output, row), row, pixel


def lower(convolution: Convolution, target: Target) -> step.Step:
    """The convolution as one step."""
    geometry, weights = convolution.geometry, convolution.weights
    depth = depth_of(geometry)
    epilogue, extras = epilogues.lifted(convolution.epilogue, convolution.extras)
    micro = tiles.Micro(
        nested=True, reads_ahead=True, has_bias=convolution.bias is not None, epilogue=epilogue
    )
    run = geometry.columns.output
    columns = columns_of(geometry, target)
    cut = divide(geometry, columns, target)
    is_padded = not (geometry.rows.is_inside and geometry.columns.is_inside)
    operands: list[step.Read | step.Write | step.Packed] = [
        convolution.input,
        weights if isinstance(weights, step.Read) else _packed(weights, columns),
        convolution.output,
    ]
    if convolution.bias is not None:
        parts = convolution.bias.reshape(geometry.group, -1)
        packed = [packing.pack_vector(part, columns) for part in parts]
        operands.append(step.Packed(np.concatenate(packed)))
    collide = gemm.rows_collide(geometry.columns.stride * geometry.channels * 4)
    runs = packing.runs(run, 1)
    strips = packing.strips(target, columns, runs, 8 if collide else 0)
    pixels = dim.product([geometry.batch, geometry.rows.output, geometry.columns.output])
    return step.Step(
        name=convolution.name,
        kernel=_kernel(target, micro, columns, (strips, is_padded)),
        operands=(*operands, *extras),
        params=_params(convolution, columns, cut, is_padded),
        units=dim.product([geometry.batch, cut.bands, cut.groups]),
        scratch_bytes=_scratch(geometry, cut) if is_padded else 0,
        flops=dim.mul(pixels, 2 * depth * geometry.filters),
        bytes_moved=dim.mul(dim.add(pixels, depth), 4 * geometry.filters),
    )


def depth_of(geometry: Geometry) -> int:
    """Multiplications for one output element."""
    own = geometry.channels // geometry.group
    return own * geometry.rows.kernel * geometry.columns.kernel


def columns_of(geometry: Geometry, target: Target) -> packing.Columns:
    """How the filters of a group are cut into panels."""
    run = geometry.columns.output
    return packing.columns(
        geometry.filters // geometry.group, target, rows=None if isinstance(run, Dim) else run
    )


def _packed(weights: np.ndarray, columns: packing.Columns) -> step.Packed:
    return step.Packed(np.concatenate([packing.pack(part, columns) for part in weights]))


def _scratch(geometry: Geometry, cut: Cut) -> Extent:
    rows = (cut.rows - 1) * geometry.rows.stride + geometry.rows.span
    return dim.mul(geometry.columns.reach, rows * geometry.channels * 4)


def divide(geometry: Geometry, columns: packing.Columns, target: Target) -> Cut:
    """Bands for light weights; whole images by groups of panels for heavy ones."""
    depth = depth_of(geometry)
    run, height = geometry.columns.output, geometry.rows.output
    wide = max(1, usual(run))
    row_flops = 2 * depth * geometry.group * columns.padded * wide
    row_bytes = geometry.channels * 4 * wide * geometry.columns.stride * geometry.rows.stride
    in_cache = max(1, target.l2_bytes // 2 // max(1, row_bytes))
    panels = columns.panels * geometry.group
    if depth * geometry.group * columns.padded * 4 <= target.l2_bytes // 2:
        most = max(1, min(in_cache, round(_UNIT_FLOPS / row_flops)))
        groups = 1
    else:
        known = in_cache if isinstance(height, Dim) else min(in_cache, height)
        most = max(1, known)
        groups = max(1, min(panels, round(most * row_flops / _UNIT_FLOPS)))
    if not isinstance(height, Dim):
        most = min(most, max(1, height))
    return Cut(most, dim.ceildiv(height, most), groups)


_NUMBERS = (
    "batch height width out_rows out_columns row_stride row_before column_before wide row_span"
    " pixel_bytes a_row a_line inner outer outer_jump middle middle_jump"
    " y_image y_row y_pixel full panels columns group_channels group_filters depth padded"
    " bands groups all_panels"
).split()


def _params(
    convolution: Convolution, columns: packing.Columns, cut: Cut, is_padded: bool
) -> tuple[Extent, ...]:
    geometry = convolution.geometry
    rows, across = geometry.rows, geometry.columns
    own = geometry.channels // geometry.group
    pixel = geometry.channels * 4
    line = dim.mul(across.reach if is_padded else across.size, pixel)
    joined = across.dilation == 1 and geometry.group == 1
    inner, middle = (across.kernel * own, 1) if joined else (own, across.kernel)
    middle_jump = 0 if joined else across.dilation * pixel - own * 4
    walked = inner * 4 if joined else across.kernel * across.dilation * pixel
    numbers: dict[str, Extent] = {
        "batch": geometry.batch,
        "height": rows.size,
        "width": across.size,
        "out_rows": rows.output,
        "out_columns": across.output,
        "row_stride": rows.stride,
        "row_before": rows.before,
        "column_before": across.before,
        "wide": across.reach,
        "row_span": rows.span,
        "pixel_bytes": pixel,
        "a_row": across.stride * pixel,
        "a_line": line,
        "inner": inner,
        "outer": rows.kernel,
        "outer_jump": dim.add(dim.mul(line, rows.dilation), -walked),
        "middle": middle,
        "middle_jump": middle_jump,
        "y_image": convolution.strides[0],
        "y_row": convolution.strides[1],
        "y_pixel": convolution.strides[2],
        "full": columns.full,
        "panels": columns.panels,
        "columns": columns.last_columns,
        "group_channels": own,
        "group_filters": columns.count,
        "depth": depth_of(geometry),
        "padded": columns.padded,
        "bands": cut.bands,
        "groups": cut.groups,
        "all_panels": columns.panels * geometry.group,
    }
    return tuple(numbers[name] for name in _NUMBERS)


_Text = tuple[tuple[tiles.Strips, ...], bool]  # strips, and whether bands are copied


def _kernel(
    target: Target, micro: tiles.Micro, columns: packing.Columns, text: _Text
) -> step.Kernel:
    strips, is_padded = text
    symbol = f"conv_{micro.tag()}_{packing.tag(strips)}{'z' if is_padded else ''}"
    module = Module(target)
    _Kernel(module, symbol, micro, columns, text).write()
    return step.Kernel(symbol, module.text())


class _Kernel:
    """The kernel being written."""

    def __init__(
        self,
        module: Module,
        symbol: str,
        micro: tiles.Micro,
        columns: packing.Columns,
        text: _Text,
    ) -> None:
        self.micro, self.columns = micro, columns
        self.panels = packing.panels(module, micro, text[0])
        self.copy = bands.band_copier(module) if text[1] else None
        self.f = module.kernel(symbol)
        names = ["a", "b", "c"] + (["bias"] if micro.has_bias else [])
        if micro.epilogue:
            names += [f"e{n}" for n in range(len(micro.epilogue.kinds))]
        args = self.f.params[0]
        self.at = {name: self.f.argument(args, n, PTR) for n, name in enumerate(names)}
        for n, name in enumerate(_NUMBERS, len(names)):
            self.at[name] = self.f.argument(args, n, I64)

    def write(self) -> None:
        f, at = self.f, self.at
        _, begin, end, _ = f.params
        with f.loop(begin, end) as unit:
            part = unit.index // at["groups"]
            group = unit.index - part * at["groups"]
            image = part // at["bands"]
            band = part - image * at["bands"]
            first = band * at["out_rows"] // at["bands"]
            last = (band + 1) * at["out_rows"] // at["bands"]
            here = {**at, "first": first, "last": last}
            here["a"] = self._input(image, first, last)
            here["down"] = image * at["y_image"]
            from_panel = group * at["all_panels"] // at["groups"]
            to_panel = (group + 1) * at["all_panels"] // at["groups"]
            with f.loop(from_panel, to_panel) as turn:
                self._panel(here, turn.index)
        f.return_()

    def _input(self, image: Value, first: Value, last: Value) -> Value:
        """Where the first window of the band starts: in the image, or in scratch."""
        f, at = self.f, self.at
        image_bytes = at["height"] * at["width"] * at["pixel_bytes"]
        place = f.offset(at["a"], image * image_bytes)
        row = first * at["row_stride"] - at["row_before"]
        if self.copy is None:
            return f.offset(place, row * at["a_line"])
        scratch = f.params[3]
        count = (last - first - 1) * at["row_stride"] + at["row_span"]
        f.call(
            self.copy,
            [
                scratch, place, row, count, 0 - at["column_before"], at["wide"],
                at["height"], at["width"], at["pixel_bytes"],
            ],
        )  # fmt: skip
        return scratch

    def _panel(self, here: dict[str, Value], index: Value) -> None:
        """All rows of the band for one panel of one group."""
        f, at, micro = self.f, self.at, self.micro
        wide = self.columns.main * self.columns.lanes * 4
        group = index // at["panels"]
        number = index - group * at["panels"]
        across = group * at["group_filters"] * 4 + number * wide
        now = dict(here)
        now["rows"] = at["out_columns"]
        now["c_row"] = at["y_pixel"]
        packed = group * at["padded"] * 4 + number * wide
        now["b"] = f.offset(at["b"], packed * at["depth"])
        if micro.has_bias:
            now["bias"] = f.offset(at["bias"], packed)
        source = f.offset(here["a"], group * at["group_channels"] * 4)
        now["turns"] = here["last"] - here["first"]
        with f.loop(here["first"], here["last"]) as turn:
            now["turn"] = turn.index - here["first"]
            down = now["turn"] * at["row_stride"] * at["a_line"]
            now["a"] = f.offset(source, down)
            out = here["down"] + turn.index * at["y_row"]
            now["c"] = f.offset(f.offset(at["c"], out), across)
            if micro.epilogue:
                extras = [at[f"e{n}"] for n in range(len(micro.epilogue.kinds))]
                moved = epilogues.places(f, micro.epilogue, extras, (out, across))
                now |= {f"e{n}": place for n, place in enumerate(moved)}
            self._call(now, number)

    def _call(self, now: dict[str, Value], number: Value) -> None:
        f = self.f
        for width, panel in self.panels.items():
            is_rest = width == self.columns.rest
            has_both = len(self.panels) == 2
            condition = (number >= now["full"]) if is_rest else (number < now["full"])
            labels = [label for _, label in tiles.panel_parameters(self.micro, width)]
            args = [now[label] for label in labels]
            if has_both:
                with f.when(condition):
                    f.call(panel, args)
            else:
                f.call(panel, args)
