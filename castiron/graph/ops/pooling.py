"""Pools over windows: MaxPool, AveragePool, LpPool, their global forms, MaxUnpool, RoiAlign.

Canonical attrs, complete after simplify: ``kernel_shape``, ``strides``, ``dilations``, ``pads``
(begins, then ends; dims where the input's extent decides), ``ceil_mode``,
``count_include_pad``. A ceil-mode window that starts in the end padding does not exist; one that
reaches past it averages over the cells inside input plus pads. A window over padding alone gives
the lowest value (MaxPool) or 0 (AveragePool). Global pools become reductions in simplify.
"""

from __future__ import annotations

from castiron.graph.graph import Shape, TensorType
from castiron.graph.ops import window
from castiron.graph.ops.rule import Site, Types
from castiron.tensor import dim as dims
from castiron.tensor import dtype as dtypes


def pool(at: Site) -> Types:
    """(n, c, spatial'...), and for MaxPool int64 indices of the same shape."""
    shape = _pool_shape(at)
    types = (TensorType(at.dtype(0), shape), TensorType(dtypes.INT64, shape))
    return types[: len(at.node.outputs)]


def _pool_shape(at: Site) -> Shape | None:
    x = at.rank_at_least(0, 3)
    if x is None:
        return None
    kernel = at.attr("kernel_shape")
    if kernel is None:
        at.fail("kernel_shape: expected one extent for each spatial axis, found none")
    windows = window.windows_of(at, x[2:], tuple(kernel))
    pairs = zip(windows, x[2:], strict=True)
    return (x[0], x[1], *(window.extent_of(at, item, extent) for item, extent in pairs))


def global_pool(at: Site) -> Types:
    """(n, c, 1...)."""
    x = at.rank_at_least(0, 2)
    shape = None if x is None else (x[0], x[1], *(1 for _ in x[2:]))
    return (TensorType(at.dtype(0), shape),)


def max_unpool(at: Site) -> Types:
    """The shape given, or the smallest that the windows came from."""
    x = at.rank_at_least(0, 3)
    asked = at.contents(2)
    if asked is not None:
        return (TensorType(at.dtype(0), asked),)
    if x is None:
        return (TensorType(at.dtype(0), None),)
    if at.has(2):
        return (TensorType(at.dtype(0), at.fresh_shape(len(x))),)
    rank = len(x) - 2
    kernel, strides = at.attr("kernel_shape"), at.attr("strides") or (1,) * rank
    pads = at.attr("pads") or (0,) * (2 * rank)
    extents = [
        dims.add(dims.mul(dims.add(x[i + 2], -1), strides[i]), kernel[i] - pads[i] - pads[i + rank])
        for i in range(rank)
    ]
    return (TensorType(at.dtype(0), (x[0], x[1], *extents)),)


def roi_align(at: Site) -> Types:
    """(regions, channels, output_height, output_width)."""
    x, rois = at.rank_at_least(0, 4), at.rank_at_least(1, 2)
    if x is None or rois is None:
        return (TensorType(at.dtype(0), None),)
    size = (int(at.attr("output_height", 1)), int(at.attr("output_width", 1)))
    return (TensorType(at.dtype(0), (rois[0], x[1], *size)),)


def max_roi_pool(at: Site) -> Types:
    """(regions, channels, pooled_shape...)."""
    x, rois = at.rank_at_least(0, 4), at.rank_at_least(1, 2)
    if x is None or rois is None:
        return (TensorType(at.dtype(0), None),)
    return (TensorType(at.dtype(0), (rois[0], x[1], *at.attr("pooled_shape", ()))),)
