"""3x3 convolution of stride 1 with fewer multiplications, by tiles of 2x2 or 4x4 outputs.

A unit takes a block of tiles: transforms their patches into scratch, multiplies each of the 16 or
36 components with its own constant matrix, and transforms the products into output pixels with
bias and epilogue. Patches that reach past the border are first copied between zeros. An infinite
or NaN input spoils whole tiles, not only the windows that hold it. ``choose`` weighs time against
the direct kernel; the arithmetic is in transforms.py.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from castiron.compiler.codegen import loop as language
from castiron.compiler.codegen import step
from castiron.compiler.codegen.kernels import bands, epilogues, packing, tiles, transforms
from castiron.compiler.codegen.kernels.geometry import Geometry, usual
from castiron.compiler.codegen.loop import F32, I64, PTR, Function, Module, Value
from castiron.compiler.target import Target
from castiron.graph.graph import Extent
from castiron.tensor import dim
from castiron.tensor.dim import Dim

_FEWEST_CHANNELS = 16
# Components and rows of V and M are this much longer than they need be: distances of 1024 or 4096
# bytes would put them all in a few places of the first cache.
_PADDING = 16
_BLOCK_BYTES = 1_500_000
_UNIT_MICROSECONDS = 40.0
# Cycles for a tile and a register of channels, and bytes of weights that arrive in one cycle.
_INPUT_CYCLES = {2: 35, 4: 110}
_OUTPUT_CYCLES = {2: 30, 4: 80}
_BYTES_A_CYCLE = 4
# The part of that time in which nothing is multiplied.
_EXPOSED = 0.6


def fits(geometry: Geometry) -> bool:
    """Whether the convolution is of the kind that this family computes."""
    axes = (geometry.rows, geometry.columns)
    return (
        all(a.kernel == 3 and a.stride == 1 and a.dilation == 1 for a in axes)
        and geometry.group == 1
        and min(geometry.channels, geometry.filters) >= _FEWEST_CHANNELS
    )


def choose(geometry: Geometry, *, strict: bool) -> int:
    """Outputs of a tile along one axis: 2 or 4, or 0 where the direct kernel is faster.

    ``strict`` allows only what is as exact as the direct kernel. Weights are taken to come from
    main memory, as they do in a network that is larger than the caches.
    """
    known = [usual(axis.output) for axis in (geometry.rows, geometry.columns)]
    batch = 1 if isinstance(geometry.batch, Dim) else geometry.batch
    times = {0: 9 * batch * known[0] * known[1] * geometry.channels * geometry.filters / 32}
    for outputs in (2,) if strict else (2, 4):
        times[outputs] = _cycles(geometry, outputs, batch, (known[0], known[1]))
    return min(times, key=lambda outputs: times[outputs])


def _cycles(geometry: Geometry, outputs: int, batch: int, size: tuple[int, int]) -> float:
    channels, filters = geometry.channels, geometry.filters
    count = batch * -(-size[0] // outputs) * -(-size[1] // outputs)
    products = (outputs + 2) ** 2
    multiply = products * count * channels * filters / 32
    around = count * (channels * _INPUT_CYCLES[outputs] + filters * _OUTPUT_CYCLES[outputs]) / 16
    # Weights beyond those of the direct kernel have to be read, and that hides only in part.
    extra = (products - 9) * channels * filters * 4 / _BYTES_A_CYCLE
    return multiply + around + _EXPOSED * extra


@dataclasses.dataclass(frozen=True, slots=True)
class Convolution:
    """One convolution; ``filters`` is [filters, channels, 3, 3]."""

    name: str
    input: step.Read
    output: step.Write
    geometry: Geometry
    filters: np.ndarray
    bias: np.ndarray | None
    outputs: int
    epilogue: epilogues.Epilogue | None = None
    extras: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Cut:
    """How tiles and panels become units."""

    most: int
    blocks: Extent
    groups: int


def lower(convolution: Convolution, target: Target) -> step.Step:
    """The convolution as one step."""
    geometry, outputs = convolution.geometry, convolution.outputs
    reads = [step.Read(value) for value in convolution.extras]
    epilogue, extras = epilogues.lifted(convolution.epilogue, reads)
    tile_rows = dim.ceildiv(geometry.rows.output, outputs)
    tile_columns = dim.ceildiv(geometry.columns.output, outputs)
    count = dim.product([geometry.batch, tile_rows, tile_columns])
    lanes = target.vector_lanes_f32
    padded = -(-geometry.filters // lanes) * lanes
    most = _most_tiles(geometry, outputs)
    run = None if isinstance(count, Dim) else -(-count // max(1, -(-count // most)))
    columns = packing.columns(padded, target, rows=run or None, is_cold=bool(run))
    cut = _divide(geometry, outputs, count, columns)
    weights = transforms.weights_2d(convolution.filters, outputs)
    wide = np.zeros((*weights.shape[:2], padded), np.float32)
    wide[..., : geometry.filters] = weights
    operands: list[step.Read | step.Write | step.Packed] = [
        convolution.input,
        step.Packed(np.concatenate([packing.pack(part, columns) for part in wide])),
        convolution.output,
    ]
    if convolution.bias is not None:
        operands.append(step.Packed(np.ascontiguousarray(convolution.bias, np.float32)))
    operands += extras
    products = (outputs + 2) ** 2
    rows = (products * (geometry.channels + padded + 2 * _PADDING) + 2 * _PADDING) * 4
    pixels = dim.product([geometry.batch, geometry.rows.output, geometry.columns.output])
    return step.Step(
        name=convolution.name,
        kernel=_kernel(
            target,
            (outputs, convolution.bias is not None, epilogue),
            columns,
            packing.runs(count, cut.blocks),
        ),
        operands=tuple(operands),
        params=(
            geometry.rows.size, geometry.columns.size,
            geometry.rows.output, geometry.columns.output,
            geometry.rows.before, geometry.columns.before,
            geometry.channels, geometry.filters, padded,
            tile_rows, tile_columns, count, columns.full, columns.panels, cut.blocks, cut.groups,
            cut.most,
        ),
        units=dim.mul(cut.blocks, cut.groups),
        scratch_bytes=cut.most * rows + products * geometry.channels * 4,
        flops=dim.mul(count, 2 * products * geometry.channels * geometry.filters),
        bytes_moved=dim.add(
            dim.mul(pixels, 4 * (geometry.channels + geometry.filters)), wide.size * 4
        ),
    )  # fmt: skip


def _most_tiles(geometry: Geometry, outputs: int) -> int:
    tile_bytes = (outputs + 2) ** 2 * (geometry.channels + geometry.filters) * 4
    # Outputs of 2x2 are a quarter of the work, so twice as many tiles keep the strips long.
    return max(12, min(48 // outputs * 2, _BLOCK_BYTES // tile_bytes))


def _divide(geometry: Geometry, outputs: int, count: Extent, columns: packing.Columns) -> Cut:
    """Blocks of tiles; where there are few, groups of panels that transform the input again."""
    most = _most_tiles(geometry, outputs)
    blocks = dim.ceildiv(count, most)
    groups = 1
    if not isinstance(count, Dim) and count <= 2 * most:
        tile_flops = 2 * (outputs + 2) ** 2 * geometry.channels * columns.padded
        time = count * tile_flops / 100e3 / max(1, -(-count // most))
        wide = columns.main * columns.lanes
        most_groups = max(1, columns.panels * wide // 128)
        if columns.rest and columns.rest.vectors == 1:
            # The last panel alone may hold fewer filters than a register has lanes.
            most_groups = min(most_groups, max(1, columns.panels // 2))
        groups = max(1, min(columns.panels, most_groups, round(time / _UNIT_MICROSECONDS)))
    return Cut(most, blocks, groups)


_Shape = tuple[int, bool, epilogues.Epilogue | None]  # outputs, whether there is a bias


def _kernel(
    target: Target,
    shape: _Shape,
    columns: packing.Columns,
    runs: tuple[int, ...] | None,
) -> step.Kernel:
    outputs, has_bias, epilogue = shape
    strips = packing.strips(target, columns, runs)
    marks = f"{packing.tag(strips)}{'b' if has_bias else ''}{epilogues.tag(epilogue)}"
    symbol = f"winograd{outputs}_{marks}"
    module = Module(target)
    _Kernel(module, symbol, columns, (shape, strips)).write()
    return step.Kernel(symbol, module.text())


def input_function(module: Module, outputs: int) -> Function:
    """``input(x, line, pixel, to, component, channels)``: one patch to its components, all channels."""
    params = [(PTR, "x"), (I64, "line"), (I64, "pixel"), (PTR, "to"), (I64, "component")]
    params.append((I64, "channels"))
    f = module.function("transform_input", params)
    x, line, pixel, to, component, channels = f.params
    size = outputs + 2
    lanes = module.target.vector_lanes_f32
    type_ = language.vector(lanes, F32)
    lines = [line * n for n in range(size)]
    columns = [pixel * n for n in range(size)]
    places = [component * (size * n) for n in range(size)]
    last = channels - lanes
    with f.loop(0, channels, lanes) as turn:
        start = f.minimum(turn.index, last) << 2
        patch, parts = f.offset(x, start), f.offset(to, start)
        for which, transform in transforms.input_passes(outputs):
            made = []
            for column in columns:
                rows = [f.load(type_, f.offset(f.offset(patch, row), column)) for row in lines]
                made.append(transform(f, rows))
            for number, values in zip(which, zip(*made, strict=True), strict=True):
                place = f.offset(parts, places[number])
                for value in transforms.of_input(outputs)(f, values):
                    f.store(value, place)
                    place = f.offset(place, component)
    f.return_()
    return f


class _Output:
    """``output(m, component, c, line, pixel, filters, [rows, columns,] [bias,] tensors...)``.

    From products to one tile of output pixels, all filters. The partial form stores only the
    first ``rows`` and ``columns`` of the tile.
    """

    def __init__(
        self,
        module: Module,
        outputs: int,
        has_bias: bool,
        epilogue: epilogues.Epilogue | None,
        *,
        partial: bool,
    ) -> None:
        self.outputs, self.has_bias, self.partial = outputs, has_bias, partial
        self.epilogue = epilogue if epilogues.is_light(epilogue) else None
        params = [(PTR, "m"), (I64, "component"), (PTR, "c"), (I64, "line"), (I64, "pixel")]
        params += [(I64, "filters")]
        params += [(I64, "rows"), (I64, "columns")] if partial else []
        params += [(PTR, "bias")] if has_bias else []
        kinds = self.epilogue.kinds if self.epilogue else ()
        params += [(PTR, f"e{n}") for n in range(len(kinds))]
        self.f = module.function(f"transform_output{'_partial' if partial else ''}", params)
        self.labels = [label for _, label in params]
        self.at = dict(zip(self.labels, self.f.params, strict=True))
        self.lanes = module.target.vector_lanes_f32

    def write(self) -> _Output:
        f, at = self.f, self.at
        type_ = language.vector(self.lanes, F32)
        size = self.outputs + 2
        last = at["filters"] - self.lanes
        if self.epilogue:
            pointers = [at[f"e{n}"] for n in range(len(self.epilogue.kinds))]
            self.extras = epilogues.loaded(f, self.epilogue, pointers, self.lanes)
        with f.loop(0, at["filters"], self.lanes) as turn:
            start = f.minimum(turn.index, last) << 2
            place = f.offset(at["m"], start)
            values = []
            for _ in range(size):
                row = []
                for _ in range(size):
                    row.append(f.load(type_, place))
                    place = f.offset(place, at["component"])
                values.append(row)
            results = transforms.square(f, transforms.of_products(self.outputs), values)
            self._store(results, start, type_)
        f.return_()
        return self

    def _store(self, results: list[list[Value]], start: Value, type_: str) -> None:
        f, at = self.f, self.at
        bias = f.load(type_, at["bias"], start) if self.has_bias else None
        for row, values in enumerate(results):
            for column, product in enumerate(values):
                value = product if bias is None else product + bias
                if not self.partial:
                    self._store_one(value, (row, column), start)
                    continue
                exists = (at["rows"] > row) & (at["columns"] > column)
                with f.when(exists):
                    self._store_one(value, (row, column), start)

    def _store_one(self, value: Value, place: tuple[int, int], start: Value) -> None:
        f, at = self.f, self.at
        below: Value | int = at["line"] * place[0] if place[0] else 0
        across = at["pixel"] * place[1] + start if place[1] else start
        if self.epilogue:
            pointers = []
            for n, kind in enumerate(self.epilogue.kinds):
                pointer = self.extras[n]
                if kind == epilogues.FULL:
                    pointer = f.offset(f.offset(pointer, below), across)
                elif kind == epilogues.VECTOR:
                    pointer = f.offset(pointer, start)
                pointers.append(pointer)
            value = epilogues.apply(f, self.epilogue, value, (pointers, None))
        f.store(value, f.offset(f.offset(at["c"], below), across))


_NUMBERS = (
    "height width out_rows out_columns row_before column_before channels filters padded"
    " tile_rows tile_columns count full panels blocks groups most"
).split()


class _Kernel:
    """The kernel being written."""

    def __init__(
        self,
        module: Module,
        symbol: str,
        columns: packing.Columns,
        text: tuple[_Shape, tuple[tiles.Strips, ...]],
    ) -> None:
        (self.outputs, self.has_bias, self.epilogue), strips = text
        self.products = (self.outputs + 2) ** 2
        self.columns = columns
        self.micro = tiles.Micro(reads_ahead=True)
        self.panels = packing.panels(module, self.micro, strips)
        self.copy = bands.band_copier(module)
        self.transform = input_function(module, self.outputs)
        self.stores = {
            partial: _Output(
                module, self.outputs, self.has_bias, self.epilogue, partial=partial
            ).write()
            for partial in (False, True)
        }
        heavy = None if epilogues.is_light(self.epilogue) else self.epilogue
        self.finish = epilogues.finisher(module, heavy, "tile", F32) if heavy else None
        self.kinds = self.epilogue.kinds if self.epilogue else ()
        self.f = f = module.kernel(symbol)
        names = ["a", "b", "c"] + (["bias"] if self.has_bias else [])
        names += [f"e{n}" for n in range(len(self.kinds))]
        self.at = {name: f.argument(f.params[0], n, PTR) for n, name in enumerate(names)}
        for n, name in enumerate(_NUMBERS, len(names)):
            self.at[name] = f.argument(f.params[0], n, I64)
        self.at["pixel"] = self.at["channels"] * 4
        self.v_component = (self.at["channels"] + _PADDING) * 4
        self.m_component = (self.at["padded"] + _PADDING) * 4
        self.v_row = self.v_component * self.products + 4 * _PADDING
        self.m_row = self.m_component * self.products + 4 * _PADDING
        self.m = f.offset(f.params[3], self.v_row * self.at["most"])
        self.patch = f.offset(self.m, self.m_row * self.at["most"])

    def write(self) -> None:
        f, at = self.f, self.at
        _, begin, end, _ = f.params
        with f.loop(begin, end) as unit:
            block = unit.index // at["groups"]
            group = unit.index - block * at["groups"]
            first = block * at["count"] // at["blocks"]
            last = (block + 1) * at["count"] // at["blocks"]
            from_panel = group * at["panels"] // at["groups"]
            to_panel = (group + 1) * at["panels"] // at["groups"]
            with f.loop(first, last) as turn:
                self._transform(turn.index, turn.index - first)
            self._multiply(last - first, from_panel, to_panel)
            with f.loop(first, last) as turn:
                self._output(turn.index, turn.index - first, (from_panel, to_panel))
        f.return_()

    def _place(self, tile: Value) -> tuple[Value, Value, Value]:
        """Image, and row and column of the tile's first output pixel."""
        at = self.at
        line = tile // at["tile_columns"]
        image = line // at["tile_rows"]
        row = line - image * at["tile_rows"]
        column = tile - line * at["tile_columns"]
        return image, row * self.outputs, column * self.outputs

    def _transform(self, tile: Value, number: Value) -> None:
        f, at = self.f, self.at
        size = self.outputs + 2
        image, row, column = self._place(tile)
        top, left = row - at["row_before"], column - at["column_before"]
        source = f.offset(at["a"], image * at["height"] * at["width"] * at["pixel"])
        line = at["width"] * at["pixel"]
        inside = (top >= 0) & (left >= 0)
        inside = inside & (top + size <= at["height"]) & (left + size <= at["width"])
        with f.unless(inside):
            edge = f.const(size, I64)
            where = [top, edge, left, edge, at["height"], at["width"], at["pixel"]]
            f.call(self.copy, [self.patch, source, *where])
        direct = f.offset(source, (top * at["width"] + left) * at["pixel"])
        place = f.select(inside, direct, self.patch)
        stride = f.select(inside, line, at["pixel"] * size)
        to = f.offset(f.params[3], number * self.v_row)
        f.call(
            self.transform,
            [place, stride, at["pixel"], to, self.v_component, at["channels"]],
        )

    def _multiply(self, rows: Value, first: Value, last: Value) -> None:
        """Every component of V with its matrix, panel by panel."""
        f, at = self.f, self.at
        wide = self.columns.main * self.columns.lanes * 4
        with f.loop(0, self.products) as component:
            index = component.index
            now = {
                "rows": rows,
                "a_row": self.v_row,
                "inner": at["channels"],
                "c_row": self.m_row,
                "turns": f.const(1, I64),
                "turn": f.const(0, I64),
            }
            now["a"] = f.offset(f.params[3], index * self.v_component)
            matrix = f.offset(at["b"], index * at["padded"] * at["pixel"])
            result = f.offset(self.m, index * self.m_component)
            with f.loop(first, last) as turn:
                across = turn.index * wide
                now["b"] = f.offset(matrix, across * at["channels"])
                now["c"] = f.offset(result, across)
                self._call(now, turn.index)

    def _call(self, now: dict[str, Value], number: Value) -> None:
        f = self.f
        for width, panel in self.panels.items():
            now["b_row"] = f.const(width.vectors * self.columns.lanes * 4, I64)
            labels = [label for _, label in tiles.panel_parameters(self.micro, width)]
            is_rest = width == self.columns.rest
            condition = number >= self.at["full"] if is_rest else number < self.at["full"]
            with f.when(condition):
                f.call(panel, [now[label] for label in labels])

    def _output(self, tile: Value, number: Value, panels: tuple[Value, Value]) -> None:
        f, at = self.f, self.at
        image, row, column = self._place(tile)
        wide = self.columns.main * self.columns.lanes
        first = panels[0] * wide
        filters = f.minimum(panels[1] * wide, at["filters"]) - first
        pixel = at["filters"] * 4
        down = ((image * at["out_rows"] + row) * at["out_columns"] + column) * pixel + first * 4
        now = {
            "m": f.offset(f.offset(self.m, number * self.m_row), first * 4),
            "component": self.m_component,
            "c": f.offset(at["c"], down),
            "line": at["out_columns"] * pixel,
            "pixel": pixel,
            "filters": filters,
            "rows": f.minimum(at["out_rows"] - row, self.outputs),
            "columns": f.minimum(at["out_columns"] - column, self.outputs),
        }
        if self.has_bias:
            now["bias"] = f.offset(at["bias"], first * 4)
        for n, kind in enumerate(self.kinds):
            moves: dict[str, Value | int] = {
                epilogues.FULL: down,
                epilogues.VECTOR: first * 4,
                epilogues.SCALAR: 0,
            }
            now[f"e{n}"] = f.offset(at[f"e{n}"], moves[kind])
        whole = now["rows"].equals(self.outputs) & now["columns"].equals(self.outputs)
        for partial, store in self.stores.items():
            with f.when(whole ^ True if partial else whole):
                f.call(store.f, [now[label] for label in store.labels])
        if self.finish:
            self._finish(now)

    def _finish(self, now: dict[str, Value]) -> None:
        """A heavy epilogue over the pixels just stored, row by row of the tile."""
        f = self.f
        assert self.finish is not None
        with f.loop(0, now["rows"]) as turn:
            below = turn.index * now["line"]
            here = {"c": f.offset(now["c"], below), "c_row": now["pixel"]}
            for n, kind in enumerate(self.kinds):
                place = now[f"e{n}"]
                here[f"e{n}"] = f.offset(place, below) if kind == epilogues.FULL else place
            epilogues.call_finisher(f, self.finish, here, (now["columns"], now["filters"]))
