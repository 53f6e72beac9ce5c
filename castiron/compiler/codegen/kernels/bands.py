"""Copies a band of input rows to scratch with the zeros around it.

Windows that read past the border would need a test for every tap; a band is copied once for all
windows, panels and taps that read it, which is little beside the multiplications.
"""

from __future__ import annotations

from castiron.compiler.codegen import loop as language
from castiron.compiler.codegen.loop import F32, I64, PTR, Function, Module


def filler(module: Module) -> Function:
    """``fill_zero(to, size_bytes)`` for whole floats."""
    f = module.function("fill_zero", [(PTR, "to"), (I64, "size_bytes")])
    to, size = f.params
    lanes = module.target.vector_lanes_f32
    zero = f.const(0, language.vector(lanes, F32))
    whole = size - size % (4 * lanes)
    with f.loop(0, whole, 4 * lanes) as turn:
        f.store(zero, to, turn.index)
    with f.when(whole < size):
        mask = f.lane_mask((size - whole) >> 2, lanes)
        f.masked_store(zero, f.offset(to, whole), mask)
    f.return_()
    return f


def copier(module: Module) -> Function:
    """``copy_floats(to, source, size_bytes)`` for whole floats."""
    f = module.function("copy_floats", [(PTR, "to"), (PTR, "source"), (I64, "size_bytes")])
    to, source, size = f.params
    lanes = module.target.vector_lanes_f32
    type_ = language.vector(lanes, F32)
    wide = size - size % (16 * lanes)
    with f.loop(0, wide, 16 * lanes) as turn:
        for part in range(4):
            place = turn.index + part * 4 * lanes
            f.store(f.load(type_, source, place), to, place)
    whole = size - size % (4 * lanes)
    with f.loop(wide, whole, 4 * lanes) as turn:
        f.store(f.load(type_, source, turn.index), to, turn.index)
    with f.when(whole < size):
        mask = f.lane_mask((size - whole) >> 2, lanes)
        value = f.masked_load(type_, f.offset(source, whole), mask)
        f.masked_store(value, f.offset(to, whole), mask)
    f.return_()
    return f


def band_copier(module: Module, fill: Function | None = None) -> Function:
    """Copies ``count`` rows from row ``first`` on, ``wide`` pixels each, from column ``left`` on.

    Parameters: to, image, first, count, left, wide, height, width, pixel_bytes. What lies outside
    the image becomes zero; ``first`` and ``left`` may be negative. ``fill`` is a filler that the
    module already has.
    """
    fill = fill or filler(module)
    copy = copier(module)
    names = "first count left wide height width pixel_bytes".split()
    f = module.function(
        "copy_band", [(PTR, "to"), (PTR, "image"), *((I64, name) for name in names)]
    )
    to, image, first, count, left, wide, height, width, pixel = f.params
    row_bytes = wide * pixel
    zeros_left = f.minimum(f.maximum(0 - left, 0), wide)
    start = f.maximum(left, 0)
    present = f.maximum(f.minimum(width - start, wide - zeros_left), 0)
    zeros_right = wide - zeros_left - present
    with f.loop(0, count) as turn:
        row = first + turn.index
        place = f.offset(to, turn.index * row_bytes)
        inside = (row >= 0) & (row < height)
        with f.when(inside):
            source = f.offset(image, (row * width + start) * pixel)
            f.call(fill, [place, zeros_left * pixel])
            middle = f.offset(place, zeros_left * pixel)
            f.call(copy, [middle, source, present * pixel])
            f.call(fill, [f.offset(middle, present * pixel), zeros_right * pixel])
        with f.unless(inside):
            f.call(fill, [place, row_bytes])
    f.return_()
    return f
