"""One request and its one answer, as applications see them; the connection is behind it.

The body comes in parts (``take``, ``part``), or as one piece in memory of its own. An answer is
whole (``answer``), goes out part by part (``answer_in_parts``), or as it is made (``stream``).
"""

from __future__ import annotations

import asyncio
import contextlib
import http
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any, Protocol
from urllib.parse import unquote

from castiron.server import status
from castiron.server.http import known

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
        "_awaits_continue", "_connection", "_held", "_held_bytes", "_waiter", "asked", "head",
        "is_answered", "is_begun", "is_complete", "is_gone", "keeps_alive", "on_gone",
    )  # fmt: skip

    def __init__(self, connection: Connection, head: known.Head) -> None:
        self._connection = connection
        self.head = head
        self.keeps_alive = head.keeps_alive
        self._awaits_continue = head.awaits_continue
        self._held: list[Bytes] = []
        self._held_bytes = 0
        self._waiter: asyncio.Future[None] | None = None
        # begun: the application has it; complete: all of the body is here; answered: the answer
        # has begun; gone: there is nobody to answer.
        self.is_begun = self.is_complete = self.is_answered = self.is_gone = False
        self.on_gone: Callable[[], None] | None = None
        self.asked: object = None  # what the application made of it

    @property
    def method(self) -> str:
        """GET, POST, ..."""
        return self.head.method

    @property
    def raw_path(self) -> bytes:
        """The path as it came, without a query."""
        return self.head.raw_path

    @property
    def headers(self) -> Mapping[bytes, bytes]:
        """The last line of each name, in lower case."""
        return self.head.headers

    @property
    def header_lines(self) -> Headers:
        """All lines; names in lower case."""
        return self.head.lines

    @property
    def path(self) -> str:
        """The path as people write it."""
        return unquote(self.head.raw_path.decode("latin-1"))

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

    def complete(self, whole: Bytes | None = None) -> None:
        """All of the body has come; ``whole`` is it, if it did not come in parts."""
        if whole is not None:
            self._held = [whole]
        self.is_complete = True
        if self._waiter is not None:
            self._wake()

    def leave(self) -> None:
        """The client has gone."""
        if self.is_gone:
            return
        self.is_gone = True
        self.is_complete = False  # what is here of its body is dropped: ``part`` tells why
        self._held.clear()
        self._wake()
        if self.on_gone is not None:
            self.on_gone()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def take(self) -> Bytes:
        """What has come of the body since the last time."""
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
        if not self.is_answered and not self.head.is_old:
            self._connection.write(_CONTINUE)

    def answer(self, code: int, headers: Headers, body: Bytes, lines: bytes = b"") -> None:
        """Write the whole answer; nothing when the client has gone. ``lines`` are more headers,
        written already.
        """
        head = self._begin(code, headers, lines)
        if head:
            self._connection.write(head if self.head.method == "HEAD" else head + body)
            self._connection.answered(self)

    async def answer_in_parts(
        self, code: int, headers: Headers, parts: Sequence[Bytes], lines: bytes = b""
    ) -> None:
        """Write an answer whose parts are too large to be put together."""
        head = self._begin(code, headers, lines)
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
        if not self.head.is_old:
            headers = [*headers, (b"transfer-encoding", b"chunked")]
        self._connection.write(self._begin(code, headers))
        with contextlib.suppress(status.ClientGone):
            async with contextlib.aclosing(parts):
                async for part in parts:
                    await self._write_chunk(part)
        if not self.is_gone:
            self._connection.write(b"0\r\n\r\n" if not self.head.is_old else b"")
            self._connection.answered(self)

    async def _write_chunk(self, part: Bytes) -> None:
        await self._connection.room()
        if self.is_gone:
            raise status.ClientGone("the client left before its answer was complete")
        if part and not self.head.is_old:
            part = b"".join((b"%x\r\n" % len(part), part, b"\r\n"))
        self._connection.write(part)

    def _begin(self, code: int, headers: Headers, lines: bytes = b"") -> bytes:
        """The head of the answer, empty when there is nobody to read it."""
        assert not self.is_answered, "a request is answered once"
        if self._held:
            self._held.clear()
        if self.is_gone:
            return b""
        self.is_answered = True
        if not self.is_complete:
            # Whether its body follows now is the client's choice; only a close makes it certain.
            self.keeps_alive &= not self._awaits_continue and not self._connection.outlasts(self)
        connection = self._connection
        if headers:
            lines += written(headers)
        if not self.keeps_alive or connection.ends_now:
            self.keeps_alive = False
            lines += b"connection: close\r\n"
        return b"".join((STATUS_LINES[code], connection.date_line, lines, b"\r\n"))


def written(headers: Headers) -> bytes:
    """The lines of these headers."""
    lines = b"".join([b"%b: %b\r\n" % line for line in headers])
    assert lines.count(b"\n") == len(headers), "a header holds the end of a line"
    return lines
