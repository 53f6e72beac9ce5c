"""The exporter's process: takes records from servers by a socket, sends spans to an OTLP receiver.

One thread takes, so that servers need not wait; another encodes and sends. What finds no room is
dropped and counted, and told to the server. Ends when its servers have: it sends what it has first.
``start`` is for ``api``; ``python -m castiron.telemetry.exporters.otlp`` is the process itself.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Sequence
from itertools import chain, islice

from castiron.telemetry import timeline, tracer
from castiron.telemetry.exporters import send, spans

_MOST_BYTES = 64 << 20
_BATCH = 512  # requests in one message to the receiver
_LINGER_S = 0.5
_PATIENCE_S = 30.0
_LAST_PATIENCE_S = 3.0
_NICENESS = 5  # when processors are short, requests come first


def start(endpoint: str, version: str) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start the process for this receiver; the socket is for ``tracer.Spool``.

    ``version`` is ours, which the spans' resource tells. Raises CastironError for an address that
    is none. Several workers may share the socket.
    """
    send.Sender(endpoint)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for each in (ours, theirs):
        each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 22)
    command = [sys.executable, "-m", __name__, str(theirs.fileno()), endpoint, version]
    with theirs:
        process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
    return process, ours


class _Exporter:
    """What lies between the thread that takes and the one that sends."""

    def __init__(self, channel: socket.socket, sender: send.Sender, version: str) -> None:
        self._channel = channel
        self._sender = sender
        self._resource = spans.resource(version)
        self._messages: deque[bytes] = deque()
        self._size_bytes = 0
        self._num_exported = self._num_dropped = 0
        self._is_ending = False
        self._changed = threading.Condition()

    def take(self) -> None:
        """Take messages until the last server has gone."""
        while message := self._channel.recv(8 * tracer.MESSAGE_BYTES):
            with self._changed:
                if self._size_bytes + len(message) > _MOST_BYTES:
                    self._num_dropped += sum(1 for _ in timeline.unpack(message))
                    continue
                self._messages.append(message)
                self._size_bytes += len(message)
                self._changed.notify()
        with self._changed:
            self._is_ending = True
            self._changed.notify()

    def send(self) -> None:
        """Send until everything is sent and nothing more can come."""
        while True:
            messages, is_last = self._next()
            records = chain.from_iterable(map(timeline.unpack, messages))
            while several := list(islice(records, _BATCH)):
                content, count = spans.request(several, self._resource)
                taken = self._sender.send(content, count, self._patience_s)
                num_exported = len(several) * taken // count
                self._report(num_exported, len(several) - num_exported)
            if is_last:
                return

    def _patience_s(self) -> float:
        """How long a message may be tried; shorter once its servers have ended."""
        return _LAST_PATIENCE_S if self._is_ending else _PATIENCE_S

    def _next(self) -> tuple[list[bytes], bool]:
        with self._changed:
            while not self._messages and not self._is_ending:
                self._changed.wait(_LINGER_S)
            messages = list(self._messages)
            self._messages.clear()
            self._size_bytes = 0
            return messages, self._is_ending

    def _report(self, exported: int, dropped: int) -> None:
        with self._changed:
            self._num_exported += exported
            self._num_dropped += dropped
            report = tracer.REPORT.pack(self._num_exported, self._num_dropped)
            with contextlib.suppress(OSError):
                self._channel.send(report, socket.MSG_DONTWAIT)
                self._num_exported = self._num_dropped = 0


def main(words: Sequence[str]) -> int:
    """Run the process: the socket's descriptor, the receiver's address, our version."""
    descriptor, endpoint, version = words
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # it ends after its servers
    os.nice(_NICENESS)
    exporter = _Exporter(socket.socket(fileno=int(descriptor)), send.Sender(endpoint), version)
    sending = threading.Thread(target=exporter.send)
    sending.start()
    exporter.take()
    sending.join()
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
