"""Values against the constraints of a contract, item by item."""

from __future__ import annotations

from typing import Any

import hypothesis
import ml_dtypes
import numpy as np
import pytest
from hypothesis import strategies as st

from castiron.contract import model, validate
from castiron.tensor import dtype as dtypes
from castiron.tensor import elements

_NUMERIC = [dtype for dtype in dtypes.ALL if dtype.is_integer or dtype.is_float]


def faults(values: np.ndarray, datatype: str, **bounds: Any) -> list[tuple[str, int | None]]:
    tensor = model.Tensor("x", datatype, tuple(range(values.ndim)), **bounds)
    found = validate.Validator("inputs", [tensor]).faults({"x": values})
    return [(str(fault), fault.row) for fault in found]


def test_each_row_with_a_fault_is_told_with_its_first_place() -> None:
    values = np.array([[0.0, 0.5], [2.0, 3.0], [0.0, -1.0]], np.float32)
    assert faults(values, "FP32", range=(0, 1)) == [
        ("inputs.x[1][0]: expected 0 to 1, found 2.0", 1),
        ("inputs.x[2][1]: expected 0 to 1, found -1.0", 2),
    ]


def test_nan_and_infinity_have_policies_of_their_own() -> None:
    values = np.array([np.nan, np.inf, -np.inf, 1.0])
    assert faults(values, "FP64") == []
    assert faults(values, "FP64", nan="refuse") == [
        ("inputs.x[0]: expected a number, found nan", 0)
    ]
    infinite = [row for _, row in faults(values, "FP64", infinity="refuse")]
    assert infinite == [1, 2]
    assert [row for _, row in faults(values, "FP64", range=(0, 2))] == [1, 2], (
        "NaN is no fault here"
    )


@pytest.mark.parametrize("kind, datatype", [(np.float16, "FP16"), (ml_dtypes.bfloat16, "BF16")])
def test_bounds_count_as_the_tensor_holds_them(kind: Any, datatype: str) -> None:
    values = np.array([0.1, 0.3], kind)
    assert faults(values, datatype, range=(0.1, 0.3)) == []
    assert faults(values, datatype, allowed=(0.1, 0.3)) == []
    assert [row for _, row in faults(values, datatype, range=(0.11, 0.3))] == [0]


def test_whole_numbers_are_compared_exactly_over_their_whole_range() -> None:
    top = np.array([2**64 - 1, 2**64 - 2], np.uint64)
    assert [row for _, row in faults(top, "UINT64", range=(0, 2**64 - 2))] == [0]
    low = np.array([-(2**63)], np.int64)
    assert faults(low, "INT64", range=(-(2**63), 0)) == []
    assert [row for _, row in faults(low, "INT64", range=(-(2**63) + 1, 0))] == [0]
    assert faults(low, "INT64", range=(-float("inf"), 0.5)) == []
    assert len(faults(np.array([1], np.uint8), "UINT8", range=(300, 400))) == 1


def test_strings_have_lengths_and_lists() -> None:
    values = np.array([["en", b"\xff"], ["fr", "longer"]], object)
    assert [text for text, _ in faults(values, "BYTES", allowed=("en", "fr"))] == [
        "inputs.x[0][1]: expected one of 'en', 'fr', found b'\\xff'",
        "inputs.x[1][1]: expected one of 'en', 'fr', found 'longer'",
    ]
    assert [row for _, row in faults(values, "BYTES", max_bytes=2)] == [1]


def test_scalars_and_empty_tensors_and_absent_ones() -> None:
    assert faults(np.array(5), "INT64", range=(0, 1)) == [
        ("inputs.x: expected 0 to 1, found 5", None)
    ]
    assert faults(np.zeros((0, 3), np.float32), "FP32", range=(0, 1), nan="refuse") == []
    tensor = model.Tensor("x", "FP32", (), range=(0, 1))
    assert validate.Validator("inputs", [tensor]).faults({}) == []


def test_extents_have_limits() -> None:
    values = np.zeros((2, 9), np.float32)
    assert faults(values, "FP32", max_dims=(4, 8)) == [
        ("inputs.x.shape[1]: expected at most 8, found 9", None)
    ]
    assert faults(values, "FP32", max_dims=(0, 9)) == []


@pytest.mark.parametrize("dtype", _NUMERIC, ids=lambda dtype: str(dtype.oip))
@hypothesis.given(data=st.data())
def test_it_finds_what_a_plain_loop_finds(dtype: dtypes.DType, data: st.DataObject) -> None:
    kind = elements.numpy_dtype(dtype)
    raw = data.draw(
        st.binary(max_size=48).map(lambda b: b[: len(b) // kind.itemsize * kind.itemsize])
    )
    values = np.frombuffer(raw, kind)
    low, high = sorted(data.draw(st.tuples(st.integers(-200, 200), st.integers(-200, 200))))
    found = [row for _, row in faults(values, dtype.oip, range=(low, high))]
    with np.errstate(invalid="ignore"):
        plain = [float(value) if dtype.is_float else int(value) for value in values]
    bounds = np.array([low, high], kind).astype(float).tolist() if dtype.is_float else (low, high)
    assert found == [i for i, value in enumerate(plain) if value < bounds[0] or value > bounds[1]]
