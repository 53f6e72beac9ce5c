"""Over HTTP: as many connections as there are requests under way, each kept for the next one."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from bench.deadlines import load, model


class _Connection(asyncio.Protocol):
    """One connection; ``ended`` is the answer to the request under way."""

    def __init__(self) -> None:
        self.transport: Any = None
        self.ended: asyncio.Future[load.Answer] | None = None
        self._data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, found, rest = self._data.partition(b"\r\n\r\n")
        if not found:
            return
        head = head.lower()
        length = int(head.split(b"content-length: ")[1].split(b"\r\n")[0])
        if len(rest) >= length:
            self._data = b""
            total_ms = float(head.split(b"total;dur=")[1].split(b"\r\n")[0])
            self._end(load.Answer(int(head[9:12]), total_ms / 1e3))

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._end(load.Answer(load.LEFT))

    def leave(self) -> None:
        """The client goes; what comes now is for nobody."""
        self.transport.abort()

    def _end(self, answer: load.Answer) -> None:
        if self.ended is not None and not self.ended.done():
            self.ended.set_result(answer)


class Client:
    """All connections to one server."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._free: list[_Connection] = []

    async def ask(self, planned: load.Planned) -> load.Answer:
        """As ``load.Ask``."""
        loop = asyncio.get_running_loop()
        while self._free:
            connection = self._free.pop()
            if not connection.transport.is_closing():
                break
        else:
            _, connection = await loop.create_connection(_Connection, "127.0.0.1", self._port)
        connection.ended = loop.create_future()
        connection.transport.write(_request(planned))
        leaving = None
        if planned.leaves_s is not None:
            leaving = loop.call_later(planned.leaves_s, connection.leave)
        answer = await connection.ended
        if leaving is not None:
            leaving.cancel()
        if answer.code != load.LEFT:
            self._free.append(connection)
        return answer

    async def close(self) -> None:
        """Let go of all connections."""
        for connection in self._free:
            connection.transport.close()
        await asyncio.sleep(0)


def _request(planned: load.Planned) -> bytes:
    x = {"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [planned.number]}
    body = json.dumps({"inputs": [x]}).encode()
    head = (
        f"POST /v2/models/{model.NAME}/infer HTTP/1.1\r\nHost: a\r\n"
        f"Timeout: {int(planned.timeout_s * 1e6)}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body
