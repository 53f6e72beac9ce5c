"""Every dtype, through JSON and through bytes, comes back bit for bit; nothing changes silently."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from castiron import errors
from castiron.server import values
from castiron.tensor import dtype as dtypes
from castiron.tensor import elements

NUMERIC = [kind for kind in dtypes.ALL if kind not in {dtypes.STRING, dtypes.BOOL}]


def bits(kind: dtypes.DType) -> st.SearchStrategy[np.ndarray]:
    """Arrays of any bit patterns, with zero-sized and nested shapes among them."""
    shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)

    def filled(shape: tuple[int, ...]) -> st.SearchStrategy[np.ndarray]:
        size = math.prod(shape) * kind.size_bytes
        return st.binary(min_size=size, max_size=size).map(
            lambda raw: np.frombuffer(raw, elements.numpy_dtype(kind)).reshape(shape)
        )

    return shapes.flatmap(filled)


def as_quiet(values_in: np.ndarray, kind: dtypes.DType) -> np.ndarray:
    """JSON has one NaN: payloads and signs of NaN are the one thing that it cannot hold."""
    if kind.is_float:
        with np.errstate(invalid="ignore"):
            return np.where(np.isnan(values_in), values_in.dtype.type(math.nan), values_in).astype(
                values_in.dtype
            )
    return values_in


def assert_same(found: np.ndarray, expected: np.ndarray) -> None:
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    assert found.tobytes() == expected.tobytes()


@pytest.mark.parametrize("kind", NUMERIC, ids=repr)
@given(data=st.data())
def test_numbers_come_back_bit_for_bit_from_json(kind: dtypes.DType, data: st.DataObject) -> None:
    sent = data.draw(bits(kind))
    text = orjson.dumps(values.to_json(sent, kind, "y"))
    listed = json.loads(text)  # strict: no bare NaN, which would be a float here
    assert all(isinstance(item, str) or math.isfinite(item) for item in listed)
    found = values.from_json(orjson.loads(text), kind, sent.shape, "x")
    assert_same(found, as_quiet(sent, kind))


@pytest.mark.parametrize("kind", [*NUMERIC, dtypes.BOOL], ids=repr)
@given(data=st.data())
def test_values_come_back_bit_for_bit_from_bytes_at_any_offset(
    kind: dtypes.DType, data: st.DataObject
) -> None:
    sent = data.draw(bits(kind))
    if kind is dtypes.BOOL:
        sent = sent.view(np.uint8) % 2 == 1
    raw = bytes(values.to_bytes(sent, kind))
    for offset in range(2):
        shifted = memoryview(b"\xff" * offset + raw)[offset:]
        found = values.from_bytes(shifted, kind, sent.shape, "x")
        assert found.flags.aligned
        assert_same(found, sent)


@given(st.lists(st.booleans()))
def test_booleans_come_back_from_json(items: list[bool]) -> None:
    sent = np.array(items, np.bool_)
    text = orjson.dumps(values.to_json(sent, dtypes.BOOL, "y"))
    assert_same(values.from_json(json.loads(text), dtypes.BOOL, sent.shape, "x"), sent)


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]))))
def test_strings_come_back_from_json_and_bytes(items: list[str]) -> None:
    sent = np.array([*items, ""], object)[:-1]
    text = orjson.dumps(values.to_json(sent, dtypes.STRING, "y"))
    assert values.from_json(orjson.loads(text), dtypes.STRING, sent.shape, "x").tolist() == items
    raw = memoryview(bytes(values.to_bytes(sent, dtypes.STRING)))
    assert values.from_bytes(raw, dtypes.STRING, sent.shape, "x").tolist() == items


def test_strings_that_are_not_text_go_as_bytes_and_are_refused_in_json() -> None:
    raw = memoryview(b"\x02\0\0\0\xff\0")
    held = values.from_bytes(raw, dtypes.STRING, (1,), "x")
    assert values.to_bytes(held, dtypes.STRING) == raw
    with pytest.raises(errors.InputError, match="y: holds bytes that are not UTF-8"):
        values.to_json(held, dtypes.STRING, "y")
    with pytest.raises(errors.InputError, match="y: holds bytes that are not UTF-8"):
        values.to_json(np.array([b"\xff"], object), dtypes.STRING, "y")


def test_special_values_are_words_in_json_and_shortest_digits_are_used() -> None:
    sent = np.array([math.nan, 0.1, -math.inf, -0.0, math.inf, 1e-45], np.float32)
    text = orjson.dumps(values.to_json(sent, dtypes.FLOAT32, "y"))
    assert text == b'["NaN",0.1,"-Infinity",-0.0,"Infinity",1e-45]'


@pytest.mark.parametrize(
    "data, shape",
    [
        ([[1, 2], [3, 4], [5, 6]], (3, 2)),
        ([[[1], [2]], [[3], [4]], [[5], [6]]], (3, 2, 1)),
        ([1, 2, 3, 4, 5, 6], (3, 2)),
        ([[], []], (2, 0)),
        ([], (2, 0)),
        ([], (0, 2)),
        ([7], ()),
    ],
)
def test_data_may_be_flat_or_nested_like_its_shape(data: Any, shape: tuple[int, ...]) -> None:
    found = values.from_json(data, dtypes.INT32, shape, "x")
    assert found.shape == shape
    assert found.tolist() == np.array(data, np.int32).reshape(shape).tolist()


@pytest.mark.parametrize(
    "kind, shape, data, message",
    [
        ("float32", (2,), None, "x: expected a list of values, found null"),
        ("float32", (2,), {}, "x: expected a list of values, found an object"),
        ("float32", (2,), [1], "x: expected 2 values for shape [2], found 1"),
        ("float32", (1 << 31, 1 << 31), [1], "expected 4611686018427387904 values"),
        ("float32", (2,), [1, None], "x[1]: expected a number for FP32, found null"),
        ("float32", (2,), [1, True], "x[1]: expected a number for FP32, found true or false"),
        ("float32", (2,), [1, "2"], "x[1]: expected a number for FP32, or"),
        ("float32", (2,), [1, "nan"], "found the text 'nan'"),
        ("float32", (2,), [1, 1e39], "x[1]: expected a number in the range of FP32, found 1e+39"),
        ("float32", (1,), [10**400], "x: expected numbers in the range of FP32"),
        ("float16", (1,), [65520], "x[0]: expected a number in the range of FP16"),
        ("bfloat16", (1,), [3.4e38], "x[0]: expected a number in the range of BF16"),
        ("float32", (2,), [[1, 2]], "x: expected 2 values for shape [2], found 1"),
        ("float32", (1,), [[1]], "x[0]: expected a number for FP32, found a list"),
        ("float32", (2, 2), [[1, 2], [3]], "x[1]: expected a list of 2 values, nested like"),
        ("float32", (2, 2), [[1, 2], 3], "x[1]: expected a list of 2 values, nested like"),
        ("float32", (2, 2), [[1, 2]], "x: expected a list of 2 values, nested like"),
        ("float32", (1, 2), [[1, [2]]], "x[1]: expected a number for FP32, found a list"),
        ("uint8", (1,), [256], "x[0]: expected UINT8 from 0 to 255, found 256"),
        ("uint8", (2,), [0, -1], "x[1]: expected UINT8 from 0 to 255, found -1"),
        ("int64", (1,), [1 << 63], "found 9223372036854775808"),
        ("uint64", (1,), [-1], "x[0]: expected UINT64 from 0"),
        ("int64", (1,), [2.0**64], "x[0]: expected an integer for INT64, found 1.8446744073709552"),
        ("int32", (1,), [1.0], "x[0]: expected an integer for INT32, found 1.0"),
        ("int32", (1,), [True], "x[0]: expected an integer for INT32, found true or false"),
        ("int32", (1,), ["1"], "x[0]: expected an integer for INT32, found the text '1'"),
        ("bool", (1,), [1], "x[0]: expected true or false for BOOL, found an integer"),
        ("string", (1,), [1], "x[0]: expected a string for BYTES, found an integer"),
        ("string", (1,), ["\ud800"], "x[0]: expected Unicode text"),
    ],
)
def test_wrong_json_is_refused_at_its_place(
    kind: str, shape: tuple[int, ...], data: Any, message: str
) -> None:
    with pytest.raises(errors.InputError) as refused:
        values.from_json(data, dtypes.named(kind), shape, "x")
    assert message in str(refused.value)


@pytest.mark.parametrize(
    "kind, shape, raw, message",
    [
        ("float32", (2,), b"1234567", "x: expected 8 bytes for FP32 of shape [2], found 7"),
        ("bool", (2,), b"\x01\x02", "x: expected each byte of a BOOL to be 0 or 1"),
        ("string", (1,), b"\x09\0\0\0a", "x: string 0 needs 9 bytes, 1 are left"),
        ("uint8", (1 << 31, 1 << 31), b"", "x: expected 4611686018427387904 bytes"),
    ],
)
def test_wrong_bytes_are_refused(
    kind: str, shape: tuple[int, ...], raw: bytes, message: str
) -> None:
    with pytest.raises(errors.InputError) as refused:
        values.from_bytes(memoryview(raw), dtypes.named(kind), shape, "x")
    assert message in str(refused.value)


@given(st.floats(width=32))
def test_rounding_to_bfloat16_is_to_nearest_with_ties_to_even(value: float) -> None:
    if not abs(value) < 3.38e38:
        return
    found = values.from_json([value], dtypes.BFLOAT16, (1,), "x").view(np.uint16)
    chosen = (found.astype(np.uint32) << 16).view(np.float32)[0]
    neighbours = [(found.astype(np.int64) + step).astype(np.uint32) << 16 for step in (-1, 1)]
    distance = abs(float(chosen) - value)
    for other in neighbours:
        other_value = float(other.view(np.float32)[0])
        if math.isfinite(other_value):
            gap = abs(other_value - value)
            assert distance < gap or (distance == gap and found[0] % 2 == 0)
