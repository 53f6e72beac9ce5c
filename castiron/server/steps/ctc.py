"""Scores of characters at each place to a line of text (CTC, greedy)."""

from __future__ import annotations

import numpy as np

from castiron import errors
from castiron.contract import steps


def text(scores: np.ndarray, characters: tuple[str, ...], blank: int) -> str:
    """The best class of each place, repeats merged, blanks dropped; no space at either end.

    Class numbers skip the blank: the first character is class 0, or 1 when the blank is 0.
    """
    best, is_kept = _best(scores, blank)
    kept = best[is_kept]
    places = kept - (kept > blank)
    count = len(characters)
    return "".join(characters[place] for place in places.tolist() if place < count).strip()


def score(scores: np.ndarray, step: steps.CtcScore) -> np.ndarray:
    """The mean of the scores of the characters that are kept; 0 when there is none."""
    best, is_kept = _best(scores, step.blank)
    values = np.take_along_axis(_table(scores), best[:, None], axis=1)[is_kept]
    return np.asarray(values.astype(np.float64).mean() if values.size else 0.0)


def _best(scores: np.ndarray, blank: int) -> tuple[np.ndarray, np.ndarray]:
    best = _table(scores).argmax(axis=1)
    before = np.concatenate([[blank], best[:-1]]) if best.size else best
    return best, (best != blank) & (best != before)


def _table(scores: np.ndarray) -> np.ndarray:
    """[places, classes] of one line; its batch dim comes first or second."""
    if scores.ndim == 3 and 1 in scores.shape[:2]:
        scores = scores[0] if scores.shape[0] == 1 else scores[:, 0]
    if scores.ndim != 2:
        raise errors.CastironError(
            f"expected the scores of one line from the model, found {list(scores.shape)}"
        )
    return scores
