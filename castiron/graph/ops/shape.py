"""Ops that make or read shapes: Shape, Size, ConstantOfShape, Range, EyeLike, DimsToTensor.

Shape and Size have symbolic contents and become castiron's own ``DimsToTensor`` where data need
them: no inputs; attrs ``dims`` (elements in order, ints or dims), ``dtype`` (name), ``shape``.
Canonical ConstantOfShape: no inputs; attrs ``shape`` (dims), ``value`` (array of one element).
Canonical Range over whole numbers: no inputs; attrs ``start``, ``limit``, ``delta`` (dims), and
``dtype`` (name, also a float's).
"""

from __future__ import annotations

import numpy as np

from castiron.graph.graph import Extent, Shape, TensorType
from castiron.graph.ops import bounds, contents
from castiron.graph.ops.rule import Site, Types, whole
from castiron.tensor import dim as dims
from castiron.tensor import dtype as dtypes


def shape(at: Site) -> Types:
    """int64 extents of the input, from ``start`` to ``end``."""
    known = at.shape(0)
    if known is None:
        return (TensorType(dtypes.INT64, (at.fresh(0),)),)
    start, end = at.attr("start", 0), at.attr("end")
    part = known[start:] if end is None else known[start:end]
    return (TensorType(dtypes.INT64, (len(part),), tuple(part)),)


def size(at: Site) -> Types:
    """The number of elements, an int64 scalar."""
    known = at.shape(0)
    count = None if known is None else (dims.product(known),)
    return (TensorType(dtypes.INT64, (), count),)


def dims_to_tensor(at: Site) -> Types:
    """The contents that ``dims`` gives."""
    dtype = dtypes.named(at.attr("dtype"))
    known = None if dtype.is_float else tuple(at.attr("dims"))
    return (TensorType(dtype, tuple(at.attr("shape")), known),)


def constant_of_shape(at: Site) -> Types:
    """The shape asked for, filled with ``value`` (float32 zero when absent)."""
    value = at.attr("value")
    array = np.zeros(1, np.float32) if value is None else np.asarray(value).reshape(-1)
    dtype = dtypes.named(array.dtype.name)
    asked = at.attr("shape") or at.contents(0)
    if at.attr("shape") is not None:
        asked = tuple(at.attr("shape"))
    if asked is None:
        return (TensorType(dtype, unknown_of_length(at, 0)),)
    for extent in asked:
        at.at_least(extent, 0, "no extent may be negative")
    known = None
    if contents.is_small(asked) and array.dtype.kind in "iub":
        count = whole(asked[0]) if asked else 1
        known = (int(array[0]),) * count
    return (TensorType(dtype, tuple(asked), known),)


def unknown_of_length(at: Site, index: int) -> Shape | None:
    """A fresh shape whose rank is the length of the shape tensor at ``index``."""
    given = at.shape(index)
    if given is None or len(given) != 1 or isinstance(given[0], dims.Dim):
        return None
    return at.fresh_shape(given[0])


def range_(at: Site) -> Types:
    """ceil((limit - start) / delta) elements, at least 0."""
    if at.attr("limit") is not None:
        dtype: dtypes.DType | None = dtypes.named(at.attr("dtype"))
        parts: list[Extent] = [at.attr(key) for key in ("start", "limit", "delta")]
    else:
        dtype = at.dtype(0)
        found = range_parts(at)
        if found is None:
            return (TensorType(dtype, (_constant_length(at),)),)
        parts = found
    count = _range_length(*parts)
    if count is None:
        return (TensorType(dtype, (at.fresh(0),)),)
    known: tuple[Extent, ...] | None = None
    small = not isinstance(count, dims.Dim) and count <= contents.LIMIT
    if small and dtype is not None and dtype.is_integer:
        known = tuple(dims.add(parts[0], dims.mul(parts[2], i)) for i in range(whole(count)))
    return (TensorType(dtype, (count,), known),)


def range_parts(at: Site) -> list[Extent] | None:
    """start, limit and delta, where each is a dim: an integer, or a float that is whole."""
    found = [contents.ratios_of(at, index) for index in range(3)]
    parts = [item[0] for item in found if item is not None and len(item) == 1]
    if len(parts) != 3 or any(part.denominator != 1 for part in parts):
        return None
    return [part.numerator for part in parts]


def _constant_length(at: Site) -> Extent:
    arrays = [at.array(index) for index in range(3)]
    if any(array is None for array in arrays):
        return at.fresh(0)
    start, limit, delta = (float(a.reshape(-1)[0]) for a in arrays if a is not None)
    if delta == 0:
        at.fail("delta: expected a number other than 0", 2)
    return max(int(np.ceil((limit - start) / delta)), 0)


def _range_length(start: Extent, limit: Extent, delta: Extent) -> Extent | None:
    if bounds.is_positive(delta):
        count = dims.ceildiv(bounds.sub(limit, start), delta)
    elif not isinstance(delta, dims.Dim) and delta < 0:
        count = dims.ceildiv(bounds.sub(start, limit), -delta)
    else:
        return None
    return bounds.maximum(count, 0)


def eye_like(at: Site) -> Types:
    """A matrix of the input's shape, dtype from ``dtype`` or the input."""
    code = at.attr("dtype")
    dtype = at.dtype(0) if code is None else dtypes.from_onnx(int(code))
    return (TensorType(dtype, at.shape(0)),)


def random(at: Site) -> Types:
    """RandomNormal and RandomUniform: attrs ``shape`` and ``dtype``; *Like take the input's."""
    code = at.attr("dtype")
    if at.node.op.endswith("Like") or at.node.op == "Bernoulli":
        dtype = at.dtype(0) if code is None else dtypes.from_onnx(int(code))
        return (TensorType(dtype, at.shape(0)),)
    dtype = dtypes.from_onnx(int(code)) if code is not None else dtypes.FLOAT32
    return (TensorType(dtype, tuple(at.attr("shape", ()))),)


def window_function(at: Site) -> Types:
    """Hann, Hamming and Blackman windows of the given size."""
    dtype = dtypes.from_onnx(int(at.attr("output_datatype", 1)))
    asked = at.contents(0)
    return (TensorType(dtype, (asked[0] if asked else at.fresh(0),)),)
