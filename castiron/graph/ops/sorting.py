"""Ops that order data: TopK, Unique, NonMaxSuppression.

Canonical TopK: one input; attrs ``k`` (a dim), ``axis``, ``largest``, ``sorted``. Equal elements
come in the order of their positions.
"""

from __future__ import annotations

from castiron.graph.graph import Extent, TensorType
from castiron.graph.ops import bounds
from castiron.graph.ops.rule import Site, Types
from castiron.tensor import dtype as dtypes


def top_k(at: Site) -> Types:
    """The k largest (or smallest) along ``axis``, and their int64 positions."""
    shape = at.rank_at_least(0, 1)
    if shape is None:
        return (TensorType(at.dtype(0), None), TensorType(dtypes.INT64, None))
    axis = at.axis(int(at.attr("axis", -1)), len(shape))
    k: Extent | None = at.attr("k")
    if k is None:
        known = at.contents(1)
        k = known[0] if known else at.fresh(axis)
    at.at_least(bounds.sub(shape[axis], k), 0, "k must not be larger than the axis")
    found = (*shape[:axis], k, *shape[axis + 1 :])
    kinds = (TensorType(at.dtype(0), found), TensorType(dtypes.INT64, found))
    return kinds[: len(at.node.outputs)]


def unique(at: Site) -> Types:
    """The distinct elements (or slices along ``axis``), first and inverse positions, counts."""
    shape, axis = at.shape(0), at.attr("axis")
    count = at.fresh(0)
    values = TensorType(at.dtype(0), (count,))
    if axis is not None:
        values = TensorType(at.dtype(0), None)
        if shape is not None:
            place = at.axis(int(axis), len(shape))
            values = TensorType(at.dtype(0), (*shape[:place], count, *shape[place + 1 :]))
    inverse = at.fresh(0, 2) if len(at.node.outputs) > 2 and at.node.outputs[2] else count
    kinds = (
        values,
        TensorType(dtypes.INT64, (count,)),
        TensorType(dtypes.INT64, (inverse,)),
        TensorType(dtypes.INT64, (count,)),
    )
    return kinds[: len(at.node.outputs)]


def non_max_suppression(at: Site) -> Types:
    """(number selected, 3): batch, class and box of each."""
    return (TensorType(dtypes.INT64, (at.fresh(0), 3)),)
