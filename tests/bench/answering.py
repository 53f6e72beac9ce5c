"""A small HTTP server whose faults are known, for what measures servers; prints its port.

The last word of the path says how it answers: ``ok``; ``echo`` gives the body back; ``chunked``;
``refusing`` every second with 503; ``closing`` every tenth not at all; ``pausing`` all of it stands
still for 300 ms once, at the twentieth request; ``never``; ``dying`` at the twentieth it ends.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
import time

_NUMBERS = itertools.count(1)
_PAUSE_S = 0.3


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while head := await reader.readuntil(b"\r\n\r\n"):
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        body = await reader.readexactly(length)
        answer = _answer(head.split()[1].rsplit(b"/", 1)[1].decode(), body)
        if answer is None:
            break
        writer.write(answer)
        await writer.drain()
    writer.close()


async def _serve_quietly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        await _serve(reader, writer)
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


def _answer(kind: str, body: bytes) -> bytes | None:
    number = next(_NUMBERS)
    if kind == "never":
        return b""
    if kind == "closing" and number % 10 == 0:
        return None
    if kind == "pausing" and number == 20:
        time.sleep(_PAUSE_S)
    if kind == "dying" and number == 20:
        os._exit(0)
    if kind == "chunked":
        return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nyes\r\n0\r\n\r\n"
    status = b"503 No" if kind == "refusing" and number % 2 == 0 else b"200 OK"
    given = body if kind == "echo" else b"{}"
    return b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status, len(given), given)


async def main() -> None:
    """Serve until ended."""
    server = await asyncio.start_server(_serve_quietly, "127.0.0.1", 0)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
