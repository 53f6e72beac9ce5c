"""A steady load for as long as something else happens: every call, when it was due and how it ended.

Each client asks at moments that are fixed beforehand, and times count from those: calls that could
not even be sent while a server stood still have waited too.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from bench.behaviour import ways

_END_S = 40.0


@dataclass(frozen=True, slots=True)
class Call:
    """One call. ``due_s`` is on the monotonic clock, ``took_s`` counts from it."""

    due_s: float
    sent_s: float
    took_s: float
    code: str
    is_ok: bool

    @property
    def end_s(self) -> float:
        """When its answer was there."""
        return self.due_s + self.took_s


@dataclass(slots=True)
class Load:
    """What the clients have seen so far."""

    calls: list[Call] = field(default_factory=list)

    def between(self, begin_s: float, end_s: float) -> list[Call]:
        """The calls that were due then."""
        return [call for call in list(self.calls) if begin_s <= call.due_s < end_s]


@contextmanager
def load(clients: Sequence[Callable[[], ways.Answer]], pause_s: float) -> Iterator[Load]:
    """Each client asks every ``pause_s``, or as soon as its last call has ended; until the end."""
    seen = Load()
    over = threading.Event()

    def ask(client: Callable[[], ways.Answer], first_s: float) -> None:
        due_s = first_s
        while not over.wait(max(0.0, due_s - time.monotonic())):
            sent_s = time.monotonic()
            answer = client()
            end_s = time.monotonic()
            seen.calls.append(Call(due_s, sent_s, end_s - due_s, answer.code, answer.is_ok))
            due_s += pause_s or end_s - due_s

    begun_s = time.monotonic()
    threads = [
        threading.Thread(target=ask, args=(client, begun_s + pause_s * index / len(clients)))
        for index, client in enumerate(clients)
    ]
    for thread in threads:
        thread.start()
    try:
        yield seen
    finally:
        over.set()
        for thread in threads:
            thread.join(_END_S)


def p99_ms(calls: Sequence[Call]) -> float:
    """Of the times that the calls took."""
    times = [call.took_s for call in calls]
    return statistics.quantiles(times, n=100, method="inclusive")[98] * 1e3


def longest_ms(calls: Sequence[Call]) -> float:
    """The longest time that a call took."""
    return max(call.took_s for call in calls) * 1e3
