"""Reading a request's body within limits: size, memory of all, compression.

Limits hold before bytes are buffered where a length is declared, and while they come otherwise;
a compressed body is bounded by what comes out of it. Time is bounded by ``http/connection.py``.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from castiron.server import settings as server_settings
from castiron.server import status

if TYPE_CHECKING:
    from castiron.server.http import exchange as exchanges

Headers = Mapping[bytes, bytes]

_WINDOWS = {b"gzip": 16 + zlib.MAX_WBITS, b"deflate": zlib.MAX_WBITS}


class Budget:
    """Bytes that all bodies of the process may hold at once."""

    __slots__ = ("held", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0

    def take(self, size: int) -> None:
        """Reserve; Refusal when it does not fit now."""
        if self.held + size > self.limit:
            raise status.Refusal(
                503, "bodies of other requests fill the memory for them; retry", status.OVERLOADED
            )
        self.held += size

    def give(self, size: int) -> None:
        """Return what was taken."""
        self.held -= size


class Body:
    """One request's body; ``release`` gives its bytes back to the budget."""

    __slots__ = ("_budget", "_taken", "limit")

    def __init__(self, settings: server_settings.Settings, budget: Budget) -> None:
        self.limit = settings.max_body_bytes
        self._budget = budget
        self._taken = 0

    def release(self) -> None:
        """Return what this body reserved."""
        self._budget.give(self._taken)
        self._taken = 0

    def whole(self, exchange: exchanges.Exchange) -> bytes | memoryview:
        """All bytes of a body that has come, and is not compressed. Refusal with 413 or 503."""
        body = exchange.take()
        self.grow_to(len(body))
        return body

    async def read(self, exchange: exchanges.Exchange) -> bytes | memoryview:
        """All bytes, decompressed. Refusal with 413, 415 or 503; ClientGone when it left."""
        headers = exchange.headers
        encoding = headers.get(b"content-encoding", b"identity").strip().lower()
        if encoding != b"identity" and encoding not in _WINDOWS:
            raise status.Refusal(
                415, f"headers.content-encoding: expected gzip or deflate, found {encoding!r}",
                headers=((b"accept-encoding", b"gzip, deflate"),),
            )  # fmt: skip
        self._expect(headers)
        body = exchange.take() if exchange.is_complete else await self._parts(exchange)
        self.grow_to(len(body))
        return body if encoding == b"identity" else self._decompressed(body, _WINDOWS[encoding])

    async def _parts(self, exchange: exchanges.Exchange) -> bytes | memoryview:
        """A body that is still on its way."""
        parts: list[bytes | memoryview] = []
        size = 0
        is_last = False
        while not is_last:
            part = await exchange.part()
            is_last = exchange.is_complete
            size += len(part)
            self.grow_to(size)
            parts.append(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _expect(self, headers: Headers) -> None:
        declared = headers.get(b"content-length")
        if declared is not None:
            self.grow_to(int(declared))
            return
        if b"transfer-encoding" not in headers:
            raise status.Refusal(411, "headers.content-length: expected a body, found none")

    def grow_to(self, size: int) -> None:
        """Reserve so many bytes in all. Refusal with 413 or 503."""
        if size > self.limit:
            raise status.Refusal(
                413, f"body: expected at most {self.limit} bytes, found {size} or more"
            )
        if size > self._taken:
            self._budget.take(size - self._taken)
            self._taken = size

    def _decompressed(self, body: bytes | memoryview, window: int) -> bytes:
        """At most the limit, whatever the compressed bytes say."""
        limit = self.limit
        decoder = zlib.decompressobj(window)
        try:
            data = decoder.decompress(body, limit + 1)
        except zlib.error as fault:
            raise status.Refusal(400, f"body: expected compressed data: {fault}") from None
        self.grow_to(len(data))
        if not decoder.eof or decoder.unused_data:
            what = "data after its end" if decoder.eof else "its end missing"
            raise status.Refusal(400, f"body: expected complete compressed data, found {what}")
        return data
