"""Ops that move data unchanged: Reshape and its kin, Transpose, Slice, Concat, Pad, ...

Canonical forms, without tensor inputs for sizes:
Reshape (also for Squeeze, Unsqueeze, Flatten): ``shape``, every extent as a dim, no 0 or -1: a view.
Expand: ``shape``, the output's. Tile: ``repeats``, one for each axis. Transpose: ``perm``.
Slice: ``axes``, ``starts`` (inside the axis, counted from the front), ``steps`` (ints, not 0),
``sizes`` (extents of the output on those axes). Split: ``axis``, ``split`` (extents).
Pad: ``pads`` for all axes (begins, then ends; negative ones crop), ``mode``, ``value`` (a
float; input 1 holds it where it is not constant). Concat: ``axis``. Trilu: ``k``, ``upper``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from castiron.graph.graph import Extent, Shape, TensorType
from castiron.graph.ops import bounds, contents, site
from castiron.graph.ops.shape import unknown_of_length
from castiron.graph.ops.site import Site, Types
from castiron.tensor import dim as dims

_LARGE = 1 << 31  # bounds of a slice beyond this mean "to the end"


def reshape(at: Site) -> Types:
    """The shape asked for; 0 copies an extent (unless ``allowzero``), -1 takes what remains."""
    kind = at.type(0)
    canonical = at.attr("shape")
    if canonical is not None:
        return (TensorType(kind.dtype, tuple(canonical), kind.contents),)
    asked = at.contents(1)
    if asked is None:
        return (TensorType(kind.dtype, unknown_of_length(at, 1)),)
    shape = _resolved(at, asked, kind.shape)
    return (TensorType(kind.dtype, shape, kind.contents),)


def _resolved(at: Site, asked: Sequence[Extent], source: Shape | None) -> Shape:
    shape: list[Extent] = []
    for axis, extent in enumerate(asked):
        if extent == 0 and not at.attr("allowzero", 0):
            if source is not None and axis >= len(source):
                at.fail(f"shape: axis {axis} copies an extent that the input does not have", 1)
            shape.append(source[axis] if source is not None else at.fresh(axis))
        else:
            shape.append(extent)
    if -1 in shape:
        if shape.count(-1) > 1:
            at.fail("shape: expected at most one -1", 1)
        hole = shape.index(-1)
        shape[hole] = _remaining(at, shape, source, hole)
    elif source is not None:
        at.check(dims.product(shape), dims.product(source), "the number of elements must stay")
    return tuple(shape)


def _remaining(at: Site, shape: list[Extent], source: Shape | None, hole: int) -> Extent:
    if source is None:
        return at.fresh(hole)
    before, rest = list(source), []
    for axis, extent in enumerate(shape):
        if axis == hole:
            continue
        if extent in before:
            before.remove(extent)
        else:
            rest.append(extent)
    total, known = dims.product(before), dims.product(rest)
    if known == 0:
        at.fail(f"shape: -1 beside an extent of 0 has no answer, found {shape}", 1)
    quotient = dims.floordiv(total, known)
    at.check(dims.mul(quotient, known), total, "the number of elements must stay")
    return quotient


def squeeze(at: Site) -> Types:
    """Without the axes named, or without all of extent 1."""
    kind = at.type(0)
    shape = kind.shape
    if shape is None:
        return (TensorType(kind.dtype, None),)
    axes = site.axes_of(at, len(shape))
    if axes is None:
        if site.has_axes(at) or any(isinstance(extent, dims.Dim) for extent in shape):
            return (TensorType(kind.dtype, None),)
        axes = tuple(axis for axis, extent in enumerate(shape) if extent == 1)
    for axis in axes:
        at.check(shape[axis], 1, f"axis {axis} is squeezed")
    kept = tuple(extent for axis, extent in enumerate(shape) if axis not in axes)
    _keep_ratios(at)
    return (TensorType(kind.dtype, kept, kind.contents),)


def unsqueeze(at: Site) -> Types:
    """With extent 1 at the axes named, counted in the output."""
    kind = at.type(0)
    count = _number_of_axes(at)
    if kind.shape is None or count is None:
        return (TensorType(kind.dtype, None),)
    rank = len(kind.shape) + count
    axes = site.axes_of(at, rank)
    if axes is None:
        return (TensorType(kind.dtype, at.fresh_shape(rank)),)
    if len(set(axes)) != len(axes):
        at.fail(f"axes: expected different axes, found {axes}")
    rest = iter(kind.shape)
    shape = tuple(1 if axis in axes else next(rest) for axis in range(rank))
    _keep_ratios(at)
    return (TensorType(kind.dtype, shape, kind.contents),)


def _number_of_axes(at: Site) -> int | None:
    given = at.attr("axes") if at.attr("axes") is not None else at.contents(1)
    if given is not None:
        return len(given)
    shape = at.shape(1)
    if shape is None or len(shape) != 1 or isinstance(shape[0], dims.Dim):
        return None
    return shape[0]


def _keep_ratios(at: Site) -> None:
    if at.name(0) in at.ratios:
        at.ratios[at.node.outputs[0]] = at.ratios[at.name(0)]


def flatten(at: Site) -> Types:
    """(product of the axes before ``axis``, product of the rest)."""
    kind = at.type(0)
    if kind.shape is None:
        return (TensorType(kind.dtype, at.fresh_shape(2)),)
    axis, rank = int(at.attr("axis", 1)), len(kind.shape)
    if not -rank <= axis <= rank:
        at.fail(f"axis: expected -{rank} <= axis <= {rank}, found {axis}")
    axis += rank if axis < 0 else 0
    shape = (dims.product(kind.shape[:axis]), dims.product(kind.shape[axis:]))
    return (TensorType(kind.dtype, shape),)


def transpose(at: Site) -> Types:
    """Axes in the order ``perm``, reversed when absent."""
    kind = at.type(0)
    if kind.shape is None:
        return (TensorType(kind.dtype, None),)
    rank = len(kind.shape)
    perm = tuple(at.attr("perm") or range(rank - 1, -1, -1))
    perm = tuple(axis + rank if axis < 0 else axis for axis in perm)
    if sorted(perm) != list(range(rank)):
        at.fail(f"perm: expected an order of {rank} axes, found {perm}")
    grid = contents.grid(kind.contents, kind.shape)
    known = None if grid is None else tuple(grid.transpose(perm).reshape(-1).tolist())
    return (TensorType(kind.dtype, tuple(kind.shape[axis] for axis in perm), known),)


def expand(at: Site) -> Types:
    """The broadcast of the input's shape and the one asked for."""
    kind = at.type(0)
    asked = at.attr("shape") if at.attr("shape") is not None else at.contents(1)
    if asked is None or kind.shape is None:
        rank = unknown_of_length(at, 1)
        longer = rank is not None and kind.shape is not None and len(kind.shape) <= len(rank)
        return (TensorType(kind.dtype, rank if longer else None),)
    rank_out = max(len(asked), len(kind.shape))
    left = (1,) * (rank_out - len(kind.shape)) + tuple(kind.shape)
    right = (1,) * (rank_out - len(asked)) + tuple(asked)
    shape = tuple(_expanded(at, a, b) for a, b in zip(left, right, strict=True))
    known = kind.contents
    if known is not None and len(known) == 1 and len(shape) <= 1:
        count = shape[0] if shape else 1
        known = None if isinstance(count, dims.Dim) or count > 64 else known * count
    elif shape != kind.shape:
        known = None
    return (TensorType(kind.dtype, shape, known),)


