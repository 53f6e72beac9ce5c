"""Normalisations, softmax among them: outputs have the type of the data.

Attrs stay as in ONNX; ``axis`` is non-negative after simplify. BatchNormalization here is the
inference form. Softmax, LogSoftmax and Hardmax work along one ``axis``.
"""

from __future__ import annotations

from castiron.graph.graph import TensorType
from castiron.graph.ops.rule import Site, Types
from castiron.tensor import dim as dims
from castiron.tensor import dtype as dtypes


def same(at: Site) -> Types:
    """The type of the first input."""
    return (TensorType(at.dtype(0), at.shape(0)),)


def along_axis(at: Site) -> Types:
    """The type of the data; ``axis`` must exist."""
    shape = at.shape(0)
    if shape is not None and shape:
        at.axis(int(at.attr("axis", -1)), len(shape))
    return same(at)


def batch_normalization(at: Site) -> Types:
    """The type of the data; scale, bias, mean and variance are (channels,)."""
    shape = at.rank_at_least(0, 2)
    for index in range(1, 5):
        part = at.shape(index)
        if shape is not None and part is not None and len(part) == 1:
            at.check(part[0], shape[1], "one value is needed for each channel")
    kinds = (TensorType(at.dtype(0), shape),)
    statistics = tuple(TensorType(at.dtype(index), at.shape(index)) for index in (3, 4))
    return (*kinds, *statistics)[: len(at.node.outputs)]


def group_normalization(at: Site) -> Types:
    """The type of the data, whose channels are whole groups."""
    shape, groups = at.rank_at_least(0, 2), int(at.attr("num_groups", 1))
    if shape is not None:
        members = dims.floordiv(shape[1], groups)
        at.check(dims.mul(members, groups), shape[1], "channels must be whole groups")
    return same(at)


def layer_normalization(at: Site) -> Types:
    """The type of the data; mean and inverse deviation have extent 1 from ``axis`` on."""
    shape = at.shape(0)
    kinds = [TensorType(at.dtype(0), shape)]
    statistics = None
    if shape is not None:
        axis = at.axis(int(at.attr("axis", -1)), len(shape))
        statistics = (*shape[:axis], *(1 for _ in shape[axis:]))
    kinds += [TensorType(dtypes.FLOAT32, statistics)] * 2
    return tuple(kinds[: len(at.node.outputs)])
