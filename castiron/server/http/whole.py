"""Memory of its own for one large body, filled from the socket without a copy in between.

The body lies so that its first raw tensor is aligned, and tensors are read where they lie.
``connection.py`` decides which bodies are worth it.
"""

from __future__ import annotations

import numpy as np

_ALIGN_BYTES = 64


class Whole:
    """Memory for one body of ``size`` bytes whose JSON takes the first ``json_bytes``."""

    __slots__ = ("_filled", "_size", "_view")

    def __init__(self, size: int, json_bytes: int) -> None:
        memory = np.empty(size + _ALIGN_BYTES, np.uint8)
        start = -(memory.ctypes.data + json_bytes) % _ALIGN_BYTES
        self._view: memoryview | None = memory.data[start : start + size]
        self._size = size
        self._filled = 0

    def add(self, piece: bytes) -> None:
        """Copy a piece that came together with the head."""
        if self._view is not None:
            self._view[self._filled : self._filled + len(piece)] = piece
        self._filled += len(piece)

    def room(self, scratch: memoryview) -> memoryview:
        """Where the next bytes go, never more than belong to this body."""
        if self._view is None:
            return scratch[: self._size - self._filled]
        return self._view[self._filled :]

    def advance(self, size: int) -> bool:
        """So many bytes were put into the room; whether the body is complete."""
        self._filled += size
        return self._filled == self._size

    def drop(self) -> None:
        """The request was answered without its body: the rest is read and forgotten."""
        self._view = None

    def take(self) -> memoryview | None:
        """The complete body, None after ``drop``."""
        return self._view
