"""One request and its one answer, as applications see them; the connection is behind it.

The body comes in parts (``take``, ``part``), or as one piece in memory of its own. An answer is
whole (``answer``), goes out part by part (``answer_in_parts``), or as it is made (``stream``).
"""

from __future__ import annotations

import asyncio
import contextlib
import http
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any, Protocol
from urllib.parse import unquote

from castiron.server import status

Headers = list[tuple[bytes, bytes]]
Bytes = bytes | memoryview

STATUS_LINES = {
    each.value: b"HTTP/1.1 %d %b\r\n" % (each.value, each.phrase.encode())
    for each in http.HTTPStatus
}
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
# A client that sends faster than its body is read waits at so many bytes.
_HIGH_WATER = 64 << 10


class Connection(Protocol):
    """What an exchange needs of ``connection.py``."""

    peer: str
    transport: Any

    @property
    def address(self) -> str:
        """The client's address and port."""

    @property
    def date_line(self) -> bytes:
        """The header line that tells the time."""

    @property
    def ends_now(self) -> bool:
        """Whether the answer that is due now is the last one."""

    def pause_reading(self) -> None:
        """Let the client wait with what it sends."""

    def resume_reading(self) -> None:
        """Let it send on."""

    def write(self, data: Bytes) -> None:
        """Send."""

    async def room(self) -> None:
        """Wait until the client has read enough."""

    def answered(self, done: Exchange) -> None:
        """All of an answer was written."""

    def outlasts(self, asked: Exchange) -> bool:
        """Whether more of a body may come than is worth reading."""


class Exchange:
    """A request, from its head to the end of its answer."""

    __slots__ = (
        "_awaits_continue", "_connection", "_held", "_held_bytes", "_is_old", "_waiter", "_whole",
        "asked", "header_lines", "headers", "is_answered", "is_begun", "is_complete", "is_gone",
        "keeps_alive", "method", "on_gone", "raw_path",
    )  # fmt: skip

    def __init__(
        self,
        connection: Connection,
        method: str,
        raw_path: bytes,
        header_lines: Headers,
        *,
        keeps_alive: bool,
        is_old: bool,
    ) -> None:
        self._connection = connection
        self.method = method
        self.raw_path = raw_path
        self.header_lines = header_lines
        # The last line of each name; ``heads.py`` refuses those that may stand only once.
        self.headers = headers = dict(header_lines)
        self.keeps_alive = keeps_alive
        self._is_old = is_old  # HTTP/1.0, which knows neither chunks nor interim answers
        self._awaits_continue = (
            not is_old and headers.get(b"expect", b"").lower() == b"100-continue"
        )
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._whole: memoryview | None = None
        self._waiter: asyncio.Future[None] | None = None
        self.is_begun = False
        self.is_complete = False  # all of the body is here
        self.is_answered = False  # the answer has begun
        self.is_gone = False  # there is nobody to answer
        self.on_gone: Callable[[], None] | None = None
        self.asked: object = None  # what the application made of it

    @property
    def path(self) -> str:
        """The path as people write it."""
        return unquote(self.raw_path.decode("latin-1"))

    @property
    def peer(self) -> str:
        """The client's address, without its port."""
        return self._connection.peer

    @property
    def connection(self) -> Connection:
        """Where the client is."""
        return self._connection

    # The body, from the connection to whoever reads it.

    def add(self, part: bytes) -> None:
        """A part of the body came."""
        if self.is_answered:
            return
        self._held.append(part)
        self._held_bytes += len(part)
        if self._held_bytes > _HIGH_WATER:
            self._connection.pause_reading()
        self._wake()

    def complete(self, whole: memoryview | None = None) -> None:
        """All of the body has come; ``whole`` is its memory, if it had some of its own."""
        self._whole = whole
        self.is_complete = True
        self._wake()

    def leave(self) -> None:
        """The client has gone."""
        if self.is_gone:
            return
        self.is_gone = True
        self._held.clear()
        self._whole = None
        self._wake()
        if self.on_gone is not None:
            self.on_gone()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def take(self) -> Bytes:
        """What has come of the body since the last time."""
        if self._whole is not None:
            whole, self._whole = self._whole, None
            return whole
        held = self._held
        self._held_bytes = 0
        if len(held) == 1:
            return held.pop()
        taken = b"".join(held)
        held.clear()
        return taken

    async def part(self) -> Bytes:
        """The next part of the body; the last one when ``is_complete``. Raises ClientGone."""
        if self._awaits_continue and not self.is_complete:
            self._awaits_continue = False
            self._connection.write(_CONTINUE)
        if not self.is_complete and not self._held and not self.is_gone:
            self._connection.resume_reading()
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
            self._waiter = None
        if self.is_gone:
            raise status.ClientGone("the client left before its body was complete")
        return self.take()

    # The answer.

    def tell_interim(self) -> None:
        """Let the client know that its answer is still to come, if it may be told so."""
        if not self.is_answered and not self._is_old:
            self._connection.write(_CONTINUE)

    def answer(self, code: int, headers: Headers, body: Bytes) -> None:
        """Write the whole answer; nothing when the client has gone."""
        head = self._begin(code, headers)
        if head:
            self._connection.write(head if self.method == "HEAD" else head + body)
            self._connection.answered(self)

    async def answer_in_parts(self, code: int, headers: Headers, parts: Sequence[Bytes]) -> None:
        """Write an answer whose parts are too large to be put together."""
        head = self._begin(code, headers)
        if not head:
            return
        self._connection.write(head + parts[0])
        for part in parts[1:]:
            await self._connection.room()
            if self.is_gone:
                return
            self._connection.write(part)
        self._connection.answered(self)

    async def stream(self, code: int, headers: Headers, parts: AsyncGenerator[Bytes, None]) -> None:
        """Write an answer of unknown length as its parts come, chunked.

        HTTP/1.0 knows no chunks: there its end is the end of the connection.
        """
        if not self._is_old:
            headers = [*headers, (b"transfer-encoding", b"chunked")]
        self._connection.write(self._begin(code, headers))
        with contextlib.suppress(status.ClientGone):
            async with contextlib.aclosing(parts):
                async for part in parts:
                    await self._write_chunk(part)
        if not self.is_gone:
            self._connection.write(b"0\r\n\r\n" if not self._is_old else b"")
            self._connection.answered(self)

    async def _write_chunk(self, part: Bytes) -> None:
        await self._connection.room()
        if self.is_gone:
            raise status.ClientGone("the client left before its answer was complete")
        if part and not self._is_old:
            part = b"".join((b"%x\r\n" % len(part), part, b"\r\n"))
        self._connection.write(part)

    def _begin(self, code: int, headers: Headers) -> bytes:
        """The head of the answer, empty when there is nobody to read it."""
        assert not self.is_answered, "a request is answered once"
        self._held.clear()
        if self.is_gone:
            return b""
        self.is_answered = True
        if not self.is_complete:
            # Whether its body follows now is the client's choice; only a close makes it certain.
            self.keeps_alive &= not self._awaits_continue and not self._connection.outlasts(self)
        lines = [b"%b: %b\r\n" % line for line in headers]
        if not self.keeps_alive or self._connection.ends_now:
            self.keeps_alive = False
            lines.append(b"connection: close\r\n")
        head = b"".join((STATUS_LINES[code], self._connection.date_line, *lines))
        assert head.count(b"\n") == len(lines) + 2, "a header holds the end of a line"
        return head + b"\r\n"
