"""What is asked and when, whatever way it is asked; and what is made of the outcomes.

An open loop: requests are sent at their times, however the ones before them fare. Deadlines are
judged twice: by the server's clock from when it saw the request until it let go of the answer, and
by the client's from the sending to the answer, which holds the network and the client too.
"""

from __future__ import annotations

import asyncio
import gc
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import numpy as np

LEFT = 0  # in place of a code: its client left before it was answered
_SHORTEST_S, _LONGEST_S = 0.005, 0.2
_LEAVING = 0.05
_CALLERS = 4
_SETTLE_S = 0.3


@dataclass(frozen=True, slots=True)
class Planned:
    """One request: when it is sent, its deadline after that, and when its client leaves."""

    number: int
    at_s: float
    timeout_s: float
    leaves_s: float | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP code or LEFT, and how long the server says that it had the request."""

    code: int
    total_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Ended:
    """How it ended, how late it was sent, and how long after being sent it ended."""

    planned: Planned
    answer: Answer
    behind_s: float
    after_s: float


Ask = Callable[[Planned], Awaitable[Answer]]
"""Send a request now; what it is answered with, or LEFT once its client has left."""


def plan(count: int, per_second: float, seed: int = 1) -> list[Planned]:
    """Requests at random times with random deadlines; one client in twenty leaves early."""
    dice = random.Random(seed)
    at_s, made = 0.0, []
    for number in range(count):
        at_s += dice.expovariate(per_second)
        timeout_s = dice.uniform(_SHORTEST_S, _LONGEST_S)
        leaves_s = dice.uniform(0, timeout_s) if dice.random() < _LEAVING else None
        made.append(Planned(number, at_s, timeout_s, leaves_s))
    return made


async def capacity(ask: Ask, seconds: float) -> float:
    """Answers a second to a few callers who each ask again when they were answered."""
    end_s = time.perf_counter() + seconds
    count = 0

    async def call() -> None:
        nonlocal count
        while time.perf_counter() < end_s:
            answer = await ask(Planned(0, 0.0, 20.0))
            assert answer.code == 200, answer
            count += 1

    await asyncio.gather(*(call() for _ in range(_CALLERS)))
    return count / seconds


async def send_all(planned: Sequence[Planned], ask: Ask) -> list[Ended]:
    """Send each at its time; all outcomes, in the order of the plan."""
    begin_s = time.perf_counter() + _SETTLE_S

    async def one(each: Planned) -> Ended:
        sent_s = time.perf_counter()
        answer = await ask(each)
        now_s = time.perf_counter()
        return Ended(each, answer, sent_s - begin_s - each.at_s, now_s - sent_s)

    tasks = []
    gc.collect()
    gc.freeze()
    gc.disable()  # of whoever asks: its pauses are not the server's
    try:
        for each in planned:
            while (wait_s := begin_s + each.at_s - time.perf_counter()) > 0:  # noqa: ASYNC110
                # The last bit is waited for awake: timers of loops are a millisecond coarse.
                await asyncio.sleep(wait_s - 0.001 if wait_s > 0.002 else 0)
            tasks.append(asyncio.ensure_future(one(each)))
        return list(await asyncio.gather(*tasks))
    finally:
        gc.enable()
        gc.unfreeze()


@dataclass(frozen=True, slots=True)
class Told:
    """What a way found out: the server's numbers, and the outcomes of all requests."""

    name: str
    per_second: float
    ended: list[Ended]
    runs: int
    """Runs of the model during the load."""
    wasted: int
    """Those of them that nobody waited for at their end."""
    after_end: int | None = None
    """Runs that began after their request's end; None where nobody can see it."""

    def late_ms(self, share: float, *, by_server: bool) -> float:
        """So large a share ended at most so long after the deadline, without those who left."""
        late = [
            (each.answer.total_s if by_server else each.after_s) - each.planned.timeout_s
            for each in self.ended
            if each.answer.code != LEFT
        ]
        return float(np.quantile(late, share)) * 1e3

    def count(self, *codes: int) -> int:
        """How many ended so."""
        return sum(each.answer.code in codes for each in self.ended)

    def behind_ms(self) -> float:
        """How late requests were sent, but for one in a thousand."""
        return float(np.quantile([each.behind_s for each in self.ended], 0.999)) * 1e3
