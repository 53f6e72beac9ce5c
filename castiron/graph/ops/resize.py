"""Resampling: Resize, GridSample, AffineGrid.

Canonical Resize: one input; attrs ``sizes`` (the output's extents on all axes, dims), ``scales``
(floats for all axes where the model gave scales; absent where it gave sizes, then the scale of an
axis is sizes / input extent), ``roi`` (floats for all axes, starts then ends, where used), and
ONNX's ``mode``, ``coordinate_transformation_mode``, ``nearest_mode``, ``cubic_coeff_a``,
``exclude_outside``, ``extrapolation_value``, ``antialias``.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from castiron.graph.graph import Extent, TensorType
from castiron.graph.ops import bounds
from castiron.graph.ops.rule import Site, Types, whole
from castiron.tensor import dim as dims

_LARGEST_DENOMINATOR = 1 << 12


def resize(at: Site) -> Types:
    """The extents that scales or sizes give."""
    kind = at.type(0)
    if kind.shape is None:
        return (TensorType(kind.dtype, None),)
    sizes = resized(at)
    if sizes is None:
        return (TensorType(kind.dtype, at.fresh_shape(len(kind.shape))),)
    if scales_of(at) is None:  # scaling nothing gives nothing
        for extent, size in zip(kind.shape, sizes, strict=True):
            some = bounds.sub(extent, dims.minimum(size, 1))
            at.at_least(some, 0, "an empty axis cannot be resized to more")
    return (TensorType(kind.dtype, sizes),)


def resized(at: Site) -> tuple[Extent, ...] | None:
    """The output's extents, or None where only the data know them."""
    shape = at.shape(0)
    if shape is None:
        return None
    if at.attr("sizes") is not None:
        return tuple(at.attr("sizes"))
    scales = scales_of(at)
    if scales is not None:
        if at.attr("coordinate_transformation_mode") == "tf_crop_and_resize":
            return None if at.attr("roi") is None and at.array(1) is None else _cropped(at, scales)
        pairs = zip(shape, scales, strict=True)
        return _all(tuple(_scaled(extent, scale) for extent, scale in pairs))
    return _sized(at)


def _all(found: tuple[Extent | None, ...]) -> tuple[Extent, ...] | None:
    known = tuple(item for item in found if item is not None)
    return known if len(known) == len(found) else None


def scales_of(at: Site) -> tuple[float, ...] | None:
    """Scales of all axes where the model gives constant ones."""
    if at.attr("scales") is not None:
        return tuple(at.attr("scales"))
    array, shape = at.array(2), at.shape(0)
    if array is None or array.size == 0 or shape is None:
        return None
    result = [1.0] * len(shape)
    axes = _axes(at)
    if len(axes) != array.size:
        at.fail(f"scales: expected {len(axes)} numbers, found {array.size}", 2)
    for axis, scale in zip(axes, np.asarray(array).reshape(-1), strict=True):
        result[axis] = float(scale)
    return tuple(result)


def _axes(at: Site) -> tuple[int, ...]:
    rank = len(at.shape(0) or ())
    given = at.attr("axes")
    return tuple(range(rank)) if given is None else tuple(at.axis(int(a), rank) for a in given)


def _scaled(extent: Extent, scale: float) -> Extent | None:
    """floor(extent * scale); for symbols where the scale is a ratio of small integers."""
    if not isinstance(extent, dims.Dim):
        return int(np.floor(np.float32(extent) * np.float32(scale)))
    ratio = Fraction(scale)
    if ratio.denominator > _LARGEST_DENOMINATOR:
        return None
    return dims.floordiv(dims.mul(extent, ratio.numerator), ratio.denominator)


def _cropped(at: Site, scales: tuple[float, ...]) -> tuple[Extent, ...] | None:
    roi, shape = full_roi(at), at.shape(0)
    if roi is None or shape is None or any(isinstance(extent, dims.Dim) for extent in shape):
        return None
    rank = len(shape)
    return tuple(
        int(np.floor(whole(extent) * (roi[axis + rank] - roi[axis]) * scales[axis]))
        for axis, extent in enumerate(shape)
    )


def full_roi(at: Site) -> tuple[float, ...] | None:
    """The region of interest of all axes (starts, then ends), where it is constant."""
    if at.attr("roi") is not None:
        return tuple(at.attr("roi"))
    array, rank = at.array(1), len(at.shape(0) or ())
    axes = _axes(at)
    if array is None or array.size != 2 * len(axes):
        return None
    result = [0.0] * rank + [1.0] * rank
    for i, axis in enumerate(axes):
        result[axis] = float(array.reshape(-1)[i])
        result[axis + rank] = float(array.reshape(-1)[i + len(axes)])
    return tuple(result)


def _sized(at: Site) -> tuple[Extent, ...] | None:
    sizes, shape = at.contents(3), at.shape(0)
    if sizes is None or shape is None:
        return None
    axes = _axes(at)
    if len(axes) != len(sizes):
        at.fail(f"sizes: expected {len(axes)} extents, found {len(sizes)}", 3)
    result = list(shape)
    scale = policy_scale(at)
    for axis, size in zip(axes, sizes, strict=True):
        extent = result[axis]
        if scale is None:
            result[axis] = size
        elif isinstance(extent, dims.Dim):
            return None
        else:
            result[axis] = int(np.floor(scale * extent + 0.5))
    policy = at.attr("keep_aspect_ratio_policy", "stretch")
    return None if policy != "stretch" and scale is None else tuple(result)


def policy_scale(at: Site) -> float | None:
    """The one scale of a keep-aspect-ratio policy, where all extents are ints."""
    policy = at.attr("keep_aspect_ratio_policy", "stretch")
    sizes, shape = at.contents(3), at.shape(0)
    if policy == "stretch" or sizes is None or shape is None:
        return None
    axes = _axes(at)
    if any(isinstance(item, dims.Dim) for item in (*sizes, *(shape[axis] for axis in axes))):
        return None
    ratios = [whole(n) / whole(shape[axis]) for n, axis in zip(sizes, axes, strict=True)]
    return min(ratios) if policy == "not_larger" else max(ratios)


def grid_sample(at: Site) -> Types:
    """(n, c, the grid's spatial extents)."""
    x, grid = at.rank_at_least(0, 3), at.rank_at_least(1, 3)
    if x is None or grid is None:
        return (TensorType(at.dtype(0), None),)
    return (TensorType(at.dtype(0), (x[0], x[1], *grid[1:-1])),)


def affine_grid(at: Site) -> Types:
    """(n, spatial extents of ``size``, number of them)."""
    size = at.contents(1)
    if size is None:
        return (TensorType(at.dtype(0), None),)
    return (TensorType(at.dtype(0), (size[0], *size[2:], len(size) - 2)),)
