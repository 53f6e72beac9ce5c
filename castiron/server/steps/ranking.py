"""Scores to probabilities, and to the best of them with their names."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from castiron import errors
from castiron.contract import steps

Ranking = list[dict[str, Any]]


def softmax(scores: np.ndarray, step: steps.Softmax) -> np.ndarray:
    """Along one axis, in float32 or wider; the greatest score is taken off first."""
    wide = _wide(scores)
    with np.errstate(invalid="ignore"):  # infinities become NaN, which is none of the best
        raised = np.exp(wide - wide.max(axis=step.axis, keepdims=True))
        shares: np.ndarray = raised / raised.sum(axis=step.axis, keepdims=True)
    return shares


def sigmoid(scores: np.ndarray) -> np.ndarray:
    """Each for itself, without overflow on either side."""
    wide = _wide(scores)
    small = np.exp(-np.abs(wide))
    shares: np.ndarray = np.where(wide >= 0, 1 / (1 + small), small / (1 + small))
    return shares


def _wide(scores: np.ndarray) -> np.ndarray:
    return scores if scores.dtype == np.float64 else scores.astype(np.float32)


def one_row(array: np.ndarray) -> np.ndarray:
    """The last axis of an array whose other dims are 1; the server runs one item at a time."""
    if math.prod(array.shape[:-1]) != 1:
        raise errors.CastironError(
            f"expected one row of scores from the model, found the shape {list(array.shape)}"
        )
    return array.reshape(-1)


def top_k(scores: np.ndarray, step: steps.TopK) -> Ranking:
    """The ``k`` greatest, the greatest first, of equal ones the earlier first; NaN is none."""
    row = _wide(one_row(scores))
    places = np.flatnonzero(~np.isnan(row))
    if places.size > 4 * step.k:  # sorting a vocabulary for five words would take milliseconds
        values = row[places]
        places = places[values >= np.partition(values, values.size - step.k)[values.size - step.k]]
    order = places[np.argsort(-row[places], kind="stable")][: step.k]
    least = -np.inf if step.threshold is None else step.threshold
    return [
        {"index": index, "score": as_number(float(row[index]))}
        for index in order.tolist()
        if row[index] >= least
    ]


def as_number(item: float) -> float | str:
    """As the protocol writes it: NaN and infinities are words (docs/protocol.md)."""
    if math.isfinite(item):
        return item
    return "NaN" if math.isnan(item) else "Infinity" if item > 0 else "-Infinity"


def named(found: Ranking, names: tuple[str, ...]) -> Ranking:
    """The same with names; a place beyond the last name has none."""
    for each in found:
        if each["index"] < len(names):
            each["label"] = names[each["index"]]
    return found


def joined(found: Ranking, step: steps.JoinText) -> str:
    """The names as one text, the number where there is no name."""
    return step.separator.join(str(each.get("label", each["index"])) for each in found)
