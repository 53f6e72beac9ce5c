"""Scores to probabilities and rankings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from castiron import errors
from castiron.contract import steps
from castiron.server.steps import ranking

NUMBERS = st.lists(st.floats(-1e4, 1e4, width=32), min_size=1, max_size=20)


def f32(values: Any) -> np.ndarray:
    return np.array(values, np.float32)


@given(NUMBERS)
def test_softmax_sums_to_one_and_keeps_the_order(numbers: list[float]) -> None:
    scores = np.array([numbers], np.float32)
    shares = ranking.softmax(scores, steps.Softmax())
    assert shares.sum() == pytest.approx(1, abs=1e-5)
    assert shares.argmax() == scores.argmax() or shares.max() == shares[0, scores.argmax()]


@given(NUMBERS)
def test_sigmoid_never_overflows(numbers: list[float]) -> None:
    scores = np.array(numbers, np.float32)
    with np.errstate(over="raise"):
        shares = ranking.sigmoid(scores)
    assert ((shares >= 0) & (shares <= 1)).all()
    np.testing.assert_allclose(shares + ranking.sigmoid(-scores), 1, atol=1e-6)


def test_the_best_come_first_and_of_equal_ones_the_earlier() -> None:
    scores = f32([[0.1, 0.5, 0.5, np.nan, 0.9]])
    found = ranking.top_k(scores, steps.TopK(3))
    assert [each["index"] for each in found] == [4, 1, 2]
    assert [each["index"] for each in ranking.top_k(scores, steps.TopK(9, 0.4))] == [4, 1, 2]
    assert len(ranking.top_k(scores, steps.TopK(9))) == 4, "NaN is not a score"


@given(
    st.lists(st.sampled_from([0.0, 1.0, 2.0, np.inf, -np.inf, np.nan]), max_size=60),
    st.integers(1, 5),
)
def test_the_best_of_many_are_those_of_a_whole_sort(numbers: list[float], k: int) -> None:
    ranked = sorted(
        (index for index, number in enumerate(numbers) if not np.isnan(number)),
        key=lambda index: -numbers[index],
    )
    found = ranking.top_k(f32([numbers]), steps.TopK(k)) if numbers else []
    assert [each["index"] for each in found] == ranked[:k]
    assert {each["score"] for each in found} <= {0, 1, 2, "Infinity", "-Infinity"}


def test_names_are_given_as_far_as_they_go() -> None:
    found = ranking.top_k(f32([3, 2, 1]), steps.TopK(3))
    named = ranking.named(found, ("a", "b"))
    assert [each.get("label") for each in named] == ["a", "b", None]
    assert ranking.joined(named, steps.JoinText(", ")) == "a, b, 2"


def test_several_rows_are_no_one_answer() -> None:
    with pytest.raises(errors.CastironError, match=r"one row .* \[2, 3\]"):
        ranking.top_k(np.zeros((2, 3), np.float32), steps.TopK())
