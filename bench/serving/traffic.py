"""Sends the same request again and again over many connections: by a plan, or in a closed loop.

One thread on raw sockets. Until shortly before the next request is due it sleeps, then it looks
without sleeping, since timers of event loops have milliseconds: their errors would be larger than
the latencies of small calls. So it wants a CPU of its own, and must not share the server's.
"""

from __future__ import annotations

import contextlib
import gc
import select
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from bench.serving import connection, record

# Sleeping is as exact as this at best.
_SPIN_S = 150e-6
_CHECK_S = 0.1
_READ, _WRITE = select.EPOLLIN, select.EPOLLOUT


@dataclass(frozen=True, slots=True)
class Target:
    """What is asked, and by how many connections at once; who waits longer has timed out."""

    host: str
    port: int
    text: bytes
    connections: int = 64
    patience_s: float = 30.0


def constant(rate: float, seconds: float) -> Sequence[float]:
    """When requests are meant to leave: evenly."""
    return array("d", (np.arange(int(rate * seconds)) / rate).tobytes())


def poisson(rate: float, seconds: float, seed: int = 1) -> Sequence[float]:
    """When requests are meant to leave if they know nothing of each other."""
    gaps = np.random.default_rng(seed).exponential(1 / rate, int(rate * seconds))
    return array("d", np.cumsum(gaps).tobytes())


Tick = Callable[[float], None]
"""Called now and then with the time since the beginning; it must be quick."""


def open_loop(
    target: Target, times: Sequence[float], tick: Tick | None = None, tick_s: float = 1.0
) -> record.Record:
    """Send each request at its time, whatever has become of those before; wait for all answers."""
    with _quiet(), contextlib.closing(_Sender(target)) as sender:
        count, sent, next_tick_s = len(times), 0, tick_s
        if tick is not None:
            tick(0.0)
        sender.start()
        while sent < count or sender.in_flight:
            now_s = sender.now_s()
            if sent < count and times[sent] <= now_s:
                sender.ask(times[sent])
                sent += 1
            if tick is not None and now_s >= next_tick_s:
                tick(now_s)
                next_tick_s += tick_s
            sender.progress(times[sent] if sent < count else now_s + _CHECK_S)
        if tick is not None:
            tick(sender.now_s())
        return sender.record


def closed_loop(target: Target, seconds: float) -> tuple[float, record.Record]:
    """Each connection asks again as soon as it is answered; the answers a second."""
    with _quiet(), contextlib.closing(_Sender(target)) as sender:
        sender.start()
        while (now_s := sender.now_s()) < seconds:
            while sender.has_free:
                sender.ask(sender.now_s())
            sender.progress(now_s + _CHECK_S)
        while sender.in_flight:
            sender.progress(sender.now_s() + _CHECK_S)
        return sender.record.summary().ok / sender.now_s(), sender.record


class _Sender:
    """Connections, requests that wait for one, and the record."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._poll = select.epoll()
        self._used: dict[int, connection.Connection] = {}
        # Used in turn, as those of many clients would be, so that none grows old unused.
        self._free: deque[connection.Connection] = deque()
        self._num_missing = 0
        self._waiting: deque[int] = deque()
        self.record = record.Record()
        self._start_s = self._next_check_s = 0.0
        for _ in range(target.connections):
            self._free.append(self._connected())

    def start(self) -> None:
        """Time begins."""
        self._start_s = time.perf_counter()

    def now_s(self) -> float:
        """Since the start."""
        return time.perf_counter() - self._start_s

    @property
    def has_free(self) -> bool:
        """Whether a request that is asked now can leave now."""
        return bool(self._free or self._num_missing)

    @property
    def in_flight(self) -> int:
        """Requests without an outcome, those that wait for a connection too."""
        return len(self._used) + len(self._waiting)

    def ask(self, intended_s: float) -> None:
        """A request that was meant to leave then leaves now, or as soon as a connection is free."""
        request = self.record.begin(intended_s)
        if not self.has_free:
            self._waiting.append(request)
            return
        self.record.left(self.now_s() - intended_s, has_waited=False)
        self._leave(request)

    def progress(self, until_s: float) -> None:
        """Take what has come; if that is nothing, sleep until something comes or it is time."""
        events = self._poll.poll(0)
        if not events:
            pause_s = until_s - self.now_s() - _SPIN_S
            if pause_s > 0:
                select.select([self._poll], [], [], pause_s)
        for descriptor, event in events:
            self._take(descriptor, event)
        while self._waiting and self.has_free:
            self.record.left(0.0, has_waited=True)
            self._leave(self._waiting.popleft())
        if self.now_s() >= self._next_check_s:
            self._give_up_on_late()
            self._next_check_s = self.now_s() + _CHECK_S

    def close(self) -> None:
        """Close all connections."""
        for each in [*self._free, *self._used.values()]:
            each.socket.close()
        self._poll.close()

    def _connected(self) -> connection.Connection:
        made = connection.Connection(self._target.host, self._target.port)
        self._poll.register(made.socket, _READ)
        self.record.num_connections += 1
        return made

    def _leave(self, request: int) -> None:
        """Send on a free connection, or on a new one where one was lost."""
        try:
            if self._free:
                chosen = self._free.popleft()
            else:
                self._num_missing -= 1
                chosen = self._connected()
        except OSError:
            self._num_missing += 1
            self.record.settle(request, record.NOT_CONNECTED, self.now_s())
            return
        chosen.request, chosen.begun_s = request, self.now_s()
        descriptor = chosen.socket.fileno()
        self._used[descriptor] = chosen
        try:
            if not chosen.send(self._target.text):
                self._poll.modify(descriptor, _READ | _WRITE)
        except OSError:
            self._lost(chosen, record.CLOSED)

    def _take(self, descriptor: int, event: int) -> None:
        """Something happened on a connection."""
        chosen = self._used.get(descriptor)
        if chosen is None:
            self._forget_free(descriptor)
            return
        try:
            if event & _WRITE and chosen.send_rest():
                self._poll.modify(descriptor, _READ)
            if event & ~_WRITE and chosen.read():
                self._answered(chosen)
        except OSError:
            self._lost(chosen, record.CLOSED)

    def _answered(self, chosen: connection.Connection) -> None:
        request = chosen.request
        status, is_kept = chosen.take()
        self.record.settle(request, status, self.now_s())
        del self._used[chosen.socket.fileno()]
        if is_kept:
            self._free.append(chosen)
        else:
            self._drop(chosen)

    def _lost(self, chosen: connection.Connection, status: int) -> None:
        """The connection is of no use any more; nor is its request."""
        self.record.settle(chosen.request, status, self.now_s())
        del self._used[chosen.socket.fileno()]
        self._drop(chosen)

    def _forget_free(self, descriptor: int) -> None:
        """A connection that was idle has been closed by the server."""
        for each in [each for each in self._free if each.socket.fileno() == descriptor]:
            self._free.remove(each)
            self._drop(each)

    def _drop(self, chosen: connection.Connection) -> None:
        self._poll.unregister(chosen.socket)
        chosen.socket.close()
        self._num_missing += 1

    def _give_up_on_late(self) -> None:
        latest_s = self.now_s() - self._target.patience_s
        for each in [each for each in self._used.values() if each.begun_s < latest_s]:
            self._lost(each, record.TIMED_OUT)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without garbage collection, which would stop the generator for milliseconds."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
