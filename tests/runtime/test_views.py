"""Whatever holds numbers in memory becomes a view of exactly those numbers, or is refused in words."""

from __future__ import annotations

import array
import ctypes
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from castiron import errors
from castiron.runtime import views
from castiron.tensor import dtype as dtypes
from castiron.tensor.signature import TensorSpec


def spec(dtype: str, *dims: int | str) -> TensorSpec:
    return TensorSpec("x", dtypes.named(dtype), dims)


def seen(value: Any, dtype: str) -> np.ndarray:
    """The numbers that a kernel would find at the view's address."""
    view = views.of(value, spec(dtype))
    size_bytes = int(np.prod(view.shape)) * np.dtype(dtype).itemsize
    data = ctypes.string_at(view.address, size_bytes) if size_bytes else b""
    return np.frombuffer(data, dtype).reshape(view.shape)


GRID = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


@pytest.mark.parametrize(
    "value",
    [
        GRID,
        np.asfortranarray(GRID),
        GRID[::-1],
        GRID[:, ::2],
        GRID.transpose(2, 0, 1),
        GRID.astype(">f4"),
        GRID.astype(">f4")[:, 1:],
        np.broadcast_to(GRID[:1], (3, 3, 4)),
        GRID[:0],
        GRID[:, :0],
        np.array(7.5, np.float32),
        np.float32(7.5),
        np.ma.array(GRID),
        np.array([], np.float32),
    ],
    ids=lambda value: type(value).__name__,
)
def test_any_array_is_seen_as_row_major_numbers(value: Any) -> None:
    found = seen(value, "float32")
    np.testing.assert_array_equal(found, np.asarray(value).astype(np.float32))
    assert found.shape == np.shape(value)


def test_a_plain_array_is_not_copied() -> None:
    assert views.of(GRID, spec("float32")).address == GRID.ctypes.data


def test_a_read_only_array_is_read_where_it_is() -> None:
    frozen = GRID.copy()
    frozen.flags.writeable = False
    assert views.of(frozen, spec("float32")).address == frozen.ctypes.data


@pytest.mark.parametrize(
    "dtype", [d.name for d in dtypes.ALL if d.name not in ("string", "bfloat16")]
)
def test_every_dtype_is_known_as_an_array_and_as_a_buffer(dtype: str) -> None:
    value: Any = np.arange(6).reshape(2, 3).astype(dtype)
    np.testing.assert_array_equal(seen(value, dtype), value)
    np.testing.assert_array_equal(seen(memoryview(value), dtype), value)


def test_bfloat16_arrays_are_known() -> None:
    import ml_dtypes

    value = np.array([1.5, -2.0], ml_dtypes.bfloat16)
    assert views.of(value, spec("bfloat16")).dtype == "bfloat16"


@pytest.mark.parametrize(
    "value, dtype, expected",
    [
        ((ctypes.c_float * 3)(1, 2, 3), "float32", [1, 2, 3]),
        ((ctypes.c_int32 * 2)(1, -2), "int32", [1, -2]),
        ((ctypes.c_long * 2)(1, -2), "int64", [1, -2]),
        (((ctypes.c_double * 2) * 1)(), "float64", [[0, 0]]),
        (array.array("d", [1.5, 2.5]), "float64", [1.5, 2.5]),
        (array.array("l", [3, 4]), "int64", [3, 4]),
        (bytearray(b"\1\2"), "uint8", [1, 2]),
        (b"\1\2", "uint8", [1, 2]),
        (memoryview(bytes(16)).cast("f", (2, 2)), "float32", [[0, 0], [0, 0]]),
        (memoryview(array.array("f", [1, 2, 3, 4]))[::2], "float32", [1, 3]),
        (memoryview(b"").cast("f"), "float32", []),
        (memoryview(bytearray(4)).cast("f", ()), "float32", 0.0),
    ],
    ids=lambda value: type(value).__name__,
)
def test_buffers_are_seen_with_their_own_size_of_numbers(
    value: Any, dtype: str, expected: Any
) -> None:
    np.testing.assert_array_equal(seen(value, dtype), np.array(expected, dtype))


@pytest.mark.parametrize(
    "value, message",
    [
        ([1.0], "expected a numpy array or a buffer, found list; make it one with numpy.asarray"),
        (None, "found NoneType"),
        (np.ones(2), "expected dtype float32, found float64; convert it first"),
        (np.ones(2, complex), "found complex128"),
        (np.array(["a"]), "found string"),
        (np.ones(2, [("a", "f4")]), "found void32"),
        (array.array("d", [1]), "found float64"),
        (memoryview(b"ab").cast("c"), "found c"),
        ((ctypes.c_float.__ctype_be__ * 2)(), "found >f"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_tensor_of_the_dtype_is_refused(value: Any, message: str) -> None:
    with pytest.raises(errors.InputError, match=message) as caught:
        views.of(value, spec("float32"))
    assert caught.value.path == "inputs.x"


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (0,), (2, 0, 3), (1, 1, 1, 1)])
def test_new_memory_has_the_shape_asked_for(shape: tuple[int, ...]) -> None:
    view = views.empty("int16", shape)
    assert isinstance(view.owner, np.ndarray)
    assert (view.owner.shape, view.owner.dtype) == (shape, np.int16)
    assert view.address == view.owner.ctypes.data


def test_without_numpy_new_memory_is_a_memoryview_of_that_shape() -> None:
    code = """
import ctypes, sys
from castiron.runtime import views
for shape in [(), (3,), (2, 3), (0,), (2, 0, 3)]:
    view = views.empty("float32", shape)
    found = view.owner
    assert isinstance(found, memoryview), found
    assert found.format == "f"
    if 0 not in shape:
        assert found.shape == shape, (found.shape, shape)
        ctypes.memset(view.address, 0, found.nbytes)
        assert found.tobytes() == bytes(found.nbytes)
    assert view.shape == shape
assert "numpy" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize("dtype, found", [("float32", "float32"), ("", "float64")])
def test_an_interpreted_result_has_the_dtype_that_was_planned(dtype: str, found: str) -> None:
    view = views.of_result(np.ones((2, 3)).T, dtype)
    assert (view.dtype, view.shape) == (found, (3, 2))
    assert view.owner.flags.c_contiguous


def test_an_interpreted_string_stays_a_string() -> None:
    view = views.of_result(np.array(["a", "bc"], object), "string")
    assert view.dtype == "string"
    assert view.owner.tolist() == ["a", "bc"]