def _expanded(at: Site, extent: Extent, asked: Extent) -> Extent:
    if asked in (extent, 1):
        return extent
    if extent == 1:
        return asked
    if not isinstance(extent, dims.Dim) and not isinstance(asked, dims.Dim):
        at.check(extent, asked, "an axis expands only from 1")
    if not isinstance(extent, dims.Dim):
        return extent
    return asked if not isinstance(asked, dims.Dim) else bounds.maximum(extent, asked)


def tile(at: Site) -> Types:
    """Each extent times its repeat."""
    kind = at.type(0)
    repeats = at.attr("repeats") if at.attr("repeats") is not None else at.contents(1)
    if kind.shape is None or repeats is None:
        shape = None if kind.shape is None else at.fresh_shape(len(kind.shape))
        return (TensorType(kind.dtype, shape),)
    if len(repeats) != len(kind.shape):
        at.fail(f"repeats: expected {len(kind.shape)} numbers, found {len(repeats)}", 1)
    shape = tuple(dims.mul(a, b) for a, b in zip(kind.shape, repeats, strict=True))
    known = None
    if kind.contents is not None and all(not isinstance(item, dims.Dim) for item in repeats):
        known = kind.contents * site.whole(repeats[0]) if len(repeats) == 1 else kind.contents
        known = None if len(known) > 64 else known
    return (TensorType(kind.dtype, shape, known),)


