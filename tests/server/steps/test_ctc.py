"""Lines of text out of scores for each place."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from castiron import errors
from castiron.contract import steps
from castiron.server.steps import ctc


def f32(values: Any) -> np.ndarray:
    return np.array(values, np.float32)


def scores(classes: list[int], count: int) -> np.ndarray:
    return np.eye(count, dtype=np.float32)[classes][None] * 0.5 + 0.1


def test_repeats_are_merged_blanks_dropped_and_a_blank_keeps_two_apart() -> None:
    table = scores([0, 1, 1, 0, 2, 0, 2, 2, 0], 4)
    assert ctc.text(table, ("a", "b", " "), 0) == "abb"
    assert ctc.text(table.transpose(1, 0, 2), ("a", "b", " "), 0) == "abb"


def test_the_blank_may_be_the_last_class() -> None:
    assert ctc.text(scores([2, 0, 2, 1], 3), ("a", "b"), 2) == "ab"


def test_spaces_at_the_ends_are_no_text() -> None:
    assert ctc.text(scores([3, 0, 1, 3, 2, 3], 4), ("a", "b", " "), 0) == "a b"


@given(st.lists(st.integers(0, 5), max_size=30))
def test_text_is_what_the_definition_says(classes: list[int]) -> None:
    wanted = "".join("abcde"[each - 1] for each, _ in itertools.groupby(classes) if each)
    assert ctc.text(scores(classes, 6), tuple("abcde"), 0) == wanted


def test_the_score_is_the_mean_of_what_was_kept() -> None:
    table = f32([[[0.1, 0.9], [0.4, 0.6], [0.8, 0.2], [0.3, 0.7]]])
    assert ctc.score(table, steps.CtcScore()).item() == pytest.approx((0.9 + 0.7) / 2)
    assert ctc.score(scores([0, 0], 3), steps.CtcScore()).item() == 0


def test_two_lines_at_once_are_not_one() -> None:
    with pytest.raises(errors.CastironError, match="one line"):
        ctc.text(np.zeros((2, 3, 4), np.float32), ("a",), 0)
