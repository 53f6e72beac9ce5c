"""The one table of dtypes agrees with numpy, ONNX and struct, and can be looked up three ways."""

from __future__ import annotations

import copy
import pickle
import struct

import numpy as np
import onnx
import pytest

from castiron.tensor import dtype as dtypes
from castiron.tensor.signature import Signature, TensorSpec

each = pytest.mark.parametrize("dtype", dtypes.ALL, ids=lambda dtype: dtype.name)


@each
def test_a_dtype_is_found_by_each_of_its_names(dtype: dtypes.DType) -> None:
    assert dtypes.named(dtype.name) is dtype
    assert dtypes.from_onnx(dtype.onnx_code) is dtype
    assert dtypes.from_oip(dtype.oip) is dtype


@each
def test_a_copy_or_a_pickle_is_the_dtype_itself(dtype: dtypes.DType) -> None:
    assert pickle.loads(pickle.dumps(dtype)) is dtype
    assert copy.deepcopy(dtype) is dtype


@each
def test_sizes_and_codes_are_those_of_others(dtype: dtypes.DType) -> None:
    if dtype.struct_code:
        assert struct.calcsize(f"={dtype.struct_code}") == dtype.size_bytes
        assert np.dtype(dtype.name).itemsize == dtype.size_bytes
        assert onnx.helper.tensor_dtype_to_np_dtype(dtype.onnx_code) == np.dtype(dtype.name)
        kind = np.dtype(dtype.name).kind
        assert (dtype.is_float, dtype.is_integer) == (kind == "f", kind in "iu")
        assert dtype.is_signed == (kind in "if")


def test_unknown_kinds_are_none_or_a_key_error() -> None:
    assert dtypes.from_onnx(14) is None
    assert dtypes.from_oip("COMPLEX64") is None
    with pytest.raises(KeyError):
        dtypes.named("complex64")


def test_a_signature_reads_like_a_function() -> None:
    x = TensorSpec("x", dtypes.FLOAT32, ("n", 3))
    y = TensorSpec("y", dtypes.INT64, ())
    assert repr(Signature((x, x), (y,))) == "(x: float32[n, 3], x: float32[n, 3]) -> (y: int64[])"
