"""A rest for a version that fails too often: the circuit breaker, and the way to a fallback.

CLOSED lets all through and counts; OPEN lets nothing through; TRYING lets a few through and closes
when all of them were answered. The caller asks ``permit`` first and reports with ``report``.
"""

from __future__ import annotations

from collections import deque

from castiron.scheduler import settings

CLOSED = "closed"
OPEN = "open"
TRYING = "half-open"

_NUM_SLOTS = 10  # the window moves on by a tenth of its length


class Breaker:
    """The breaker of one version."""

    __slots__ = (
        "_answered", "_failed", "_generation", "_given", "_num_allowed", "_num_good", "_open_ns",
        "_reopens_ns", "_slot_end_ns", "_slots", "_state", "num_opened",
    )  # fmt: skip

    def __init__(self, given: settings.Breaker) -> None:
        self._given = given
        self._state = CLOSED
        self._generation = 0
        self._open_ns = given.open_ns
        self._reopens_ns = 0
        self._num_allowed = 0
        self._num_good = 0
        self._slot_end_ns = 0
        self._slots: deque[list[int]] = deque()  # [number of slot, answered, failed]
        self._answered = 0
        self._failed = 0
        self.num_opened = 0

    def state(self, now: int) -> str:
        """CLOSED, OPEN or TRYING."""
        if self._state == OPEN and now >= self._reopens_ns:
            self._turn(TRYING)
        return self._state

    def permit(self, now: int) -> int | None:
        """Leave to run one request, to be reported with its outcome; None when there is none."""
        state = self.state(now)
        if state == OPEN:
            return None
        if state == TRYING:
            if self._num_allowed >= self._given.num_trials:
                return None
            self._num_allowed += 1
        return self._generation

    def retry_after_ns(self, now: int) -> int:
        """How long a refused client should wait."""
        state = self.state(now)
        if state == CLOSED:
            return 0
        return self._reopens_ns - now if state == OPEN else self._given.open_ns

    def report(self, permit: int, is_good: bool | None, now: int) -> None:
        """How the request ended: well, badly, or with no verdict (cancelled, refused later).

        What was permitted before the breaker last changed says nothing about now.
        """
        if permit != self._generation:
            return
        if self._state == TRYING:
            self._judge_trial(is_good, now)
        elif self._state == CLOSED and is_good is not None:
            self._count(is_good, now)

    def trip(self, now: int, open_ns: int) -> None:
        """Open at once, for so long: its fault is known from elsewhere."""
        if open_ns > 0:
            self._open_ns = open_ns
            self._open(now)

    def _judge_trial(self, is_good: bool | None, now: int) -> None:
        if is_good is None:
            self._num_allowed -= 1
        elif not is_good:
            self._open_ns = min(2 * self._open_ns, self._given.max_open_ns)
            self._open(now)
        else:
            self._num_good += 1
            if self._num_good >= self._given.num_trials:
                self._open_ns = self._given.open_ns
                self._turn(CLOSED)

    def _count(self, is_good: bool, now: int) -> None:
        if now >= self._slot_end_ns:
            self._move_window(now)
        self._slots[-1][1 if is_good else 2] += 1
        if is_good:
            self._answered += 1
            return
        self._failed += 1
        total = self._answered + self._failed
        is_bad = self._failed >= self._given.failure_share * total
        if is_bad and total >= self._given.min_requests:
            self._open(now)

    def _move_window(self, now: int) -> None:
        """Forget what is too old, and count in a slot of its own from now on."""
        number = now * _NUM_SLOTS // self._given.window_ns
        while self._slots and self._slots[0][0] <= number - _NUM_SLOTS:
            _, answered, failed = self._slots.popleft()
            self._answered -= answered
            self._failed -= failed
        self._slots.append([number, 0, 0])
        self._slot_end_ns = -(-(number + 1) * self._given.window_ns // _NUM_SLOTS)

    def _open(self, now: int) -> None:
        self._reopens_ns = now + self._open_ns
        self.num_opened += 1
        self._turn(OPEN)

    def _turn(self, state: str) -> None:
        self._state = state
        self._generation += 1
        self._num_allowed = self._num_good = 0
        self._slots.clear()
        self._slot_end_ns = 0
        self._answered = self._failed = 0
