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
# TLS waits for the client's last word, which those that are idle do not give.
_IDLE_S = 2.0
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
            # What TLS says before a head takes no longer than a head may.
            ssl_handshake_timeout=self._port.bounds.head_timeout_s if context else None,
        )  # fmt: skip

    def tick(self, now_s: float) -> None:
        """About once a second: the date, and clients that are late.

        After a moment in which this process stood still, their words may be there unread; so the
        loop looks at its sockets once more before anybody is late.
        """
        self._port.tick()
        loop = asyncio.get_running_loop()
        loop.call_soon(loop.call_soon, self._check_time, now_s)

    def _check_time(self, now_s: float) -> None:
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
        begun_s = now_s = asyncio.get_running_loop().time()
        while self._has_business(now_s - begun_s) and not self._is_hurried:
            self._shut_down()
            if now_s >= begun_s + timeout_s:
                log.error("cancelled %d requests that took too long", len(self._port.tasks))
                self.hurry()
                break
            await asyncio.sleep(_LOOK_S)
            now_s = asyncio.get_running_loop().time()
        if self._port.tasks:
            await asyncio.wait(self._port.tasks, timeout=_LAST_WORDS_S)

    def _has_business(self, waited_s: float) -> bool:
        """Whether somebody may still be answered, or has been and may still read."""
        if self._port.tasks or waited_s < _IDLE_S:
            return bool(self._port.tasks or self._port.connections)
        return not all(each.was_idle for each in self._port.connections)

    def _shut_down(self) -> None:
        """Also of connections that were taken in time and have just ended their TLS handshake."""
        for each in list(self._port.connections):
            if not each.is_last:
                each.shut_down()

    def hurry(self) -> None:
        """Cancel all that is under way, and wait for nobody."""
        self._is_hurried = True
        loop = asyncio.get_running_loop()
        for task in self._port.tasks:
            loop.call_soon(task.cancel)  # one that was just made must begin to be told
