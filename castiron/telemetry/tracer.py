"""Gives each request its timeline, and hands those that are sampled to the exporter's process.

On the event loop's path are choosing, packing (some microseconds) and now and then one write to a
socket that never blocks. When the exporter falls behind, records wait here, within a bound; beyond
it they are dropped and counted. Encoding and sending are ``exporters/``, in a process of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import socket
import struct
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from castiron.telemetry import context, metrics, timeline

log = logging.getLogger("castiron.telemetry")

MESSAGE_BYTES = 32 << 10
REPORT = struct.Struct("<QQ")  # requests whose spans were exported, and dropped, since the last
_MOST_WAITING_BYTES = 16 << 20
_LINGER_S = 0.1
_REOPEN_S = 2.0

# The trace of the request that this task works on, for its log lines.
trace_id: contextvars.ContextVar[bytes] = contextvars.ContextVar("castiron_trace_id", default=b"")


class Counts(Protocol):
    """Where the fates of sampled requests are counted."""

    exported: metrics.Counter
    dropped: metrics.Counter


class Fates:
    """Sampled requests by what became of their spans."""

    __slots__ = ("dropped", "exported")

    def __init__(self, family: metrics.Family[metrics.Counter]) -> None:
        self.exported = family.child("exported")
        self.dropped = family.child("dropped")


class Spool:
    """Records on their way to the exporter through ``channel``, a socket that keeps messages.

    ``reopen`` starts another exporter when this one has died, some seconds later; what comes until
    then is dropped and counted.
    """

    __slots__ = ("_channel", "_counts", "_is_lost", "_loop", "_message", "_message_bytes",
                 "_reopen", "_timer", "_waiting", "_waiting_bytes", "_watches")  # fmt: skip

    def __init__(
        self,
        channel: socket.socket,
        counts: Counts,
        reopen: Callable[[], socket.socket] | None = None,
    ) -> None:
        channel.setblocking(False)
        self._reopen = reopen
        self._is_lost = False
        self._channel = channel
        self._counts = counts
        self._loop: asyncio.AbstractEventLoop | None = None
        self._message: list[bytes] = []
        self._message_bytes = 0
        self._waiting: deque[tuple[bytes, int]] = deque()  # messages and how many records
        self._waiting_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._watches = False

    def add(self, record: bytes) -> None:
        """Take one record; it leaves with others, a tenth of a second later at most."""
        if self._waiting_bytes + self._message_bytes > _MOST_WAITING_BYTES:
            self._counts.dropped.value += 1
            return
        self._message.append(record)
        self._message_bytes += len(record)
        if self._message_bytes >= MESSAGE_BYTES:
            self._close_message()
            if not self._watches:
                self._send()
        elif self._timer is None:
            self._loop = asyncio.get_running_loop()
            self._timer = self._loop.call_later(_LINGER_S, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._close_message()
        self._hear()
        if not self._watches:
            self._send()

    def _close_message(self) -> None:
        if self._message:
            self._waiting.append((b"".join(self._message), len(self._message)))
            self._waiting_bytes += self._message_bytes
            self._message, self._message_bytes = [], 0

    def _send(self) -> None:
        try:
            while self._waiting:
                self._channel.send(self._waiting[0][0])
                self._waiting_bytes -= len(self._waiting.popleft()[0])
        except BlockingIOError:
            self._watch()
            return
        except OSError:  # the exporter is gone
            self._lose()
        self._unwatch()

    def _lose(self) -> None:
        self._drop_all()
        if self._is_lost or self._loop is None or self._reopen is None:
            return
        self._is_lost = True
        log.warning("the exporter of traces has died; another begins in %g s", _REOPEN_S)
        self._loop.call_later(_REOPEN_S, self._open_again, self._reopen)

    def _open_again(self, reopen: Callable[[], socket.socket]) -> None:
        if self._reopen is None:
            return  # closed meanwhile
        self._unwatch()
        self._channel.close()
        self._channel = reopen()
        self._channel.setblocking(False)
        self._is_lost = False

    def _watch(self) -> None:
        if not self._watches and self._loop is not None:
            self._watches = True
            self._loop.add_writer(self._channel, self._send)

    def _unwatch(self) -> None:
        if self._watches and self._loop is not None:
            self._watches = False
            self._loop.remove_writer(self._channel)

    def _drop_all(self) -> None:
        self._counts.dropped.value += sum(count for _, count in self._waiting)
        self._waiting.clear()
        self._waiting_bytes = 0

    def _hear(self) -> None:
        """What the exporter says of requests before."""
        with contextlib.suppress(OSError):
            while self._hear_one():
                pass

    def _hear_one(self) -> bool:
        report = self._channel.recv(REPORT.size)
        if not report:
            return False
        exported, dropped = REPORT.unpack(report)
        self._counts.exported.value += exported
        self._counts.dropped.value += dropped
        return True

    def close(self, patience_s: float = 5.0) -> None:
        """Send what is left and wait until the exporter has sent it on; not for the event loop."""
        self._unwatch()
        self._reopen = None
        if self._timer is not None:
            self._timer.cancel()
        self._close_message()
        end_s = time.monotonic() + patience_s
        self._channel.settimeout(patience_s)
        self._send()
        with contextlib.suppress(OSError):
            self._channel.shutdown(socket.SHUT_WR)
            while self._hear_one():
                self._channel.settimeout(max(0.01, end_s - time.monotonic()))
        self._drop_all()
        self._channel.close()


class Tracer:
    """All requests of one process; ``spool`` None: none are recorded, though all have an id."""

    __slots__ = ("_offset_ns", "_offset_until_ns", "_sampler", "_spool")

    def __init__(self, ratio: float = 0.0, spool: Spool | None = None) -> None:
        self._sampler = context.Sampler(ratio, is_recording=spool is not None)
        self._spool = spool
        self._offset_ns = self._offset_until_ns = 0

    def begin(
        self, accepted_ns: int, parent: bytes | None = None, state: bytes | None = None
    ) -> timeline.Timeline:
        """The timeline of a request with these ``traceparent`` and ``tracestate``."""
        given = self._sampler.begin(parent, state)
        trace_id.set(given.trace_id)
        return timeline.Timeline(given, accepted_ns)

    def end(self, done: timeline.Timeline, outcome: str, now_ns: int) -> None:
        """The request has its outcome."""
        if self._spool is None or not done.context.is_sampled:
            return
        done.outcome = outcome
        done.ended_ns = now_ns
        if now_ns > self._offset_until_ns:
            self._offset_ns = time.time_ns() - time.monotonic_ns()
            self._offset_until_ns = now_ns + 1_000_000_000
        self._spool.add(timeline.pack(done, self._offset_ns))

    def close(self) -> None:
        """Let the last records leave."""
        if self._spool is not None:
            self._spool.close()
