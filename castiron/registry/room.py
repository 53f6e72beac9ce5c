"""Which versions make room in memory for another: as few as will do, and none in use.

Sizes are measured bytes, never guesses. Resting versions go before answering ones; of each kind
the single smallest one that is enough goes, or else the largest ones until it is enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Held:
    """One version in memory; ``name`` is of the caller's choice."""

    name: object
    size_bytes: int
    is_free: bool
    """Neither pinned nor in use."""

    is_resting: bool
    """It answers nobody and is only kept for a return."""


def victims(held: Sequence[Held], needed_bytes: int, budget_bytes: int) -> list[object] | None:
    """The names of those that must go for ``needed_bytes`` more; None when that cannot be."""
    excess = sum(each.size_bytes for each in held) + needed_bytes - budget_bytes
    chosen: list[object] = []
    for is_resting in (True, False):
        kind = [each for each in held if each.is_free and each.is_resting == is_resting]
        kind.sort(key=_size)
        while excess > 0 and kind:
            enough = next((each for each in kind if each.size_bytes >= excess), kind[-1])
            kind.remove(enough)
            chosen.append(enough.name)
            excess -= enough.size_bytes
    return chosen if excess <= 0 else None


def _size(held: Held) -> int:
    return held.size_bytes
