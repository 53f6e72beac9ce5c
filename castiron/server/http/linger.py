"""The end of a connection whose client was answered while it still sends.

To close a socket with bytes unread makes the kernel send a reset, which throws away the answer on
its way. So our side is ended first, and what still comes is read and forgotten, for a while: no
more bytes than some bodies may have, no slower than one may come.
"""

from __future__ import annotations

from typing import Any

from castiron.server import settings as server_settings

# How long a client may be silent before its first byte counts.
_SILENT_S = 2.0
_BODIES = 4


def most_bytes(bounds: server_settings.Settings) -> int:
    """What is read of a client that was refused; more is not worth it."""
    return _BODIES * bounds.max_body_bytes


class Linger:
    """What a connection still takes; ``connection.py`` tells it what comes."""

    __slots__ = ("_left_bytes", "_rate", "_transport", "until_s")

    def __init__(self, transport: Any, bounds: server_settings.Settings, now_s: float) -> None:
        self._transport = transport
        self._left_bytes = most_bytes(bounds)
        self._rate = bounds.min_body_rate
        self.until_s = now_s + _SILENT_S
        if transport.can_write_eof():  # TLS cannot
            transport.write_eof()

    def took(self, size: int) -> None:
        """So many bytes came, which gives it time for more."""
        self._left_bytes -= size
        self.until_s += size / self._rate
        if self._left_bytes < 0:
            self._transport.close()

    def check_time(self, now_s: float) -> None:
        """Close when it took too long."""
        if now_s >= self.until_s:
            self._transport.close()
