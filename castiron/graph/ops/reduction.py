"""Reductions over axes: Reduce*, ArgMax, ArgMin, CumSum.

Canonical Reduce*: one input, attrs ``axes`` (non-negative, sorted) and ``keepdims``. Canonical
CumSum: one input, attrs ``axis``, ``exclusive``, ``reverse``. ArgMax and ArgMin keep ``axis``,
``keepdims``, ``select_last_index``. The reduction of nothing is 0 for sums, 1 for products, the
lowest or highest value for max and min, and NaN for means.
"""

from __future__ import annotations

from castiron.graph.graph import Extent, Shape, TensorType
from castiron.graph.ops import contents, rule
from castiron.graph.ops.rule import Site, Types
from castiron.tensor import dtype as dtypes

REDUCTIONS = (
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean",
    "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare",
)  # fmt: skip
_FOLD = {"ReduceSum": "Add", "ReduceProd": "Mul", "ReduceMax": "Max", "ReduceMin": "Min"}


def reduced_axes(at: Site, rank: int) -> tuple[int, ...] | None:
    """The axes reduced, sorted; all where none are given; None when only the data say."""
    axes = rule.axes_of(at, rank)
    if axes is None and rule.has_axes(at):
        return None
    if not axes:
        keep_all = at.attr("noop_with_empty_axes", 0)
        return () if keep_all else tuple(range(rank))
    return tuple(sorted(set(axes)))


def reduce(at: Site) -> Types:
    """The shape without the axes, or with extent 1 there when ``keepdims``."""
    shape = at.shape(0)
    if shape is None:
        return (TensorType(at.dtype(0), None),)
    axes = reduced_axes(at, len(shape))
    keep = bool(at.attr("keepdims", 1))
    if axes is None:
        return (TensorType(at.dtype(0), at.fresh_shape(len(shape)) if keep else None),)
    return (TensorType(at.dtype(0), _without(shape, axes, keep), _folded(at, axes)),)


def _without(shape: Shape, axes: tuple[int, ...], keep: bool) -> Shape:
    if keep:
        return tuple(1 if axis in axes else extent for axis, extent in enumerate(shape))
    return tuple(extent for axis, extent in enumerate(shape) if axis not in axes)


def _folded(at: Site, axes: tuple[int, ...]) -> tuple[Extent, ...] | None:
    known, op = at.contents(0), _FOLD.get(at.node.op)
    shape = at.shape(0)
    if known is None or op is None or shape is None or len(shape) > 1:
        return None
    if not axes:
        return known
    if not known:
        return (0,) if op == "Add" else ((1,) if op == "Mul" else None)
    total: tuple[Extent, ...] = known[:1]
    for item in known[1:]:
        step = contents.binary(op, total, (item,), ())
        if step is None:
            return None
        total = step
    return total


def arg_reduce(at: Site) -> Types:
    """int64 positions along ``axis``."""
    shape = at.rank_at_least(0, 1)
    if shape is None:
        return (TensorType(dtypes.INT64, None),)
    axis = at.axis(int(at.attr("axis", 0)), len(shape))
    at.at_least(shape[axis], 1, "no position can be named on an empty axis")
    return (TensorType(dtypes.INT64, _without(shape, (axis,), bool(at.attr("keepdims", 1)))),)


def cumulate(at: Site) -> Types:
    """CumSum and CumProd: the type of the data."""
    return (TensorType(at.dtype(0), at.shape(0)),)
