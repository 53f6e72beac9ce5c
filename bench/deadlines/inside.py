"""In one process: calls go straight to the dispatcher, and each beginning of a run is written down.

What no client can see is seen here: whether a request ran whose client had left, or whose deadline
had come while it was queued.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bench.deadlines import load, model
from castiron import api
from castiron.registry import supply
from castiron.runtime import native_thread
from castiron.server import body as bodies
from castiron.server import call, dispatch, inference, rows, served, status
from castiron.server import settings as server_settings


class _Inside(call.Call):
    """A call that has its input in hand."""

    __slots__ = ("_number", "on_gone")

    def __init__(self, planned: load.Planned) -> None:
        super().__init__(model.NAME, "", "bench")
        self.timeout_s = planned.timeout_s
        self._number = planned.number
        self.on_gone: Callable[[], None] | None = None

    async def read(self, held: bodies.Body, version: served.Served) -> inference.Inference:
        """Nothing is to be read."""
        del held, version
        x = np.array([[self._number]], np.float32)
        return inference.Inference("", {"x": x}, {"y": False}, self.timeout_s)

    def render(
        self, outputs: rows.Arrays, asked: inference.Inference, version: served.Served
    ) -> float:
        """The number that was asked."""
        del asked, version
        return float(outputs["y"][0, 0])

    def watch(self, on_gone: Callable[[], None] | None) -> None:
        """``leave`` tells."""
        self.on_gone = on_gone

    def leave(self) -> None:
        """The client goes."""
        if self.on_gone is not None:
            self.on_gone()


class Inside:
    """A dispatcher over the model, ready to be asked."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._begun_s: dict[int, float] = {}
        self._ended_s: dict[int, float] = {}
        made = api._supply(1, [])
        chosen = supply.Settings(folder / "cache")
        given = server_settings.Settings()
        native_thread.give_way(given.compute_nice)  # as a server does
        self.dispatcher = dispatch.Dispatcher(made, chosen, given)

    async def start(self) -> None:
        """Make the model ready."""
        await self.dispatcher.registry.start(self._folder / "models")
        (version,) = self.dispatcher.registry
        kept = self.dispatcher.served_by(version)
        kept.instance = _Noting(kept.instance, self._begun_s)

    async def ask(self, planned: load.Planned) -> load.Answer:
        """As ``load.Ask``."""
        asked = _Inside(planned)
        leaving = None
        if planned.leaves_s is not None:
            leaving = asyncio.get_running_loop().call_later(planned.leaves_s, asked.leave)
        try:
            answer = await self.dispatcher.infer(asked)
            assert answer == planned.number, (answer, planned)
            code = 200
        except status.ClientGone:
            code = load.LEFT
        except status.Refusal as refused:
            code = refused.code
        finally:
            if leaving is not None:
                leaving.cancel()
        self._ended_s[planned.number] = time.perf_counter()
        return load.Answer(code, (time.monotonic_ns() - asked.timeline.accepted_ns) / 1e9)

    def numbers(self) -> tuple[int, int]:
        """Runs so far, and those that nobody waited for at their end."""
        (version,) = self.dispatcher.registry
        counted = self.dispatcher.meters.of(version)
        return counted.executions, int(counted.wasted.value)

    def forget(self) -> None:
        """What came before does not count."""
        self._begun_s.clear()
        self._ended_s.clear()

    def num_after_end(self) -> int:
        """Requests that began to run after they had ended."""
        return sum(self._ended_s[number] < begun for number, begun in self._begun_s.items())

    async def close(self) -> None:
        """Give the model back."""
        self.dispatcher.registry.close()


class _Noting:
    """An Instance, and when the run of each number began."""

    def __init__(self, instance: Any, begun_s: dict[int, float]) -> None:
        self._instance = instance
        self._begun_s = begun_s

    def __getattr__(self, name: str) -> Any:
        return getattr(self._instance, name)

    def start(self, inputs: Mapping[str, np.ndarray], lane: Any, on_done: Any) -> Any:
        """Note the numbers of all rows."""
        for number in inputs["x"].reshape(-1).tolist():
            self._begun_s[int(number)] = time.perf_counter()
        return self._instance.start(inputs, lane, on_done)

    def bind(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """None, so that no run passes by ``start``."""
