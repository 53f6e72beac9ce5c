"""Work on the event loop that is long for its size, and no reason to think that a worker hangs.

Decoding and writing large JSON is done in one piece, in which no beat can be given. What begins
such a piece says how much it is; the worker's link to its supervisor grants the time for it.
"""

from __future__ import annotations

from collections.abc import Callable

# Smaller pieces are over before anybody could miss a beat.
LARGE_BYTES = 1 << 20
# Ten times as long as it takes on a core of one's own, since a core may be shared.
_NS_PER_BYTE = 200

_grants: list[Callable[[int], None]] = []


def grant(by: Callable[[int], None]) -> None:
    """Let this function know by how many nanoseconds the next beat may be late."""
    _grants[:] = [by]


def ask_for(size_bytes: int) -> None:
    """A piece of work on so many bytes of JSON, or on values that make as many, begins now."""
    if size_bytes > LARGE_BYTES:
        for by in _grants:
            by(size_bytes * _NS_PER_BYTE)
