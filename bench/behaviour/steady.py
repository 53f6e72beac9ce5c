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
from typing import Protocol

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


class Clock(Protocol):
    """Time, and its end."""

    def now_s(self) -> float:
        """On a clock that only goes forward."""

    def wait(self, seconds: float) -> bool:
        """Let so much pass; whether the end has come."""


class _UntilTold:
    """The machine's clock, until ``over`` is set."""

    def __init__(self) -> None:
        self.over = threading.Event()

    def now_s(self) -> float:
        return time.monotonic()

    def wait(self, seconds: float) -> bool:
        return self.over.wait(seconds)


def ask_on(
    client: Callable[[], ways.Answer], due_s: float, pause_s: float, clock: Clock, seen: Load
) -> None:
    """One client asks from ``due_s`` on until the end."""
    while not clock.wait(max(0.0, due_s - clock.now_s())):
        sent_s = clock.now_s()
        answer = client()
        end_s = clock.now_s()
        seen.calls.append(Call(due_s, sent_s, end_s - due_s, answer.code, answer.is_ok))
        due_s += pause_s or end_s - due_s


@contextmanager
def load(clients: Sequence[Callable[[], ways.Answer]], pause_s: float) -> Iterator[Load]:
    """Each client asks every ``pause_s``, or as soon as its last call has ended; until the end."""
    seen, clock = Load(), _UntilTold()
    begun_s = clock.now_s()
    threads = [
        threading.Thread(
            target=ask_on,
            args=(client, begun_s + pause_s * index / len(clients), pause_s, clock, seen),
        )
        for index, client in enumerate(clients)
    ]
    for thread in threads:
        thread.start()
    try:
        yield seen
    finally:
        clock.over.set()
        for thread in threads:
            thread.join(_END_S)


def p99_ms(calls: Sequence[Call]) -> float:
    """Of the times that the calls took."""
    times = [call.took_s for call in calls]
    return statistics.quantiles(times, n=100, method="inclusive")[98] * 1e3


def longest_ms(calls: Sequence[Call]) -> float:
    """The longest time that a call took."""
    return max(call.took_s for call in calls) * 1e3
