"""Whether readiness tells the truth: asked all the time, and believed at once.

Each look asks for readiness on a connection of its own, then for an answer on another. Ready and no
answer is a lie, unless a fault fell between the two.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from bench.chaos import server as servers

_PAUSE_S = 0.05
# No worker starts in less, so one that is missing is so for at least as long.
_BLIND_S = 0.3


@dataclass(frozen=True, slots=True)
class Look:
    """``num_ready`` is what was said; None: nothing. ``is_answered`` what followed."""

    begun_s: float
    ended_s: float
    num_ready: int | None
    is_answered: bool


@dataclass(frozen=True, slots=True)
class Hit:
    """A fault was made between the two moments."""

    begun_s: float
    done_s: float


class Watcher:
    """Looks until it is told to stop."""

    def __init__(self, server: servers.Server) -> None:
        self.looks: list[Look] = []
        self._server = server
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def stop(self) -> None:
        """No more looks."""
        self._over.set()
        self._thread.join()

    def lies(self, hits: Sequence[Hit]) -> int:
        """Looks at which it said ready and did not answer, though nothing was done meanwhile."""
        return sum(
            look.num_ready is not None and look.num_ready > 0 and not look.is_answered
            and not any(look.begun_s <= hit.done_s and hit.begun_s <= look.ended_s for hit in hits)
            for look in self.looks
        )  # fmt: skip

    def was_blind(self, hit: float, until: float) -> bool:
        """Whether it had no look for so long between the two moments that it may have missed all."""
        ends = [look.ended_s for look in self.looks if hit <= look.ended_s <= until]
        moments = [hit, *ends, until]
        return any(after - before > _BLIND_S for before, after in itertools.pairwise(moments))

    def has_noticed(self, hit: float, until: float, num_workers: int) -> bool:
        """Whether it said between the two moments that not all workers are ready."""
        return any(
            hit <= look.ended_s and look.begun_s <= until
            and (look.num_ready is None or look.num_ready < num_workers)
            for look in self.looks
        )  # fmt: skip

    def _watch(self) -> None:
        while not self._over.wait(_PAUSE_S):
            begun_s = time.monotonic()
            num_ready, is_answered = None, False
            try:
                status, told = self._server.ask("GET", "/v2/health/ready")
                num_ready = servers.ready_in(status, told) if status == 200 else 0
                status, _ = self._server.ask("POST", "/v2/models/quick/infer", servers.BODY)
                is_answered = status == 200
            except OSError:
                pass
            self.looks.append(Look(begun_s, time.monotonic(), num_ready, is_answered))
