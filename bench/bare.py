"""A server that answers every request with the same few bytes: what the way there and back takes.

    python -m bench.bare

``edge.py`` measures it beside the real one; whatever a server does, no answer comes sooner.
"""

from __future__ import annotations

import asyncio
from typing import Any

import httptools
import uvloop

_ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"


class Bare(asyncio.Protocol):
    """One connection."""

    def connection_made(self, transport: Any) -> None:
        """A client has connected."""
        self._transport = transport
        self._parser = httptools.HttpRequestParser(self)

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
        self._parser.feed_data(data)

    def on_message_complete(self) -> None:
        """A request is there."""
        self._transport.write(_ANSWER)


async def _serve() -> None:
    server = await asyncio.get_running_loop().create_server(Bare, "127.0.0.1", 0)
    print(f"serving on http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve())
