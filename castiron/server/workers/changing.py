"""Changes of models over all workers: prepared in each, then made in all at once, or in none.

One change after the other, in the order they were asked for. The time from the first worker's
switch to the last one's is counted.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

from castiron import errors
from castiron.server.workers import child, messages

log = logging.getLogger("castiron.server")

_SWITCH_TIMEOUT_S = 5.0
Asked = tuple[messages.Message, Callable[[BaseException | None], None]]


class Changes:
    """The queue of changes; ``memory`` is what a worker that starts later is told."""

    def __init__(
        self, workers: Callable[[], list[child.Child]], on_switch: Callable[[str, float], None]
    ) -> None:
        self._workers = workers
        self._on_switch = on_switch
        self._queue: asyncio.Queue[Asked] = asyncio.Queue()
        self.promoted: dict[str, int] = {}
        self.left_out: set[str] = set()

    def put(self, asked: messages.Message, answer: Callable[[BaseException | None], None]) -> None:
        """Make this change when it is its turn, then call ``answer``."""
        self._queue.put_nowait((asked, answer))

    async def work(self) -> None:
        """Make changes for ever."""
        while True:
            asked, answer = await self._queue.get()
            try:
                await self._make(asked["action"], asked["model"], asked["number"])
                answer(None)
            except Exception as error:  # the worker that asked is told
                if not isinstance(error, errors.CastironError):
                    log.exception("%s of %s failed", asked["action"], asked["model"])
                answer(error)

    async def _make(self, action: str, model: str, number: int | None) -> None:
        if action == "load":
            await self._load(model)
        elif action == "unload":
            self.left_out.add(model)
            await self._all("unload", model=model)
        else:
            await self._turn(model, number, is_back=action == "rollback")

    async def _load(self, model: str) -> None:
        workers = self._workers()
        if not workers:
            raise errors.ModelNotReady("no worker is ready to load; retry")
        first = await workers[0].order("stage", model=model)
        self.left_out.discard(model)
        others = await asyncio.gather(
            *(worker.order("stage", model=model) for worker in workers[1:]), return_exceptions=True
        )
        unlike = [
            worker
            for worker, said in zip(workers[1:], others, strict=True)
            if isinstance(said, BaseException) or said["numbers"] != first["numbers"]
        ]
        unlike = [worker for worker in unlike if worker.is_alive]
        if unlike:
            await self._all("drop", model=model)
            shown = ", ".join(str(worker.index) for worker in unlike)
            raise errors.ModelNotReady(
                f"model {model!r} could not be made ready in worker {shown}; none has changed"
            )
        if first["numbers"]:
            await self._switch("switch", model)
        if first["problems"]:
            raise errors.ModelNotReady("; ".join(first["problems"]))

    async def _turn(self, model: str, number: int | None, *, is_back: bool) -> None:
        said = await self._all("turn", model=model, number=number, is_back=is_back, is_trial=True)
        if not said:
            raise errors.ModelNotReady("no worker is ready to change; retry")
        number = said[0]["number"]
        await self._switch("turn", model, number=number)
        if number is None:
            self.promoted.pop(model, None)
        else:
            self.promoted[model] = number

    async def _switch(self, do: str, model: str, **given: Any) -> None:
        """Turn all workers at once. One that does not is replaced, so that none is left behind."""
        workers = self._workers()
        begun_ns = time.monotonic_ns()
        orders = [worker.order(do, model=model, **given) for worker in workers]
        _, late = await asyncio.wait(orders, timeout=_SWITCH_TIMEOUT_S)
        took_s = (time.monotonic_ns() - begun_ns) / 1e9
        for worker, order in zip(workers, orders, strict=True):
            if order in late or order.exception() is not None:
                worker.kill("unchanged")
        log.info("%s: %d workers turned in %.2f ms", model, len(workers), took_s * 1e3,
                 extra={"model": model})  # fmt: skip
        self._on_switch(model, took_s)

    async def _all(self, do: str, **given: Any) -> list[messages.Message]:
        """An order for all workers; raises the first failure of one that lives."""
        workers = self._workers()
        said = await asyncio.gather(
            *(worker.order(do, **given) for worker in workers), return_exceptions=True
        )
        found = []
        for worker, each in zip(workers, said, strict=True):
            if not isinstance(each, BaseException):
                found.append(each)
            elif worker.is_alive:
                raise each
        return found
