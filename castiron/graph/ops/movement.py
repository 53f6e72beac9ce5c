"""Ops that move data unchanged: Reshape and its kin, Transpose, Expand, Tile, Trilu, ...

Canonical forms, without tensor inputs for sizes:
Reshape (also for Squeeze, Unsqueeze, Flatten): ``shape``, every extent as a dim, no 0 or -1: a
view. Expand: ``shape``, the output's. Tile: ``repeats``, one for each axis. Transpose: ``perm``.
Trilu: ``k``, ``upper``. Ops that cut and join are in ``slicing.py``.
"""

from __future__ import annotations

from collections.abc import Sequence

from castiron.graph.graph import Extent, Shape, TensorType
from castiron.graph.ops import contents, rule
from castiron.graph.ops.rule import Site, Types
from castiron.graph.ops.shape import unknown_of_length
from castiron.tensor import dim as dims


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
    axes = rule.axes_of(at, len(shape))
    if axes is None:
        if rule.has_axes(at) or any(isinstance(extent, dims.Dim) for extent in shape):
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
    axes = rule.axes_of(at, rank)
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
    if isinstance(asked, dims.Dim):
        return rule.wider_extent(at, extent, asked)
    other = dims.mul(dims.add(extent, -1), dims.add(extent, -asked))
    at.check(other, 0, "an axis expands only from 1")
    return asked


def tile(at: Site) -> Types:
    """Each extent times its repeat."""
    kind = at.type(0)
    repeats = at.attr("repeats") if at.attr("repeats") is not None else at.contents(1)
    if kind.shape is None or repeats is None:
        shape = None if kind.shape is None else at.fresh_shape(len(kind.shape))
        return (TensorType(kind.dtype, shape),)
    if len(repeats) != len(kind.shape):
        at.fail(f"repeats: expected {len(kind.shape)} numbers, found {len(repeats)}", 1)
    for count in repeats:
        at.at_least(count, 0, "no repeat may be negative")
    shape = tuple(dims.mul(a, b) for a, b in zip(kind.shape, repeats, strict=True))
    known = None
    if kind.contents is not None and all(not isinstance(item, dims.Dim) for item in repeats):
        known = kind.contents * rule.whole(repeats[0]) if len(repeats) == 1 else kind.contents
        known = None if len(known) > 64 else known
    return (TensorType(kind.dtype, shape, known),)


def trilu(at: Site) -> Types:
    """The type of the data."""
    return (TensorType(at.dtype(0), at.rank_at_least(0, 2)),)


def depth_to_space(at: Site) -> Types:
    """(n, c / b^2, h * b, w * b) for blocksize b."""
    x, block = at.rank_at_least(0, 4), int(at.attr("blocksize", 1))
    if x is None:
        return (TensorType(at.dtype(0), None),)
    channels = dims.floordiv(x[1], block * block)
    at.check(dims.mul(channels, block * block), x[1], "channels must be whole blocks")
    shape = (x[0], channels, dims.mul(x[2], block), dims.mul(x[3], block))
    return (TensorType(at.dtype(0), shape),)


def space_to_depth(at: Site) -> Types:
    """(n, c * b^2, h / b, w / b) for blocksize b."""
    x, block = at.rank_at_least(0, 4), int(at.attr("blocksize", 1))
    if x is None:
        return (TensorType(at.dtype(0), None),)
    channels = dims.mul(x[1], block * block)
    rows, columns = dims.floordiv(x[2], block), dims.floordiv(x[3], block)
    for count, extent in ((rows, x[2]), (columns, x[3])):
        at.check(dims.mul(count, block), extent, "rows and columns must be whole blocks")
    return (TensorType(at.dtype(0), (x[0], channels, rows, columns)),)
