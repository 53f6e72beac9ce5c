"""One kept HTTP/1.1 connection that has at most one request in flight, without ever blocking."""

from __future__ import annotations

import socket

import httptools

# Large enough that an answer of 600 KB takes few reads.
_PIECE = 1 << 18
_CONNECT_S = 5.0


class Connection:
    """Sends a request that is given as bytes, and reads its answer down to the last byte.

    ``request`` is a mark of the caller's, the number of what is in flight. Raises `OSError` from
    everything when the server is gone or its answer is no HTTP.
    """

    __slots__ = ("_is_kept", "_parser", "_piece", "_rest", "begun_s", "is_complete", "request",
                 "socket")  # fmt: skip

    def __init__(self, host: str, port: int) -> None:
        self.socket = socket.create_connection((host, port), timeout=_CONNECT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self.request = -1
        self.begun_s = 0.0
        self.is_complete = False
        self._is_kept = False
        self._parser = httptools.HttpResponseParser(self)
        self._piece = memoryview(bytearray(_PIECE))
        self._rest = memoryview(b"")

    def send(self, text: bytes) -> bool:
        """Begin a request; whether all of it has left. Otherwise `send_rest` goes on."""
        self.is_complete = False
        self._rest = memoryview(text)
        return self.send_rest()

    def send_rest(self) -> bool:
        """Send what fits now; whether nothing is left to send."""
        while self._rest:
            try:
                self._rest = self._rest[self.socket.send(self._rest) :]
            except BlockingIOError:
                return False
        return True

    def read(self) -> bool:
        """Read what has come; whether the answer is complete."""
        try:
            size = self.socket.recv_into(self._piece)
        except BlockingIOError:
            return False
        if size == 0 or self.request < 0:
            raise ConnectionResetError("the server closed the connection")
        try:
            self._parser.feed_data(self._piece[:size])
        except httptools.HttpParserError as fault:
            raise ConnectionAbortedError(f"the answer is no HTTP: {fault}") from None
        return self.is_complete

    def take(self) -> tuple[int, bool]:
        """The status of the complete answer, and whether the connection may be used again."""
        self.request = -1
        return self._parser.get_status_code(), self._is_kept and not self._rest

    def on_message_complete(self) -> None:
        """Called by the parser, which knows only now whether the connection stays open."""
        self._is_kept = self._parser.should_keep_alive()
        self.is_complete = True
