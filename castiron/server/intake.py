"""What the event loop fills with received bytes: a shared scratch buffer, or a large body's own memory.

A large body of declared length goes from the socket straight to where its tensors will be read,
placed so that the first raw tensor is aligned. uvloop takes this path only for a protocol that
is no ``asyncio.Protocol``, hence a class around ``edge.Edge``, which does all the thinking.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from castiron.server import edge

SCRATCH_BYTES = 64 << 10
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


class Intake(asyncio.BufferedProtocol):
    """One connection as the event loop sees it."""

    __slots__ = ("_edge", "_scratch")

    def __init__(self, inner: edge.Edge, scratch: memoryview) -> None:
        self._edge = inner
        # Shared by all connections: the loop fills it and tells so in one go.
        self._scratch = scratch

    def connection_made(self, transport: Any) -> None:
        """A client has connected."""
        self._edge.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has gone."""
        self._edge.connection_lost(exc)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where to put what comes next."""
        del sizehint
        return self._edge.room(self._scratch)

    def buffer_updated(self, nbytes: int) -> None:
        """So many bytes were put there."""
        if self._edge.whole is None:
            self._edge.data_received(bytes(self._scratch[:nbytes]))
        else:
            self._edge.body_received(nbytes)

    def eof_received(self) -> None:
        """The client sends no more, which counts as gone."""
        self._edge.eof_received()

    def pause_writing(self) -> None:
        """The client does not read."""
        self._edge.pause_writing()

    def resume_writing(self) -> None:
        """The client reads again."""
        self._edge.resume_writing()
