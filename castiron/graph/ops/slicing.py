"""Ops that cut and join: Slice, Split, Concat, Pad.

Canonical forms, without tensor inputs for sizes:
Slice: ``axes``, ``starts`` (inside the axis, counted from the front), ``steps`` (ints, not 0),
``sizes`` (extents of the output on those axes). Split: ``axis``, ``split`` (extents). Concat:
``axis``. Pad: ``pads`` for all axes (begins, then ends; negative ones crop), ``mode``, ``value``
(a number; where it is not constant, input 1 holds it).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from castiron.graph.graph import Extent, TensorType
from castiron.graph.ops import bounds, contents, rule
from castiron.graph.ops.rule import Site, Types
from castiron.tensor import dim as dims

_LARGE = (1 << 31) - 1  # bounds of a slice from here on mean "to the end"


def slice_(at: Site) -> Types:
    """Elements ``starts[i] : ends[i] : steps[i]`` of each axis, out-of-range bounds clamped."""
    kind = at.type(0)
    if kind.shape is None:
        return (TensorType(kind.dtype, None),)
    cuts = slice_cuts(at)
    if cuts is None:
        return (TensorType(kind.dtype, at.fresh_shape(len(kind.shape))),)
    shape = list(kind.shape)
    for axis, cut in cuts.items():
        _stay_inside(at, cut, kind.shape[axis])
        shape[axis] = cut[2]
    return (TensorType(kind.dtype, tuple(shape), _cut_contents(at, cuts)),)


def slice_cuts(at: Site) -> dict[int, tuple[Extent, int, Extent]] | None:
    """Axis to (first element, step, count); None where the bounds are known only to the data."""
    shape = at.shape(0)
    if shape is None:
        return None
    if at.attr("sizes") is not None:
        columns = (at.attr("axes"), at.attr("starts"), at.attr("steps"), at.attr("sizes"))
        return {axis: (start, step, n) for axis, start, step, n in zip(*columns, strict=True)}
    starts, ends = at.contents(1), at.contents(2)
    if starts is None or ends is None:
        return None
    axes = at.contents(3) if at.has(3) else tuple(range(len(starts)))
    steps = at.contents(4) if at.has(4) else (1,) * len(starts)
    if axes is None or steps is None or any(isinstance(s, dims.Dim) for s in (*axes, *steps)):
        return None
    if not len(starts) == len(ends) == len(axes) == len(steps):
        at.fail("expected starts, ends, axes and steps of one length")
    cuts: dict[int, tuple[Extent, int, Extent]] = {}
    for start, end, given, step in zip(starts, ends, axes, steps, strict=True):
        axis = at.axis(rule.whole(given), len(shape))
        if step == 0:
            at.fail("steps: expected numbers other than 0", 4)
        cuts[axis] = _cut(start, end, rule.whole(step), shape[axis])
    return cuts


def _cut(start: Extent, end: Extent, step: int, extent: Extent) -> tuple[Extent, int, Extent]:
    if step > 0:
        first = _clamp(_position(start, extent), 0, extent)
        last = _clamp(_position(end, extent), 0, extent)
        count = dims.ceildiv(bounds.sub(last, first), step)
    else:
        top = dims.add(extent, -1)
        first = _clamp(_position(start, extent), 0, top)
        last = _clamp(_position(end, extent), -1, top)
        count = dims.ceildiv(bounds.sub(first, last), -step)
    return first, step, bounds.maximum(count, 0)


def _stay_inside(at: Site, cut: tuple[Extent, int, Extent], extent: Extent) -> None:
    """Demand that the cut's elements exist, which proofs for extents from 1 do not say of 0."""
    first, step, count = cut
    if not any(isinstance(item, dims.Dim) for item in (first, count, extent)):
        return
    reason = f"too few elements to take from {dims.text(first)} on"
    last = dims.add(first, dims.mul(dims.add(count, -1), step))
    # Of no elements, ``last`` is a step in front of ``first``, which the bounds allow.
    low, high = (first, last) if step > 0 else (last, first)
    at.at_least(low, 0, reason)
    at.at_least(bounds.sub(dims.add(extent, -1), high), 0, reason)


def _position(index: Extent, extent: Extent) -> Extent:
    if not isinstance(index, dims.Dim):
        if index >= _LARGE:
            return extent
        if index <= -_LARGE:
            return -1
    return bounds.wrapped(index, extent)


def _clamp(value: Extent, low: Extent, high: Extent) -> Extent:
    return bounds.minimum(bounds.maximum(value, low), high)


def _cut_contents(
    at: Site, cuts: dict[int, tuple[Extent, int, Extent]]
) -> tuple[Extent, ...] | None:
    known, shape = at.contents(0), at.shape(0)
    if known is None or shape is None:
        return None
    grid = contents.grid(known, shape)
    if grid is None:
        return None
    for axis, (first, step, count) in cuts.items():
        if isinstance(first, dims.Dim) or isinstance(count, dims.Dim):
            return None
        grid = grid.take([first + step * i for i in range(count)], axis)
    return tuple(grid.reshape(-1).tolist())


