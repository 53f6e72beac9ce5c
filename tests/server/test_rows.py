"""Which requests may share a run, and how a model proves that its rows are independent."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from castiron import errors
from castiron.server import probe, rows
from castiron.tensor import dtype as dtypes
from castiron.tensor import signature
from tests import numpy_instance

MODELS = numpy_instance.models()


def spec(name: str, *dims: int | str) -> signature.TensorSpec:
    return signature.TensorSpec(name, dtypes.FLOAT32, dims)


def found(inputs: list[Any], outputs: list[Any]) -> rows.Rows | None:
    return rows.Rows.of(signature.Signature(tuple(inputs), tuple(outputs)))


def test_only_one_symbol_at_the_head_of_every_tensor_makes_rows() -> None:
    assert found([spec("a", "n", 2), spec("b", "n")], [spec("y", "n", "w")])
    assert not found([spec("a", "n", 2), spec("b", "m")], [spec("y", "n")])
    assert not found([spec("a", "n", 2)], [spec("y", 1)])
    assert not found([spec("a", "n", 2)], [spec("y")])
    assert not found([spec("a", 4, 2)], [spec("y", 4)])
    assert not found([], [])


def test_inputs_that_do_not_fit_the_model_or_each_other_have_no_number_of_rows() -> None:
    both = found([spec("a", "n", 2), spec("b", "n", "w")], [spec("y", "n")])
    assert both is not None

    def count(a: tuple[int, ...], b: tuple[int, ...]) -> int | None:
        assert both is not None
        return both.count({"a": np.zeros(a), "b": np.zeros(b)})

    assert count((3, 2), (3, 9)) == 3
    assert count((0, 2), (0, 9)) == 0
    assert count((3, 2), (2, 9)) is None
    assert count((3, 3), (3, 9)) is None
    assert count((3, 2), (3,)) is None


def test_requests_share_a_run_only_with_equal_trailing_dims_and_outputs() -> None:
    one = found([spec("a", "n", "w")], [spec("y", "n")])
    assert one is not None
    keys = [one.key({"a": np.zeros((1, w))}, outputs) for w in (2, 3) for outputs in ("y", "yz")]
    assert len(set(keys)) == 4
    assert one.key({"a": np.zeros((7, 2))}, "y") == keys[0]


@given(st.lists(st.integers(0, 5), min_size=1, max_size=6))
def test_what_was_merged_comes_apart_again(sizes: list[int]) -> None:
    requests = [{"x": np.random.default_rng(n).random((n, 3))} for n in sizes]
    merged = rows.merge(requests)
    assert rows.counts(merged) == [sum(sizes)]
    at = 0
    for request, size in zip(requests, sizes, strict=True):
        assert np.array_equal(rows.cut(merged, at, at + size)["x"], request["x"])
        at += size


@pytest.mark.parametrize(
    "name, verdict",
    [
        ("sum_and_difference", True), ("identity_float32", True), ("identity_bfloat16", True),
        ("identity_string", True), ("identity_bool", True), ("identity_of_all", True),
        ("picky", True), ("mixing", False),
    ],
)  # fmt: skip
def test_rows_that_depend_on_each_other_are_found_out(name: str, *, verdict: bool) -> None:
    assert asyncio.run(probe.are_independent(MODELS[name], None)) is verdict


def test_a_model_that_takes_none_of_our_inputs_is_not_trusted() -> None:
    def refuse(inputs: Any) -> Any:
        raise errors.InputError("needs 17", "inputs.x")

    odd = numpy_instance.NumpyInstance(
        "odd", {"x": ("float32", ("n", "w"))}, {"y": ("float32", ("n",))}, refuse
    )
    assert asyncio.run(probe.are_independent(odd, None)) is None
