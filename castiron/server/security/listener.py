"""A second listener in the process: a port of its own for an application of its own.

The connections are of the same kind as those of the data port (``edge.py``), with the same bounds
on heads and slowness. What is asked there is ``admin.py``.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import uvicorn

from castiron.server import edge
from castiron.server.security import tls

_KEEP_ALIVE_S = 75
_DRAIN_S = 5


class Listener:
    """Listens from ``start`` to ``close``."""

    __slots__ = ("_certificates", "_server", "_socket")

    def __init__(
        self,
        application: Any,
        taken: socket.socket,
        connection: Callable[..., Any],
        certificates: tls.Certificates | None,
    ) -> None:
        self._socket = taken
        self._certificates = certificates
        config = uvicorn.Config(
            application,
            loop="none",
            http=connection,  # type: ignore[arg-type]
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=_DRAIN_S,
            ssl_context_factory=tls.factory(certificates),
        )
        self._server = uvicorn.Server(config)

    async def start(self) -> None:
        """Take connections."""
        config = self._server.config
        config.load()
        self._server.lifespan = config.lifespan_class(config)
        await self._server.startup(sockets=[self._socket])

    def tick(self, now_s: float) -> None:
        """About once a second: late clients, other certificates."""
        for connection in list(self._server.server_state.connections):
            assert isinstance(connection, edge.Edge)
            connection.check_time(now_s)
        if self._certificates is not None:
            self._certificates.tick()

    async def close(self) -> None:
        """Answer what is in flight, a few seconds at most."""
        if not self._server.started:
            self._socket.close()
            return
        await self._server.shutdown(sockets=[self._socket])
        if self._server.server_state.tasks:
            await asyncio.wait(self._server.server_state.tasks, timeout=1)
