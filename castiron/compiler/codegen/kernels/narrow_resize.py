"""Linear and cubic Resize of images with one to four channels.

Such a pixel fills no register, so each output row is made in two passes: the input rows it needs
are blended into one line of scratch, vectors running over whole rows, and then each output pixel
takes its columns from that line. resize.py decides when; the tables are resample_taps.py's.
"""

from __future__ import annotations

from castiron.compiler.codegen import loop
from castiron.compiler.codegen.loop import F32, I64, PTR, Function, Module, Value
from castiron.compiler.target import Target
from castiron.graph.graph import Extent
from castiron.tensor import dim as dims

_MOST_CHANNELS = 4


def channels_of(column_taps: int, channels: Extent) -> int:
    """The number of channels where this kernel pays, else 0."""
    if column_taps == 1 or isinstance(channels, dims.Dim) or channels > _MOST_CHANNELS:
        return 0
    return channels


def text(symbol: str, shape: tuple[int, int, int], target: Target) -> str:
    """The kernel; ``shape`` is taps of rows, taps of columns, channels."""
    row_taps, column_taps, channels = shape
    module = Module(target)
    f = module.kernel(symbol)
    args, begin, end, scratch = f.params
    to, source, row_table, column_table = (f.argument(args, n, PTR) for n in range(4))
    num_rows, num_columns, image_bytes = (f.argument(args, n) for n in (5, 6, 7))
    line = f.argument(args, 9) * channels
    row_weights = f.offset(row_table, num_rows * (8 * row_taps))
    with f.loop(begin, end) as unit:
        image = unit.index // f.maximum(num_rows, 1)
        row = unit.index - image * num_rows
        base = f.offset(source, image * image_bytes)
        offsets = f.offset(row_table, row * (8 * row_taps))
        weights = f.offset(row_weights, row * (4 * row_taps))
        rows = [f.offset(base, f.load(I64, offsets, 8 * n)) for n in range(row_taps)]
        factors = [f.load(F32, weights, 4 * n) for n in range(row_taps)]
        _blend_rows(f, scratch, (rows, factors), line)
        place = f.offset(to, unit.index * num_columns * (4 * channels))
        _take_columns(f, (place, scratch, column_table), num_columns, (column_taps, channels))
    f.return_()
    return module.text()


def _blend_rows(
    f: Function, scratch: Value, parts: tuple[list[Value], list[Value]], count: Value
) -> None:
    """The weighted sum of rows of ``count`` floats, into scratch."""
    lanes = f.target.vector_lanes_f32
    whole = count - count % lanes
    for start, stop, width in ((f.const(0, I64), whole, lanes), (whole, count, 1)):
        factors = [f.splat(factor, width) for factor in parts[1]]
        type_ = loop.vector(width, F32)
        with f.loop(start, stop, width) as turn:
            total: Value | None = None
            for row, factor in zip(parts[0], factors, strict=True):
                value = f.load(type_, f.offset(row, turn.index * 4))
                total = value * factor if total is None else f.fma(value, factor, total)
            assert total is not None
            f.store(total, scratch, turn.index * 4)


def _take_columns(
    f: Function, places: tuple[Value, Value, Value], count: Value, shape: tuple[int, int]
) -> None:
    """Every output pixel of a row from the blended line."""
    to, line, table = places
    taps, channels = shape
    weights = f.offset(table, count * (8 * taps))
    with f.loop(0, count) as turn:
        offsets = f.offset(table, turn.index * (8 * taps))
        factors = f.offset(weights, turn.index * (4 * taps))
        starts = [f.offset(line, f.load(I64, offsets, 8 * n)) for n in range(taps)]
        scales = [f.load(F32, factors, 4 * n) for n in range(taps)]
        for channel in range(channels):
            total: Value | None = None
            for start, scale in zip(starts, scales, strict=True):
                value = f.load(F32, start, 4 * channel)
                total = value * scale if total is None else f.fma(value, scale, total)
            assert total is not None
            f.store(total, to, turn.index * (4 * channels) + 4 * channel)
