"""Ops that read or write at indices: Gather*, Scatter*, OneHot, NonZero, Compress, ...

Attrs as in ONNX, ``axis`` non-negative after simplify. Negative indices count from the end.
Canonical OneHot: inputs (indices, values), attrs ``axis`` (counted in the output), ``depth``.
"""

from __future__ import annotations

from castiron.graph.graph import Extent, Shape, TensorType
from castiron.graph.ops import bounds, contents
from castiron.graph.ops.rule import Site, Types, whole
from castiron.tensor import dim as dims
from castiron.tensor import dtype as dtypes


def gather(at: Site) -> Types:
    """Slices of the data along ``axis``: the indices' shape stands in its place."""
    data, indices = at.rank_at_least(0, 1), at.shape(1)
    if data is None or indices is None:
        return (TensorType(at.dtype(0), None),)
    axis = at.axis(int(at.attr("axis", 0)), len(data))
    shape = (*data[:axis], *indices, *data[axis + 1 :])
    _examine_positions(at, data[axis])
    return (TensorType(at.dtype(0), shape, _gathered(at, axis)),)


def _examine_positions(at: Site, extent: Extent) -> None:
    """Constant positions must lie inside the axis, whatever its extent turns out to be."""
    array = at.array(1)
    if array is None or array.size == 0 or array.size > contents.LIMIT:
        return
    reason = "each index must lie inside the axis"
    at.at_least(extent, int(array.max()) + 1, reason)
    at.at_least(extent, -int(array.min()), reason)


def _gathered(at: Site, axis: int) -> tuple[Extent, ...] | None:
    positions, shape = at.contents(1), at.shape(0)
    grid = contents.grid(at.contents(0), shape or ())
    if grid is None or shape is None or positions is None:
        return None
    if any(isinstance(position, dims.Dim) for position in positions):
        return None
    taken = grid.take([whole(position) for position in positions], axis)
    return tuple(taken.reshape(-1).tolist()) if taken.size <= contents.LIMIT else None


def gather_elements(at: Site) -> Types:
    """One element for each index."""
    _fit_indices(at)
    return (TensorType(at.dtype(0), at.shape(1)),)


def _fit_indices(at: Site) -> None:
    """Along all axes but the indexed one, an index's position is that of the data."""
    data, indices = at.shape(0), at.shape(1)
    if data is None or indices is None:
        return
    if len(data) != len(indices):
        at.fail(f"expected indices of rank {len(data)}, found {len(indices)}", 1)
    if not data:
        at.fail("expected data of rank 1 or more", 0)
    indexed = at.axis(int(at.attr("axis", 0)), len(data))
    for axis, (extent, count) in enumerate(zip(data, indices, strict=True)):
        if axis != indexed:
            at.at_least(bounds.sub(extent, count), 0, f"axis {axis} has more indices than data")


def gather_nd(at: Site) -> Types:
    """Slices of the data at index tuples (the last axis of the indices)."""
    data, indices = at.shape(0), at.rank_at_least(1, 1)
    if data is None or indices is None or isinstance(indices[-1], dims.Dim):
        return (TensorType(at.dtype(0), None),)
    batch, depth = int(at.attr("batch_dims", 0)), indices[-1]
    if batch + depth > len(data):
        at.fail(f"index tuples of {depth} do not fit data of rank {len(data)}", 1)
    if batch >= len(indices):
        at.fail(f"expected indices of rank {batch + 1} or more, found {len(indices)}", 1)
    for axis in range(batch):
        at.check(indices[axis], data[axis], "data and indices must agree on the batch axes")
    return (TensorType(at.dtype(0), (*indices[:-1], *data[batch + depth :])),)


def scatter(at: Site) -> Types:
    """ScatterElements, ScatterND, TensorScatter: the type of the data."""
    if at.node.op == "ScatterElements":
        _fit_indices(at)
        _fit_updates(at, at.shape(1))
    elif at.node.op == "ScatterND":
        _fit_updates(at, _rows_at_tuples(at))
    return (TensorType(at.dtype(0), at.shape(0), _scattered(at)),)


def _rows_at_tuples(at: Site) -> Shape | None:
    """The shape of all the slices that ScatterND's index tuples name."""
    data, indices = at.shape(0), at.rank_at_least(1, 1)
    if data is None or indices is None or isinstance(indices[-1], dims.Dim):
        return None
    if indices[-1] > len(data):
        at.fail(f"index tuples of {indices[-1]} do not fit data of rank {len(data)}", 1)
    return (*indices[:-1], *data[indices[-1] :])


def _fit_updates(at: Site, expected: Shape | None) -> None:
    updates = at.shape(2)
    if updates is None or expected is None:
        return
    if len(updates) != len(expected):
        at.fail(f"expected updates of rank {len(expected)}, found {len(updates)}", 2)
    for extent, count in zip(updates, expected, strict=True):
        at.check(extent, count, "one update is needed for each index")


def _scattered(at: Site) -> tuple[Extent, ...] | None:
    known, positions, updates = (at.contents(index) for index in range(3))
    shape = at.shape(0)
    if shape is None or len(shape) != 1 or at.attr("reduction", "none") != "none":
        return None
    if known is None or positions is None or updates is None or at.node.op == "TensorScatter":
        return None
    if len(positions) != len(updates):
        return None
    result = list(known)
    for position, update in zip(positions, updates, strict=True):
        if isinstance(position, dims.Dim) or not -len(known) <= position < len(known):
            return None
        result[position] = update
    return tuple(result)


def one_hot(at: Site) -> Types:
    """The indices' shape with ``depth`` put in at ``axis``; dtype of the values."""
    indices = at.shape(0)
    values = 1 if at.attr("depth") is not None else 2
    dtype = at.dtype(values)
    if indices is None:
        return (TensorType(dtype, None),)
    axis = at.axis(int(at.attr("axis", -1)), len(indices) + 1)
    depth = at.attr("depth")
    if depth is None:
        known = at.contents(1)
        depth = known[0] if known else at.fresh(axis)
    return (TensorType(dtype, (*indices[:axis], depth, *indices[axis:])),)


def non_zero(at: Site) -> Types:
    """(rank, number of non-zero elements), int64."""
    shape = at.shape(0)
    rank = at.fresh(0) if shape is None else max(len(shape), 1)
    return (TensorType(dtypes.INT64, (rank, at.fresh(1))),)


def compress(at: Site) -> Types:
    """The slices that the condition picks along ``axis``, of the flat data when absent."""
    shape, axis = at.shape(0), at.attr("axis")
    if axis is None:
        return (TensorType(at.dtype(0), (at.fresh(0),)),)
    if shape is None:
        return (TensorType(at.dtype(0), None),)
    axis = at.axis(int(axis), len(shape))
    return (TensorType(at.dtype(0), (*shape[:axis], at.fresh(axis), *shape[axis + 1 :])),)


def reverse_sequence(at: Site) -> Types:
    """The type of the data."""
    return (TensorType(at.dtype(0), at.rank_at_least(0, 2)),)