def slice_(at: Site) -> Types:
    """Elements ``starts[i] : ends[i] : steps[i]`` of each axis, out-of-range bounds clamped."""
    kind = at.type(0)
    if kind.shape is None:
        return (TensorType(kind.dtype, None),)
    cuts = slice_cuts(at)
    if cuts is None:
        return (TensorType(kind.dtype, at.fresh_shape(len(kind.shape))),)
    shape = list(kind.shape)
    for axis, (_, _, count) in cuts.items():
        shape[axis] = count
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
        axis = at.axis(site.whole(given), len(shape))
        if step == 0:
            at.fail("steps: expected numbers other than 0", 4)
        cuts[axis] = _cut(start, end, site.whole(step), shape[axis])
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


def _position(index: Extent, extent: Extent) -> Extent:
    if not isinstance(index, dims.Dim):
        if index >= _LARGE:
            return extent
        if index <= -_LARGE:
            return -1
    return bounds.wrapped(index, extent)


def _clamp(value: Extent, low: Extent, high: Extent) -> Extent:
    return bounds.maximum(bounds.minimum(value, high), low)


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
    pads = full_pads(at, len(kind.shape))
    rank = len(kind.shape)
    if pads is None:
        return (TensorType(kind.dtype, at.fresh_shape(rank)),)
    shape = tuple(
        dims.add(extent, dims.add(pads[axis], pads[axis + rank]))
        for axis, extent in enumerate(kind.shape)
    )
    return (TensorType(kind.dtype, shape),)


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
        axis = at.axis(site.whole(item), rank)
        pads[axis], pads[axis + rank] = given[i], given[i + len(axes)]
    return tuple(pads)


def trilu(at: Site) -> Types:
    """The type of the data."""
    return (TensorType(at.dtype(0), at.rank_at_least(0, 2)),)


def depth_to_space(at: Site) -> Types:
    """(n, c / b^2, h * b, w * b) for blocksize b."""
    x, block = at.rank_at_least(0, 4), int(at.attr("blocksize", 1))
    if x is None:
        return (TensorType(at.dtype(0), None),)
    channels = dims.floordiv(x[1], block * block)
    shape = (x[0], channels, dims.mul(x[2], block), dims.mul(x[3], block))
    return (TensorType(at.dtype(0), shape),)


def space_to_depth(at: Site) -> Types:
    """(n, c * b^2, h / b, w / b) for blocksize b."""
    x, block = at.rank_at_least(0, 4), int(at.attr("blocksize", 1))
    if x is None:
        return (TensorType(at.dtype(0), None),)
    channels = dims.mul(x[1], block * block)
    shape = (x[0], channels, dims.floordiv(x[2], block), dims.floordiv(x[3], block))
    return (TensorType(at.dtype(0), shape),)
