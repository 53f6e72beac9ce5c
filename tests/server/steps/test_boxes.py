"""Suppression of boxes, against the plain definition of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from castiron import errors
from castiron.contract import steps
from castiron.server.steps import boxes
from castiron.server.steps.place import Place


def f32(values: Any) -> np.ndarray:
    return np.array(values, np.float32)


def overlap(one: np.ndarray, other: np.ndarray) -> float:
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    shared = max(width, 0) * max(height, 0)
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (one, other)]
    union = sum(areas) - shared
    return float(shared / union) if union > 0 else 0.0


def plain(rows: np.ndarray, step: steps.Nms) -> list[int]:
    """One box after the other, the definition word by word."""
    scores, classes = rows[:, 4:].max(axis=1), rows[:, 4:].argmax(axis=1)
    kept: list[int] = []
    for index in np.argsort(-scores, kind="stable").tolist():
        alike = [at for at in kept if not step.is_per_class or classes[at] == classes[index]]
        near = [at for at in alike if overlap(rows[at], rows[index]) >= step.max_overlap]
        if scores[index] >= step.min_score and not near and len(kept) < step.max_boxes:
            kept.append(index)
    return kept


@st.composite
def tables(draw: st.DrawFn) -> np.ndarray:
    count, classes = draw(st.integers(0, 30)), draw(st.integers(1, 4))
    random = np.random.default_rng(draw(st.integers(0, 999)))
    corners = random.integers(0, 12, (count, 2))
    sizes = random.integers(0, 12, (count, 2))
    scores = random.random((count, classes))
    return np.concatenate([corners, corners + sizes, scores], axis=1).astype(np.float32)


@given(tables(), st.booleans(), st.sampled_from([1, 3, 100]))
@settings(max_examples=150, deadline=None)
def test_exactly_the_boxes_of_the_definition_are_kept(
    rows: np.ndarray, is_per_class: bool, max_boxes: int
) -> None:
    step = steps.Nms(is_per_class=is_per_class, max_boxes=max_boxes)
    found = boxes.suppress(rows[None], step, None)
    wanted = plain(rows, step)
    assert [each["box"] for each in found] == rows[wanted, :4].tolist()
    assert [each["index"] for each in found] == rows[wanted, 4:].argmax(axis=1).tolist()


def test_numbers_may_stand_along_another_axis_with_centres_and_objectness() -> None:
    row = f32([[10, 20, 4, 6, 0.5, 0.2, 0.8]])
    step = steps.Nms(form="cxcywh", has_objectness=True, axis=1, min_score=0.3)
    (found,) = boxes.suppress(row.T[None], step, None)
    assert found == {"box": [8, 17, 12, 23], "index": 1, "score": pytest.approx(0.4)}


def test_boxes_go_back_to_the_clients_picture_and_end_at_its_edges() -> None:
    place = Place(200, 100, 0.5, 0.5, 0, 25)
    row = f32([[[10, 35, 120, 60, 0.9]]])
    (found,) = boxes.suppress(row, steps.Nms(), place)
    assert found["box"] == [20, 20, 200, 70]


def test_scores_that_are_no_numbers_find_nothing() -> None:
    rows = np.full((1, 5, 6), np.nan, np.float32)
    assert boxes.suppress(rows, steps.Nms(), None) == []


def test_boxes_without_end_are_told_in_words() -> None:
    rows = np.array([[[-np.inf, 0, np.inf, 9, 0.9], [0, 0, 3e38, 3e38, 0.8]]], np.float32)
    first, second = boxes.suppress(rows, steps.Nms(), None)
    assert first["box"] == ["-Infinity", 0, "Infinity", 9]
    assert second["score"] == pytest.approx(0.8)


def test_a_thousand_overlapping_boxes_take_milliseconds() -> None:
    rows = np.tile(f32([0, 0, 9, 9, 0.9]), (8400, 1))
    assert len(boxes.suppress(rows[None], steps.Nms(), None)) == 1


def test_two_pictures_at_once_are_not_one() -> None:
    with pytest.raises(errors.CastironError, match=r"one picture .* \[2, 3, 6\]"):
        boxes.suppress(np.zeros((2, 3, 6), np.float32), steps.Nms(), None)
