"""Rows of boxes and scores to the best boxes that do not overlap (greedy suppression)."""

from __future__ import annotations

import math

import numpy as np

from castiron import errors
from castiron.contract import steps
from castiron.server.steps import ranking
from castiron.server.steps.place import Place

# Of more candidates than this the weakest are left out, so that the time has a bound.
_MOST_CANDIDATES = 2_000


def suppress(output: np.ndarray, step: steps.Nms, place: Place | None) -> ranking.Ranking:
    """The best boxes as ``{box, index, score}``, the surest first.

    Boxes are corners in pixels of the client's picture where ``place`` is known, else in the
    model's own units.
    """
    rows = _rows(output, step)
    first = 5 if step.has_objectness else 4
    classes = rows[:, first:]
    best = classes.argmax(axis=1) if classes.shape[1] else np.zeros(len(rows), np.int64)
    scores = classes.max(axis=1) if classes.shape[1] else np.ones(len(rows), np.float32)
    if step.has_objectness:
        scores = scores * rows[:, 4]
    chosen = np.flatnonzero(scores >= step.min_score)
    chosen = chosen[np.argsort(-scores[chosen], kind="stable")][:_MOST_CANDIDATES]
    corners = _corners(rows[chosen, :4], step.form)
    groups = best[chosen] if step.is_per_class else np.zeros(len(chosen), np.int64)
    with np.errstate(invalid="ignore", over="ignore"):  # boxes without end overlap nothing
        kept = _greedy(corners, groups, step)
        shown = corners if place is None else _back(corners, place)
    return [
        {
            "box": [ranking.as_number(edge) for edge in shown[index].tolist()],
            "index": int(best[chosen[index]]),
            "score": ranking.as_number(float(scores[chosen[index]])),
        }
        for index in kept
    ]


def _rows(output: np.ndarray, step: steps.Nms) -> np.ndarray:
    """One row for each box, float32."""
    rows = np.moveaxis(output, step.axis, -1)
    if rows.ndim < 2 or math.prod(rows.shape[:-2]) != 1:
        raise errors.CastironError(
            f"expected the boxes of one picture from the model, found {list(output.shape)}"
        )
    return rows.reshape(rows.shape[-2:]).astype(np.float32)


def _corners(boxes: np.ndarray, form: str) -> np.ndarray:
    if form == "xyxy":
        return boxes
    half = boxes[:, 2:] / 2
    return np.concatenate([boxes[:, :2] - half, boxes[:, :2] + half], axis=1)


def _greedy(corners: np.ndarray, groups: np.ndarray, step: steps.Nms) -> list[int]:
    """Indices of boxes kept; ``corners`` come in order of their scores."""
    sizes = np.maximum(corners[:, 2:] - corners[:, :2], 0)
    areas = sizes[:, 0] * sizes[:, 1]
    is_left = np.ones(len(corners), np.bool_)
    kept: list[int] = []
    for index in range(len(corners)):
        if len(kept) == step.max_boxes:
            break
        if not is_left[index]:
            continue
        kept.append(index)
        low = np.maximum(corners[:, :2], corners[index, :2])
        high = np.minimum(corners[:, 2:], corners[index, 2:])
        shared = np.maximum(high - low, 0).prod(axis=1)
        union = areas + areas[index] - shared
        overlaps = np.divide(shared, union, out=np.zeros_like(shared), where=union > 0)
        is_left &= (overlaps < step.max_overlap) | (groups != groups[index])
    return kept


def _back(corners: np.ndarray, place: Place) -> np.ndarray:
    """Corners in the client's picture, cut at its edges."""
    scale = np.array([place.scale_x, place.scale_y] * 2, np.float32)
    offset = np.array([place.left, place.top] * 2, np.float32)
    most = np.array([place.width, place.height] * 2, np.float32)
    found: np.ndarray = np.clip((corners - offset) / scale, 0, most)
    return found
