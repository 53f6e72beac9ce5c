"""What the connections of one listener share: who answers, bounds, counters, and each other."""

from __future__ import annotations

import asyncio
import email.utils
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from castiron.server import meters
from castiron.server import settings as server_settings
from castiron.server.http import exchange, known

Application = Callable[[exchange.Exchange], Coroutine[Any, Any, None]]

# Also the largest body that is read through the parser; larger ones get memory of their own.
SCRATCH_BYTES = 64 << 10


class Client(Protocol):
    """A connection, as ``listener.py`` sees it."""

    is_last: bool
    was_idle: bool

    def check_time(self, now_s: float) -> None:
        """About once a second: refuse or drop it when it is late."""

    def shut_down(self) -> None:
        """Close when what was asked is answered."""


class Port:
    """One for each listener; ``scratch`` is where the loop puts bytes that are looked at at once."""

    __slots__ = (
        "application", "bounds", "connections", "counted", "date_line", "heads", "scratch", "tasks",
    )  # fmt: skip

    def __init__(
        self, application: Application, bounds: server_settings.Settings, counted: meters.Meters
    ) -> None:
        self.application = application
        self.bounds = bounds
        self.counted = counted
        self.connections: set[Client] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self.heads = known.Heads()
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))
        self.date_line = b""
        self.tick()

    def tick(self) -> None:
        """A second has passed: the time that answers carry."""
        self.date_line = b"date: %b\r\n" % email.utils.formatdate(usegmt=True).encode()
