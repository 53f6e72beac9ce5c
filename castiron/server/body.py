"""Reading a request's body within limits: size, time (``edge.py``), memory of all, compression.

Limits hold before bytes are buffered where a length is declared, and while they come otherwise;
a compressed body is bounded by what comes out of it.
"""

from __future__ import annotations

import zlib
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from castiron.server import settings as server_settings
from castiron.server import status

if TYPE_CHECKING:
    from castiron.server import edge

Receive = Callable[[], Awaitable[Mapping[str, Any]]]
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

    async def read(
        self, headers: Headers, receive: Receive, connection: edge.Edge | None
    ) -> bytes | memoryview:
        """All bytes, decompressed. Refusal with 413, 415 or 503; ClientGone when it left.

        A large body may lie in memory of its own, which the connection hands over.
        """
        encoding = headers.get(b"content-encoding", b"identity").strip().lower()
        if encoding != b"identity" and encoding not in _WINDOWS:
            raise status.Refusal(
                415, f"headers.content-encoding: expected gzip or deflate, found {encoding!r}",
                headers=((b"accept-encoding", b"gzip, deflate"),),
            )  # fmt: skip
        self._expect(headers)
        parts: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise status.ClientGone("the client left before its body was complete")
            part: bytes = message["body"]
            size += len(part)
            self.grow_to(size)
            parts.append(part)
            if not message["more_body"]:
                break
        body: bytes | memoryview = parts[0] if len(parts) == 1 else b"".join(parts)
        if connection is not None and (whole := connection.take_body()) is not None:
            body = whole
        return body if encoding == b"identity" else self._decompressed(body, _WINDOWS[encoding])

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
