"""A connection whose transport and client are this test: fed by hand, read by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from castiron.server import meters, settings
from castiron.server.http import connection, exchange, port

_HIGH_WATER = 64 << 10
_MANY_TURNS = 1500


class Transport:
    """Where a connection writes to; with ``is_held`` nobody reads, as ``read`` does."""

    def __init__(self) -> None:
        self.written = b""
        self.ended = ""
        self.is_paused = self.is_held = False
        self.held_bytes = 0
        self.most_held_bytes = 0
        self.protocol: connection.Connection | None = None

    def write(self, data: bytes | memoryview) -> None:
        self.written += bytes(data)
        if not self.is_held:
            return
        was_low = self.held_bytes <= _HIGH_WATER
        self.held_bytes += len(data)
        self.most_held_bytes = max(self.most_held_bytes, self.held_bytes)
        if was_low and self.held_bytes > _HIGH_WATER:
            assert self.protocol is not None
            self.protocol.pause_writing()

    def read(self, size: int) -> None:
        """The client takes so much of what is held for it."""
        assert self.protocol is not None
        was_high = self.held_bytes > _HIGH_WATER
        self.held_bytes = max(0, self.held_bytes - size)
        if was_high and not self.held_bytes:
            self.protocol.resume_writing()

    def get_write_buffer_size(self) -> int:
        return self.held_bytes

    def close(self) -> None:
        self.ended = self.ended or "closed"

    def abort(self) -> None:
        self.ended = "aborted"

    def is_closing(self) -> bool:
        return bool(self.ended)

    def get_extra_info(self, name: str) -> Any:
        return ("127.0.0.1", 7) if name == "peername" else None

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None: ...


def opened(application: port.Application, **bounds: Any) -> tuple[connection.Connection, Transport]:
    return connected(port.Port(application, settings.Settings(**bounds), meters.Meters(dict)))


def connected(shared: port.Port) -> tuple[connection.Connection, Transport]:
    """One more client."""
    made = connection.Connection(shared)
    transport = Transport()
    transport.protocol = made
    made.connection_made(transport)
    return made, transport


def feed(to: connection.Connection, data: bytes, size: int = 1 << 16) -> None:
    """As the event loop does, in pieces."""
    while data:
        room = to.get_buffer(-1)
        piece = data[: min(size, len(room))]
        room[: len(piece)] = piece
        to.buffer_updated(len(piece))
        data = data[len(piece) :]


def post(body: bytes, path: str = "/p") -> bytes:
    return f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


async def echo(asked: exchange.Exchange) -> None:
    body = b""
    while not asked.is_complete:
        body += bytes(await asked.part())
    body += bytes(asked.take())
    asked.answer(200, [(b"content-length", b"%d" % len(body))], body)


def bodies(written: bytes) -> list[bytes]:
    """Those of all answers."""
    found = []
    while written:
        head, _, rest = written.partition(b"\r\n\r\n")
        size = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        found.append(rest[:size])
        written = rest[size:]
    return found


async def settle() -> None:
    """Let the loop do all that follows from what was fed; turns, since time proves nothing."""
    for _ in range(_MANY_TURNS):
        await asyncio.sleep(0)


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(main())
