"""Runs take turns on what computes them: first come, first served, few prepared ahead.

A prepared run holds an arena, so only as many are prepared as keep the lane busy; those behind
hold nothing but their inputs, and leave the queue when nobody waits for them any more. Priorities,
deadlines inside the queue and batches are the scheduler's business.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from castiron.registry import version as versions
from castiron.server import meters, reply, status

if TYPE_CHECKING:
    import numpy as np

    from castiron.server import edge


class Turns:
    """The queue before one lane, or before one process: ``depth`` runs are under way at once."""

    __slots__ = ("_depth", "_is_beginning", "_under_way", "_waiting", "lane", "last_done_s")

    def __init__(self, lane: Any, depth: int) -> None:
        self.lane = lane
        self.last_done_s = 0.0
        self._depth = depth
        self._under_way = 0
        self._is_beginning = False
        self._waiting: deque[Run] = deque()

    def add(self, run: Run) -> None:
        """Begin the run now if it is its turn, else later."""
        self._waiting.append(run)
        self._begin_next()

    def withdraw(self, run: Run) -> None:
        """Take a run out that has not begun."""
        with contextlib.suppress(ValueError):  # passed over already
            self._waiting.remove(run)

    def done(self) -> None:
        """A run under way is over."""
        self._under_way -= 1
        self._begin_next()

    def _begin_next(self) -> None:
        if self._is_beginning:  # a run that could not begin; the loop below goes on
            return
        self._is_beginning = True
        while self._waiting and self._under_way < self._depth:
            run = self._waiting.popleft()
            if not run.is_abandoned:
                self._under_way += 1
                run.begin()
        self._is_beginning = False


class Run:
    """One run and the future that its request waits for.

    ``render`` turns outputs into the answer; ``on_over`` is called when the work is truly over,
    which is later than the request's end when its client did not wait.
    """

    __slots__ = (
        "_added_s", "_future", "_inputs", "_meters", "_render", "_turns", "_version", "begun",
        "is_over", "on_over",
    )  # fmt: skip

    def __init__(
        self,
        version: versions.Version,
        inputs: Mapping[str, np.ndarray],
        render: Callable[[Mapping[str, np.ndarray]], reply.Reply],
        counted: meters.VersionMeters,
    ) -> None:
        self._version = version
        self._inputs = inputs
        self._render = render
        self._meters = counted
        self._turns: Turns | None = None
        self._added_s = 0.0
        self._future: asyncio.Future[reply.Reply] = asyncio.get_running_loop().create_future()
        self.begun = False
        self.is_over = False
        self.on_over: Callable[[], None] = _nothing

    async def result(
        self, turns: Turns, time_left_s: float, connection: edge.Edge | None
    ) -> reply.Reply:
        """Queue it and wait: for its end, its deadline, or until the client has left."""
        self._turns = turns
        self._added_s = time.perf_counter()
        timer = self._future.get_loop().call_later(max(0.0, time_left_s), self._give_up, _late)
        if connection is not None:
            connection.on_gone = self._gone
        turns.add(self)
        try:
            return await self._future
        finally:
            timer.cancel()
            if connection is not None:
                connection.on_gone = None
            if not self.begun:
                turns.withdraw(self)
                self._let_go()

    @property
    def is_abandoned(self) -> bool:
        """Whether nobody waits for it any more."""
        return self._future.done()

    def begin(self) -> None:
        """It is its turn."""
        assert self._turns is not None
        instance = self._version.instance
        self.begun = True
        self._version.in_flight += 1
        try:
            if instance is None:
                raise status.Refusal(503, "the model was closed", status.NOT_READY)
            instance.start(self._inputs, self._turns.lane, self._done)
        except Exception as error:  # noqa: BLE001  the request is told, whoever made it begin not
            self._done(None, error)

    def _gone(self) -> None:
        self._give_up(lambda: status.ClientGone("the client left before its answer was ready"))

    def _give_up(self, reason: Callable[[], Exception]) -> None:
        if not self._future.done():
            self._future.set_exception(reason())

    def _done(self, outputs: Mapping[str, np.ndarray] | None, error: Exception | None) -> None:
        """The work is over; outputs are read now, since they may go back to the pool after."""
        assert self._turns is not None
        self._version.in_flight -= 1
        if error is None:
            self._observe(time.perf_counter())
        if self._future.done():
            self._meters.wasted.value += 1
        elif error is not None:
            self._future.set_exception(error)
        else:
            assert outputs is not None
            self._answer(outputs)
        self._let_go()
        self._turns.done()

    def _let_go(self) -> None:
        """Report the end, and hold nothing any more: tensors must not wait for a collection."""
        self.is_over = True
        on_over, self.on_over = self.on_over, _nothing
        self._inputs = {}
        self._render = _nothing_to_render
        on_over()

    def _answer(self, outputs: Mapping[str, np.ndarray]) -> None:
        try:
            self._future.set_result(self._render(outputs))
        except Exception as fault:  # noqa: BLE001  the request is told, not the lane
            self._future.set_exception(fault)

    def _observe(self, done_s: float) -> None:
        """Runs of one queue follow each other, so a run began when the one before it ended."""
        assert self._turns is not None
        begun_s = max(self._added_s, self._turns.last_done_s)
        self._turns.last_done_s = done_s
        self._meters.queue.observe(begun_s - self._added_s)
        self._meters.compute.observe(done_s - begun_s)


def _late() -> Exception:
    return status.Refusal(504, "the answer was not ready in the time allowed", status.TIMEOUT)


def _nothing() -> None:
    pass


def _nothing_to_render(outputs: Mapping[str, np.ndarray]) -> reply.Reply:
    raise AssertionError(f"the run is over: {list(outputs)}")
