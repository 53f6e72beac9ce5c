"""Answers of a batch as they come: one part of ``multipart/mixed`` (RFC 2046) for each.

Each part is what infer would have answered, with its length, so that a reader need not look for
boundaries; ``X-Request-Index`` says which request it belongs to. What becomes of each request is
``rest_batch.py``.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from typing import Any

from castiron.server import reply

# The JSON of one answer, and its raw tensors.
Piece = tuple[bytes, list[bytes | memoryview]]
KIND = "multipart/mixed"

# Small parts that are there at the same time leave together.
_JOINED_BYTES = 1 << 16


def is_wanted(headers: Mapping[bytes, bytes]) -> bool:
    """Whether the caller reads parts, and said so."""
    return KIND.encode() in headers.get(b"accept", b"").lower()


class Parts:
    """The body: runs all, and gives each answer when it is there."""

    __slots__ = ("_boundary", "_done", "_on_end", "_tasks")

    def __init__(
        self, asked: Sequence[Coroutine[Any, Any, Piece]], on_end: Callable[[], None]
    ) -> None:
        self._on_end = on_end
        self._boundary = secrets.token_hex(16)
        self._done: asyncio.Queue[tuple[int, Piece | BaseException]] = asyncio.Queue()
        self._tasks = [
            asyncio.create_task(self._numbered(index, each)) for index, each in enumerate(asked)
        ]

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """The head of the answer; how long it will be is not known."""
        return [(b"content-type", f"{KIND}; boundary={self._boundary}".encode())]

    async def _numbered(self, index: int, asked: Coroutine[Any, Any, Piece]) -> None:
        found: Piece | BaseException
        try:
            found = await asked
        except Exception as error:  # noqa: BLE001  raised again where the answer is written
            found = error
        self._done.put_nowait((index, found))

    async def body(self) -> AsyncGenerator[bytes]:
        """All parts in the order in which they are done. Ends what is under way when closed."""
        try:
            left = len(self._tasks)
            while left:
                parts = await self._some()
                left -= len(parts)
                yield b"".join(parts)
            yield f"--{self._boundary}--\r\n".encode()
        finally:
            self._on_end()
            for task in self._tasks:
                task.cancel()

    async def _some(self) -> list[bytes]:
        """The next part, and small ones that are there as well."""
        parts = [await self._one()]
        size = len(parts[0])
        while size < _JOINED_BYTES and not self._done.empty():
            parts.append(await self._one())
            size += len(parts[-1])
        return parts

    async def _one(self) -> bytes:
        index, found = await self._done.get()
        if isinstance(found, BaseException):
            raise found
        return self._part(index, found)

    def _part(self, index: int, piece: Piece) -> bytes:
        head, raw = piece
        whole = reply.joined(head, raw)
        lines = [b"--" + self._boundary.encode(), b"X-Request-Index: %d" % index]
        lines += [name.title() + b": " + value for name, value in whole.headers]
        return b"\r\n".join([*lines, b"", b"".join(whole.parts), b""])
