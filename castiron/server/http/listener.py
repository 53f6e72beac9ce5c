"""A listening socket, its connections, and how both end: answer what was asked, then close.

``life.py`` has one for the data port, ``security.guard`` one for the admin port.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl

from castiron.server.http import connection, port

log = logging.getLogger("castiron.server")

_BACKLOG = 2048
_LOOK_S = 0.02
_LAST_WORDS_S = 1.0


class Listener:
    """Takes connections from ``start`` to ``stop_accepting``."""

    __slots__ = ("_is_hurried", "_port", "_server")

    def __init__(self, shared: port.Port) -> None:
        self._port = shared
        self._server: asyncio.AbstractServer | None = None
        self._is_hurried = False

    async def start(self, taken: socket.socket, context: ssl.SSLContext | None) -> None:
        """Take connections on this socket, with TLS if there is a context."""
        self._server = await asyncio.get_running_loop().create_server(
            lambda: connection.Connection(self._port),
            sock=taken, ssl=context, backlog=_BACKLOG,
        )  # fmt: skip

    def tick(self, now_s: float) -> None:
        """About once a second: the date, and clients that are late."""
        self._port.tick()
        for each in list(self._port.connections):
            each.check_time(now_s)

    def stop_accepting(self) -> None:
        """Take no more connections; those there are go on."""
        if self._server is not None:
            self._server.close()

    async def drain(self, timeout_s: float) -> None:
        """Wait until everyone is answered; what is not by then is cancelled, and tells its client.

        ``hurry`` ends the wait.
        """
        self.stop_accepting()
        self._shut_down()
        end_s = asyncio.get_running_loop().time() + timeout_s
        while (self._port.connections or self._port.tasks) and not self._is_hurried:
            self._shut_down()
            if asyncio.get_running_loop().time() >= end_s:
                log.error("cancelled %d requests that took too long", len(self._port.tasks))
                self.hurry()
                break
            await asyncio.sleep(_LOOK_S)
        if self._port.tasks:
            await asyncio.wait(self._port.tasks, timeout=_LAST_WORDS_S)

    def _shut_down(self) -> None:
        """Also of connections that were taken in time and have just ended their TLS handshake."""
        for each in list(self._port.connections):
            if not each.is_last:
                each.shut_down()

    def hurry(self) -> None:
        """Cancel all that is under way, and wait for nobody."""
        self._is_hurried = True
        for task in self._port.tasks:
            task.cancel()
