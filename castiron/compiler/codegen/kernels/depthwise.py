"""Convolution with one filter for each channel.

A tile of output pixels is computed for one register of channels at a time: every input vector of
its patch is loaded once and used for all outputs that need it. Rows outside the image are read
from zeros in scratch; tiles that reach past the left or right border load under masks, or read a
copy of their patch on targets without mask registers. Units are images times bands of tile rows.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from castiron.compiler.codegen import loop as language
from castiron.compiler.codegen import step
from castiron.compiler.codegen.kernels import bands, epilogues
from castiron.compiler.codegen.kernels.geometry import Axis, Geometry, usual
from castiron.compiler.codegen.loop import F32, I1, I64, PTR, Function, Module, Value
from castiron.compiler.target import Target
from castiron.graph.graph import Extent
from castiron.tensor import dim
from castiron.tensor.dim import Dim

_UNIT_FLOPS = 3_000_000
_MOST_TAPS = 121


@dataclasses.dataclass(frozen=True, slots=True)
class Shape:
    """What the text of a kernel depends on, besides the target."""

    rows: tuple[int, int, int]  # kernel, stride, dilation
    columns: tuple[int, int, int]
    tile: tuple[int, int]
    sizes: tuple[tuple[int, int], ...]
    has_edges: bool
    masked: bool
    has_bias: bool
    epilogue: epilogues.Epilogue | None

    @property
    def taps(self) -> int:
        """Multiplications for one output element."""
        return self.rows[0] * self.columns[0]

    def span(self, height: int, width: int) -> tuple[int, int]:
        """Input rows and columns that a tile of this size reads."""
        return (
            (height - 1) * self.rows[1] + (self.rows[0] - 1) * self.rows[2] + 1,
            (width - 1) * self.columns[1] + (self.columns[0] - 1) * self.columns[2] + 1,
        )

    def symbol(self) -> str:
        """The name of the kernel."""
        rows, columns = ("x".join(map(str, axis)) for axis in (self.rows, self.columns))
        flags = ("m" if self.masked else "") + ("b" if self.has_bias else "")
        flags += "z" if self.has_edges else ""
        tile = f"{self.tile[0]}x{self.tile[1]}s{step.tag(repr(self.sizes))}"
        return f"depthwise_r{rows}_c{columns}_t{tile}{flags}{epilogues.tag(self.epilogue)}"


def fits(geometry: Geometry) -> bool:
    """Whether this family computes the convolution."""
    taps = geometry.rows.kernel * geometry.columns.kernel
    return 1 < geometry.group == geometry.channels == geometry.filters and taps <= _MOST_TAPS


@dataclasses.dataclass(frozen=True, slots=True)
class Convolution:
    """One convolution; ``weights`` is [channels, rows, columns] or has axes of extent 1 between.

    ``strides`` are the bytes from one image, one row and one pixel of the output to the next.
    """

    name: str
    input: step.Read
    output: step.Write
    geometry: Geometry
    weights: np.ndarray
    bias: np.ndarray | None
    strides: tuple[Extent, Extent, Extent]
    epilogue: epilogues.Epilogue | None = None
    extras: tuple[step.Read, ...] = ()


def lower(convolution: Convolution, target: Target) -> step.Step:
    """The convolution as one step."""
    geometry, bias = convolution.geometry, convolution.bias
    lanes = target.vector_lanes_f32
    epilogue, extras = epilogues.lifted(convolution.epilogue, convolution.extras)
    tile = (1, 8) if geometry.rows.output == 1 else (2, 4)
    shape = Shape(
        rows=_numbers(geometry.rows),
        columns=_numbers(geometry.columns),
        tile=tile,
        sizes=_sizes(geometry, tile),
        has_edges=not geometry.columns.is_inside,
        masked=geometry.channels < lanes,
        has_bias=bias is not None,
        epilogue=epilogue,
    )
    spans = shape.span(*shape.tile)
    pixel = geometry.channels * 4
    tile_rows = dim.ceildiv(geometry.rows.output, shape.tile[0])
    pixels = dim.product([geometry.batch, geometry.rows.output, geometry.columns.output])
    blocks = _blocks(geometry, shape, tile_rows)
    return step.Step(
        name=convolution.name,
        kernel=_kernel(target, shape),
        operands=(
            convolution.input,
            step.Packed(_pack(convolution.weights, bias, lanes)),
            convolution.output,
            *extras,
        ),
        params=(
            geometry.rows.size, geometry.columns.size, geometry.rows.output,
            geometry.columns.output, geometry.rows.before, geometry.columns.before,
            geometry.channels, tile_rows, blocks,
            *convolution.strides,
        ),
        units=dim.mul(geometry.batch, blocks),
        scratch_bytes=(spans[0] + 1) * spans[1] * pixel,
        flops=dim.mul(pixels, 2 * shape.taps * geometry.channels),
        bytes_moved=dim.mul(pixels, 2 * pixel),
    )  # fmt: skip


def _numbers(axis: Axis) -> tuple[int, int, int]:
    return axis.kernel, axis.stride, axis.dilation


def _sizes(geometry: Geometry, tile: tuple[int, int]) -> tuple[tuple[int, int], ...]:
    """The sizes of tiles that occur: whole rows of tiles, then the rest; widths balanced."""
    rows, columns = geometry.rows.output, geometry.columns.output
    heights, widths = set(range(1, tile[0] + 1)), set(range(1, tile[1] + 1))
    if not isinstance(rows, Dim):
        heights = {min(rows, tile[0]), rows % tile[0]} - {0}
    if not isinstance(columns, Dim):
        count = -(-columns // tile[1])
        widths = {columns // count, -(-columns // count)} if count else set()
    return tuple((height, width) for height in sorted(heights) for width in sorted(widths))


def _blocks(geometry: Geometry, shape: Shape, tile_rows: Extent) -> Extent:
    columns = geometry.columns.output
    wide = max(1, usual(columns))
    flops = 2 * shape.taps * geometry.channels * wide * shape.tile[0]
    return dim.ceildiv(tile_rows, max(1, round(_UNIT_FLOPS / flops)))


def _starts(channels: int, lanes: int) -> list[int]:
    """First channel of each register; the last one overlaps its neighbour to stay inside."""
    return [max(0, min(start, channels - lanes)) for start in range(0, channels, lanes)]


def _pack(weights: np.ndarray, bias: np.ndarray | None, lanes: int) -> np.ndarray:
    """[registers of channels][taps, then the bias][lanes]."""
    channels = weights.shape[0]
    rows = list(weights.reshape(channels, -1).T)
    if bias is not None:
        rows.append(bias)
    table = np.zeros((len(rows), max(channels, lanes)), np.float32)
    table[:, :channels] = rows
    parts = [table[:, start : start + lanes] for start in _starts(channels, lanes)]
    return np.stack(parts)


def _kernel(target: Target, shape: Shape) -> step.Kernel:
    module = Module(target)
    _Kernel(module, shape).write()
    return step.Kernel(shape.symbol(), module.text())


class _Tile:
    """A function that computes one tile of a fixed size for all channels.

    Parameters: a pointer for each input row, weights, c, bytes of an input pixel, of an output row
    and an output pixel, channels, then for edge tiles ``before`` and ``after``: columns of the patch outside the image on either side.
    """

    def __init__(self, module: Module, shape: Shape, size: tuple[int, int], edge: bool) -> None:
        self.shape, self.size, self.edge = shape, size, edge
        self.spans = shape.span(*size)
        num_extras = len(shape.epilogue.kinds) if shape.epilogue else 0
        params = [(PTR, f"x{n}") for n in range(self.spans[0])]
        params += [(PTR, "weights"), (PTR, "c")]
        params += [(I64, "pixel"), (I64, "y_row"), (I64, "y_pixel")]
        params += [(I64, "channels")]
        params += [(I64, "before"), (I64, "after")] if edge else []
        params += [(PTR, f"e{n}") for n in range(num_extras)]
        name = f"tile_{size[0]}x{size[1]}{'e' if edge else ''}"
        self.f = module.function(name, params)
        self.at = {label: v for (_, label), v in zip(params, self.f.params, strict=True)}
        self.lanes = module.target.vector_lanes_f32
        self.type = language.vector(self.lanes, F32)
        self.keeps_weights = shape.taps <= 9 and module.target.num_vector_registers == 32
        self.tail = self.f.lane_mask(self.at["channels"], self.lanes) if shape.masked else None
        self.masks = [self._mask(column) for column in range(self.spans[1])]

    def _mask(self, column: int) -> Value | None:
        if not self.edge:
            return self.tail
        f, at = self.f, self.at
        inside = (at["before"] <= column) & (at["after"] < self.spans[1] - column)
        mask = f.splat(inside, self.lanes)
        return mask & self.tail if self.tail else mask

    def write(self) -> Function:
        f, at = self.f, self.at
        self.steps = {n: at["pixel"] * n for n in range(self.spans[1])}
        self.y_steps = {n: at["y_pixel"] * n for n in range(self.size[1])}
        last = f.maximum(at["channels"] - self.lanes, 0)
        if self.shape.epilogue:
            pointers = [at[f"e{n}"] for n in range(len(self.shape.epilogue.kinds))]
            self.extras = epilogues.loaded(f, self.shape.epilogue, pointers, self.lanes)
        stride = (self.shape.taps + self.shape.has_bias) * self.lanes * 4
        with f.loop(0, at["channels"], self.lanes, carry=[at["weights"]]) as turn:
            start = f.minimum(turn.index, last) << 2
            weights = turn.carried[0]
            self._store(self._sums(start, weights), start)
            turn.update([f.offset(weights, stride)])
        f.return_()
        return f

    def _sums(self, start: Value, weights: Value) -> dict[tuple[int, int], Value]:
        f, shape = self.f, self.shape
        bias: Value = f.const(0, self.type)
        if shape.has_bias:
            bias = f.load(self.type, weights, shape.taps * self.lanes * 4)
        height, width = self.size
        sums = {(row, column): bias for row in range(height) for column in range(width)}
        kept = {}
        if self.keeps_weights:
            kept = {tap: self._weight(weights, tap) for tap in range(shape.taps)}
        for line in range(self.spans[0]):
            taps = self._taps_of_line(line)
            if taps:
                vectors = self._line(line, start)
                for row, tap_row in taps:
                    self._multiply(sums, (row, tap_row), vectors, (weights, kept))
        return sums

    def _taps_of_line(self, line: int) -> list[tuple[int, int]]:
        """(output row, tap row) pairs that read this input row."""
        kernel, stride, dilation = self.shape.rows
        return [
            (row, tap)
            for row in range(self.size[0])
            for tap in range(kernel)
            if row * stride + tap * dilation == line
        ]

    def _line(self, line: int, start: Value) -> dict[int, Value]:
        """The vectors of one input row that some output of the tile reads."""
        kernel, stride, dilation = self.shape.columns
        needed = sorted(
            {column * stride + tap * dilation for column in range(self.size[1])
             for tap in range(kernel)}
        )  # fmt: skip
        f, found = self.f, {}
        row = f.offset(self.at[f"x{line}"], start)
        for column in needed:
            place = f.offset(row, self.steps[column]) if column else row
            mask = self.masks[column]
            if mask is None:
                found[column] = f.load(self.type, place)
            else:
                found[column] = f.masked_load(self.type, place, mask)
        return found

    def _multiply(
        self,
        sums: dict[tuple[int, int], Value],
        rows: tuple[int, int],
        vectors: dict[int, Value],
        table: tuple[Value, dict[int, Value]],
    ) -> None:
        kernel, stride, dilation = self.shape.columns
        row, tap_row = rows
        weights, kept = table
        for tap_column in range(kernel):
            tap = tap_row * kernel + tap_column
            weight = kept[tap] if kept else self._weight(weights, tap)
            for column in range(self.size[1]):
                vector = vectors[column * stride + tap_column * dilation]
                sums[row, column] = self.f.fma(vector, weight, sums[row, column])

    def _weight(self, weights: Value, tap: int) -> Value:
        return self.f.load(self.type, weights, tap * self.lanes * 4)

    def _store(self, sums: dict[tuple[int, int], Value], start: Value) -> None:
        f, at, epilogue = self.f, self.at, self.shape.epilogue
        for (row, column), total in sums.items():
            value = total
            below = at["y_row"] * row if row else 0
            across = self.y_steps[column] + start if column else start
            if epilogue:
                pointers = self._extras(epilogue, self.extras, (below, across, start))
                value = epilogues.apply(f, epilogue, value, (pointers, self.tail))
            place = f.offset(f.offset(at["c"], below), across)
            if self.tail is None:
                f.store(value, place)
            else:
                f.masked_store(value, place, self.tail)

    def _extras(
        self,
        epilogue: epilogues.Epilogue,
        extras: list[Value],
        at: tuple[Value | int, Value, Value],
    ) -> list[Value]:
        below, across, start = at
        moved = []
        for kind, pointer in zip(epilogue.kinds, extras, strict=True):
            if kind == epilogues.FULL:
                moved.append(self.f.offset(self.f.offset(pointer, below), across))
            else:
                moved.append(pointer if kind == epilogues.SCALAR else self.f.offset(pointer, start))
        return moved


class _Kernel:
    """The kernel being written: which tiles a unit covers and where they read."""

    def __init__(self, module: Module, shape: Shape) -> None:
        target = module.target
        self.shape = shape
        self.has_masks = target.num_vector_registers == 32 and target.has_masked_ops
        edges = [False, True] if self.has_masks and shape.has_edges else [False]
        self.tiles = {
            (size, edge): _Tile(module, shape, size, edge).write()
            for size in shape.sizes
            for edge in edges
        }
        self.fill = bands.filler(module)
        needs_copy = shape.has_edges and not self.has_masks
        self.copy = bands.band_copier(module, self.fill) if needs_copy else None
        self.f = f = module.kernel(shape.symbol())
        names = ["a", "weights", "c"]
        names += [f"e{n}" for n in range(len(shape.epilogue.kinds) if shape.epilogue else 0)]
        numbers = (
            "height width out_rows out_columns row_before column_before channels tile_rows blocks"
            " y_image y_line y_pixel"
        ).split()
        args = f.params[0]
        self.at = {name: f.argument(args, n, PTR) for n, name in enumerate(names)}
        for n, name in enumerate(numbers, len(names)):
            self.at[name] = f.argument(args, n, I64)
        self.at["pixel"] = self.at["channels"] * 4

    def write(self) -> None:
        f, at = self.f, self.at
        _, begin, end, scratch = f.params
        span = self.shape.span(*self.shape.tile)[1]
        self.zeros = scratch
        self.patch = f.offset(scratch, at["pixel"] * span)
        with f.when(begin < end):
            f.call(self.fill, [scratch, at["pixel"] * span])
        with f.loop(begin, end) as unit:
            image = unit.index // at["blocks"]
            block = unit.index - image * at["blocks"]
            first = block * at["tile_rows"] // at["blocks"]
            last = (block + 1) * at["tile_rows"] // at["blocks"]
            with f.loop(first, last) as turn:
                self._tile_row(image, turn.index)
        f.return_()

    def _tile_row(self, image: Value, number: Value) -> None:
        """All tiles beside each other, their widths differing by at most one."""
        f, at = self.f, self.at
        tall, wide = self.shape.tile
        row = number * tall
        height = f.minimum(at["out_rows"] - row, tall)
        count = (at["out_columns"] + (wide - 1)) // wide
        with f.loop(0, count) as turn:
            column = turn.index * at["out_columns"] // count
            width = (turn.index + 1) * at["out_columns"] // count - column
            self._tile(image, (row, column), (height, width))

    def _tile(self, image: Value, place: tuple[Value, Value], size: tuple[Value, Value]) -> None:
        f, at = self.f, self.at
        top = place[0] * self.shape.rows[1] - at["row_before"]
        left = place[1] * self.shape.columns[1] - at["column_before"]
        reach = self.shape.span(1, 1)[1]
        span = (size[1] - 1) * self.shape.columns[1] + reach
        before = f.maximum(0 - left, 0)
        after = f.maximum(left + span - at["width"], 0)
        here = {**at, "before": before, "after": after}
        down = image * at["y_image"] + place[0] * at["y_line"] + place[1] * at["y_pixel"]
        here["c"] = f.offset(at["c"], down)
        here["y_row"] = at["y_line"]
        kinds = self.shape.epilogue.kinds if self.shape.epilogue else ()
        for n, kind in enumerate(kinds):
            if kind == epilogues.FULL:
                here[f"e{n}"] = f.offset(at[f"e{n}"], down)
        source = f.offset(at["a"], image * at["height"] * at["width"] * at["pixel"])
        here |= self._rows_in_place(source, top, left)
        if not self.shape.has_edges:
            self._dispatch(here, size, edge=False)
            return
        is_edge = (before > 0) | (after > 0)
        with f.unless(is_edge):
            self._dispatch(here, size, edge=False)
        with f.when(is_edge):
            if self.has_masks:
                self._dispatch(here, size, edge=True)
            else:
                here |= self._rows_in_patch(source, (top, left), span)
                self._dispatch(here, size, edge=False)

    def _rows_in_place(self, source: Value, top: Value, left: Value) -> dict[str, Value]:
        f, at = self.f, self.at
        rows = {}
        for line in range(self.shape.span(*self.shape.tile)[0]):
            row = top + line
            place = f.offset(source, (row * at["width"] + left) * at["pixel"])
            inside = (row >= 0) & (row < at["height"])
            rows[f"x{line}"] = f.select(inside, place, self.zeros)
        return rows

    def _rows_in_patch(
        self, source: Value, corner: tuple[Value, Value], span: Value
    ) -> dict[str, Value]:
        f, at = self.f, self.at
        count = self.shape.span(*self.shape.tile)[0]
        assert self.copy is not None
        where = [corner[0], f.const(count, I64), corner[1], span]
        f.call(
            self.copy,
            [self.patch, source, *where, at["height"], at["width"], at["pixel"]],
        )
        row_bytes = span * at["pixel"]
        return {f"x{line}": f.offset(self.patch, row_bytes * line) for line in range(count)}

    def _dispatch(self, here: dict[str, Value], size: tuple[Value, Value], *, edge: bool) -> None:
        f = self.f
        for (fixed, for_edge), tile in self.tiles.items():
            if for_edge != edge:
                continue
            condition: Value = size[0].equals(fixed[0]) & size[1].equals(fixed[1])
            assert condition.type == I1
            with f.when(condition):
                f.call(tile, [here[label[1:]] for label in _labels(tile)])


def _labels(function: Function) -> list[str]:
    return [value.text for value in function.params]