def concat(at: Site) -> Types:
    """Inputs joined along ``axis``; other extents agree."""
    count = len(at.node.inputs)
    shapes = [shape for shape in map(at.shape, range(count)) if shape is not None]
    dtype = next((d for d in map(at.dtype, range(count)) if d is not None), None)
    if not shapes:
        return (TensorType(dtype, None),)
    rank = len(shapes[0])
    axis = at.axis(int(at.attr("axis", 0)), rank)
    if any(len(shape) != rank for shape in shapes):
        at.fail(f"expected inputs of one rank, found {[len(s) for s in shapes]}")
    if len(shapes) != count:
        return (TensorType(dtype, at.fresh_shape(rank)),)
    shape: list[Extent] = list(shapes[0])
    for other in shapes[1:]:
        for i in range(rank):
            if i == axis:
                shape[i] = dims.add(shape[i], other[i])
            else:
                shape[i] = _joined(at, shape[i], other[i])
    return (TensorType(dtype, tuple(shape), _joined_contents(at, axis)),)


def _joined(at: Site, left: Extent, right: Extent) -> Extent:
    at.check(left, right, "joined inputs must agree on all other axes")
    if not isinstance(right, dims.Dim) or len(repr(right)) < len(repr(left)):
        return right
    return left


def _joined_contents(at: Site, axis: int) -> tuple[Extent, ...] | None:
    grids = []
    for index in range(len(at.node.inputs)):
        grid = contents.grid(at.contents(index), at.shape(index) or ())
        if grid is None:
            return None
        grids.append(grid)
    joined = np.concatenate(grids, axis)
    return tuple(joined.reshape(-1).tolist()) if joined.size <= contents.LIMIT else None


def split(at: Site) -> Types:
    """Parts along ``axis``: extents given, or equal ones with a smaller last."""
    kind, count = at.type(0), len(at.node.outputs)
    if kind.shape is None:
        return (TensorType(kind.dtype, None),) * count
    axis = at.axis(int(at.attr("axis", 0)), len(kind.shape))
    sizes = at.attr("split") if at.attr("split") is not None else at.contents(1)
    if sizes is None and at.has(1):
        return tuple(
            TensorType(kind.dtype, (*kind.shape[:axis], at.fresh(axis, i), *kind.shape[axis + 1 :]))
            for i in range(count)
        )
    sizes = tuple(sizes) if sizes is not None else _equal_parts(kind.shape[axis], count)
    if len(sizes) != count:
        at.fail(f"split: expected {count} extents, found {len(sizes)}", 1)
    at.check(_total(sizes), kind.shape[axis], "the parts must add up to the axis")
    for part in sizes:
        at.at_least(part, 0, "no part may be negative")
    known = kind.contents if len(kind.shape) == 1 else None
    types, position = [], 0
    for part in sizes:
        piece = None
        if known is not None and not isinstance(part, dims.Dim):
            piece, position = known[position : position + part], position + part
        shape = (*kind.shape[:axis], part, *kind.shape[axis + 1 :])
        types.append(TensorType(kind.dtype, shape, piece))
    return tuple(types)


def _equal_parts(extent: Extent, count: int) -> tuple[Extent, ...]:
    part = dims.ceildiv(extent, count)
    return (*((part,) * (count - 1)), bounds.sub(extent, dims.mul(part, count - 1)))


def _total(sizes: Sequence[Extent]) -> Extent:
    total: Extent = 0
    for item in sizes:
        total = dims.add(total, item)
    return total


def pad(at: Site) -> Types:
    """Each extent plus its pads."""
    kind = at.type(0)
    if kind.shape is None:
        return (TensorType(kind.dtype, None),)
    pads, mode = full_pads(at, len(kind.shape)), at.attr("mode", "constant")
    rank = len(kind.shape)
    if pads is None:
        return (TensorType(kind.dtype, at.fresh_shape(rank)),)
    shape = tuple(
        dims.add(extent, dims.add(pads[axis], pads[axis + rank]))
        for axis, extent in enumerate(kind.shape)
    )
    for axis, extent in enumerate(shape):
        at.at_least(extent, 0, "no more may be cropped than there is")
        if mode != "constant" and not _only_crops(pads[axis], pads[axis + rank]):
            at.at_least(kind.shape[axis], 1, "an empty axis has nothing to pad with")
    return (TensorType(kind.dtype, shape),)


def _only_crops(begin: Extent, end: Extent) -> bool:
    return (
        not isinstance(begin, dims.Dim) and not isinstance(end, dims.Dim) and max(begin, end) <= 0
    )


def full_pads(at: Site, rank: int) -> tuple[Extent, ...] | None:
    """Pads of all axes, begins then ends; None where only the data know them."""
    if at.attr("pads") is not None:
        return tuple(at.attr("pads"))
    given = at.contents(1)
    if given is None:
        return None
    axes: Sequence[Extent] = range(rank)
    if at.has(3):
        found = at.contents(3)
        if found is None:
            return None
        axes = found
    if len(given) != 2 * len(axes):
        at.fail(f"pads: expected {2 * len(axes)} numbers, found {len(given)}", 1)
    pads: list[Extent] = [0] * (2 * rank)
    for i, item in enumerate(axes):
        axis = at.axis(rule.whole(item), rank)
        pads[axis], pads[axis + rank] = given[i], given[i + len(axes)]
    return tuple(pads)
