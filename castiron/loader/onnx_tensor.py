"""TensorProtos to read-only numpy arrays: inline, external and sparse, with every size checked.

What the arrays mean is not known here. ``external`` opens the files.
"""

from __future__ import annotations

import math

import numpy as np
import onnx
from onnx import helper, numpy_helper

from castiron.graph import graph as graphs
from castiron.loader import external
from castiron.tensor import dtype as dtypes

_EXTERNAL = onnx.TensorProto.EXTERNAL
_MAX_DENSE_BYTES = 1 << 30


def to_array(tensor: onnx.TensorProto, folder: external.ExternalFolder) -> np.ndarray:
    """The tensor as a read-only array; ValueError says what is wrong with it."""
    if any(extent < 0 for extent in tensor.dims):
        raise ValueError(f"dims {list(tensor.dims)} must not be negative")
    if tensor.data_type not in _KNOWN:
        raise ValueError(f"element type {tensor.data_type} does not exist in this ONNX version")
    if tensor.data_location == _EXTERNAL:
        return _external_array(tensor, folder)
    try:
        array = numpy_helper.to_array(tensor)
    except (TypeError, OverflowError, MemoryError, AttributeError, UnicodeDecodeError) as error:
        raise ValueError(f"data cannot be read as {list(tensor.dims)}: {error}") from error
    if tuple(array.shape) != tuple(tensor.dims):
        raise ValueError(f"data has shape {list(array.shape)}, dims say {list(tensor.dims)}")
    array.flags.writeable = False
    return array


_KNOWN = frozenset(set(onnx.TensorProto.DataType.values()) - {0})


def _external_array(tensor: onnx.TensorProto, folder: external.ExternalFolder) -> np.ndarray:
    fields = {entry.key: entry.value for entry in tensor.external_data}
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(tensor.data_type))
    packed = onnx.TensorProto.DataType.Name(tensor.data_type)
    if dtype.hasobject or any(bits in packed for bits in ("INT4", "INT2", "FLOAT4", "STRING")):
        raise ValueError(f"external data of element type {packed} is not supported")
    expected = math.prod(tensor.dims) * dtype.itemsize
    offset, length = _number(fields, "offset", 0), _number(fields, "length", expected)
    if length != expected:
        raise ValueError(
            f"external data has length {length}, {packed}{list(tensor.dims)} needs {expected}"
        )
    view = folder.read(fields.get("location", ""), offset, length)
    return np.frombuffer(view, dtype=dtype).reshape(tuple(tensor.dims))


def _number(fields: dict[str, str], key: str, default: int) -> int:
    text = fields.get(key, str(default))
    if not text.isascii() or not text.isdecimal():
        raise ValueError(f"external data field {key!r} is {text!r}, not a whole number")
    return int(text)


def sparse_to_array(sparse: onnx.SparseTensorProto, folder: external.ExternalFolder) -> np.ndarray:
    """The dense form of a sparse tensor, at most 1 GiB; ValueError when it is malformed."""
    values = to_array(sparse.values, folder)
    indices = to_array(sparse.indices, folder)
    dims = tuple(sparse.dims)
    if any(extent < 0 for extent in dims):
        raise ValueError(f"dims {list(dims)} must not be negative")
    if math.prod(dims) * values.dtype.itemsize > _MAX_DENSE_BYTES:
        raise ValueError(f"the dense form of {list(dims)} is larger than 1 GiB")
    if values.ndim != 1 or indices.dtype != np.int64 or indices.shape[:1] != values.shape:
        raise ValueError("values and indices of the sparse tensor do not belong together")
    dense = np.zeros(math.prod(dims), values.dtype)
    if indices.ndim == 2:
        if indices.shape[1] != len(dims):
            raise ValueError(f"indices have {indices.shape[1]} columns for {len(dims)} dims")
        outside = (indices < 0) | (indices >= np.asarray(dims))
        flat = np.ravel_multi_index(tuple(np.where(outside, 0, indices).T), dims) if dims else 0
    else:
        flat, outside = indices, (indices < 0) | (indices >= dense.size)
    if np.any(outside):
        raise ValueError(f"an index of the sparse tensor lies outside {list(dims)}")
    dense[flat] = values
    dense.flags.writeable = False
    return dense.reshape(dims)


def type_of(array: np.ndarray) -> graphs.TensorType:
    """The type of a constant; dtype None for element types that castiron does not hold."""
    if array.dtype.kind in "biuf":
        return graphs.constant_type(array)
    if array.dtype.kind in "OUS":
        return graphs.TensorType(dtypes.STRING, tuple(array.shape))
    return graphs.TensorType(
        dtypes.from_onnx(helper.np_dtype_to_tensor_dtype(array.dtype)), tuple(array.shape)
    )
