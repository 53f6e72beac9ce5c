"""One small GET to a server on this machine, bounded in time and size, on the event loop.

Follows no redirect and knows no proxy: an address outside of this machine is refused before
anything is sent. Only ``source.py`` calls it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

import httptools

from castiron import errors
from castiron.server.security import loopback

_TIMEOUT_S = 5.0
_PIECE_BYTES = 65536


class FetchFault(Exception):
    """Why there is no answer."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where to ask, on loopback."""

    host: str
    port: int
    target: str

    def __str__(self) -> str:
        shown = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{shown}:{self.port}{self.target}"


def address_of(url: str) -> Address:
    """The parts of a URL. CastironError unless it is plain HTTP to this machine."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or 80
    except ValueError:
        raise errors.CastironError(f"--jwks {url}: expected a URL") from None
    if parts.scheme != "http" or parts.username is not None or not loopback.is_loopback(host):
        raise errors.CastironError(
            f"--jwks {url}: expected a file, or http:// to 127.0.0.1; run a helper on this machine "
            "that fetches keys from elsewhere over TLS"
        )
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if not target.isascii() or not target.isprintable() or " " in target:
        raise errors.CastironError(f"--jwks {url}: expected a URL without spaces")
    return Address(host, port, target)


async def get(address: Address, max_bytes: int) -> bytes:
    """The body of a 200 answer. OSError or FetchFault otherwise."""
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            return await _get(address, max_bytes)
    except TimeoutError:
        raise FetchFault(f"no complete answer within {_TIMEOUT_S:.0f} s") from None


async def _get(address: Address, max_bytes: int) -> bytes:
    reader, writer = await asyncio.open_connection(address.host, address.port)
    try:
        writer.write(
            f"GET {address.target} HTTP/1.1\r\nhost: {address.host}:{address.port}\r\n"
            "accept: application/json\r\nconnection: close\r\n\r\n".encode()
        )
        answer = _Answer(max_bytes)
        parser = httptools.HttpResponseParser(answer)
        answer.status_of = parser.get_status_code
        while not answer.is_complete and (piece := await reader.read(_PIECE_BYTES)):
            answer.feed(parser, piece)
        return answer.body()
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


class _Answer:
    """What the parser tells about the answer."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._size = 0
        self._parts: list[bytes] = []
        self._code = 0
        self.is_complete = False
        self.status_of: Callable[[], int] = int

    def feed(self, parser: httptools.HttpResponseParser, piece: bytes) -> None:
        """Read on; FetchFault for what is too long or no HTTP."""
        self._size += len(piece)
        if self._size > self._max_bytes + _PIECE_BYTES:
            raise FetchFault(f"expected at most {self._max_bytes} bytes")
        try:
            parser.feed_data(piece)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            raise FetchFault("expected an HTTP answer") from None

    def on_headers_complete(self) -> None:
        """The status is known."""
        self._code = self.status_of()

    def on_body(self, part: bytes) -> None:
        """A piece of the body."""
        self._parts.append(part)

    def on_message_complete(self) -> None:
        """All of it is there."""
        self.is_complete = True

    def body(self) -> bytes:
        """The body, once the other side has ended."""
        if self._code != 200:
            raise FetchFault(f"expected status 200, found {self._code or 'no answer'}")
        if not self.is_complete:
            raise FetchFault("the answer ended early")
        return b"".join(self._parts)
