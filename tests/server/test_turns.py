"""Who runs when: in order, few ahead, nobody twice, nobody for a client that has gone."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from castiron import errors
from castiron.registry import store
from castiron.registry import version as versions
from castiron.server import meters, reply, status, turns

METERS = meters.Meters(dict)


class ByHand:
    """An Instance whose runs end when the test says so."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.ends: dict[int, Callable[[Any, Exception | None], None]] = {}

    def start(self, inputs: Mapping[str, Any], lane: Any, on_done: Any) -> None:
        number = int(inputs["number"])
        if number < 0:
            raise errors.InputError("does not fit", "inputs.number")
        assert lane == "the lane"
        self.begun.append(number)
        self.ends[number] = on_done

    def end(self, number: int, error: Exception | None = None) -> None:
        outputs = {"number": np.array(number)} if error is None else None
        self.ends.pop(number)(outputs, error)


def render(outputs: Mapping[str, np.ndarray]) -> reply.Reply:
    return reply.Reply([], [b"%d" % int(outputs["number"])])


class Queue:
    """Turns before one ``ByHand`` instance."""

    def __init__(self, depth: int = 2) -> None:
        self.instance = ByHand()
        self.turns = turns.Turns("the lane", depth)
        self.version = versions.Version(store.Found("m", 1, Path("model.cast")))
        self.version.admit(self.instance)  # type: ignore[arg-type]
        self.over: list[int] = []

    async def add(self, number: int, time_left_s: float = 60) -> asyncio.Task[reply.Reply]:
        inputs = {"number": np.array(number)}
        run = turns.Run(self.version, inputs, render, METERS.of(self.version))
        run.on_over = lambda: self.over.append(number)
        task = asyncio.ensure_future(run.result(self.turns, time_left_s, None))
        await asyncio.sleep(0)
        return task


def test_runs_begin_in_order_with_only_the_depth_under_way() -> None:
    async def body() -> None:
        queue = Queue(depth=2)
        tasks = [await queue.add(number) for number in range(5)]
        assert queue.instance.begun == [0, 1]
        for number, task in enumerate(tasks):
            queue.instance.end(number)
            assert (await task).parts == [b"%d" % number]
            assert queue.instance.begun == list(range(min(number + 3, 5)))
        assert queue.over == list(range(5))
        assert queue.version.in_flight == 0

    asyncio.run(body())


def test_a_thousand_runs_that_cannot_begin_each_fail_alone() -> None:
    async def body() -> None:
        queue = Queue(depth=1)
        first = await queue.add(0)
        failing = [await queue.add(-1) for _ in range(1000)]
        last = await queue.add(1)
        queue.instance.end(0)
        await first
        for task in failing:
            with pytest.raises(errors.InputError):
                await task
        queue.instance.end(1)
        assert (await last).parts == [b"1"]

    asyncio.run(body())


def test_a_run_that_is_late_in_the_queue_never_begins_and_one_under_way_is_not_waited_for() -> None:
    async def body() -> None:
        queue = Queue(depth=1)
        running, queued = await queue.add(0, 0.01), await queue.add(1, 0.01)
        after = await queue.add(2)
        for task in (running, queued):
            with pytest.raises(status.Refusal, match="not ready in the time allowed"):
                await task
        wasted = METERS.of(queue.version).wasted.value
        assert queue.over == [1]
        queue.instance.end(0)
        assert queue.over == [1, 0]
        assert METERS.of(queue.version).wasted.value == wasted + 1
        assert queue.instance.begun == [0, 2]
        queue.instance.end(2)
        await after

    asyncio.run(body())


def test_a_model_that_was_closed_meanwhile_is_told() -> None:
    async def body() -> None:
        queue = Queue()
        queue.version.instance = None
        with pytest.raises(status.Refusal, match="was closed"):
            await (await queue.add(0))

    asyncio.run(body())


async def answered(queue: Queue) -> weakref.ref[np.ndarray]:
    """One run from its start to its answer; a reference to its input that does not hold it."""
    inputs = {"number": np.array(0)}
    asked = {**inputs}  # what the request holds, as the dispatcher's closure does
    run = turns.Run(queue.version, inputs, lambda out: render({**asked, **out}), METERS.unknown)
    run.on_over = lambda: queue.over.append(len(repr(run)))
    task = asyncio.ensure_future(run.result(queue.turns, 60, None))
    await asyncio.sleep(0)
    queue.instance.end(0)
    await task
    return weakref.ref(inputs["number"])


def test_tensors_are_freed_at_the_end_of_a_run_and_do_not_wait_for_a_collection() -> None:
    async def body() -> None:
        queue = Queue(depth=1)
        held = await answered(queue)
        assert held() is None

    gc.disable()
    try:
        asyncio.run(body())
    finally:
        gc.enable()


@given(st.lists(st.sampled_from(["add", "bad", "cancel", "end", "fail"]), max_size=60))
def test_whatever_happens_each_run_ends_once_and_the_depth_holds(steps: list[str]) -> None:
    async def body() -> None:
        queue = Queue(depth=2)
        tasks: list[asyncio.Task[reply.Reply]] = []
        for step in [*steps, *["end"] * len(steps)]:
            if step in {"add", "bad"}:
                tasks.append(await queue.add(len(tasks) if step == "add" else -1))
            elif step == "cancel" and tasks:
                tasks[len(tasks) // 2].cancel()
            elif step in {"end", "fail"} and queue.instance.ends:
                fault = RuntimeError("it failed") if step == "fail" else None
                queue.instance.end(min(queue.instance.ends), fault)
            await asyncio.sleep(0)
            assert len(queue.instance.ends) <= 2
        await asyncio.gather(*tasks, return_exceptions=True)
        assert not queue.instance.ends
        assert queue.instance.begun == sorted(set(queue.instance.begun))
        assert queue.version.in_flight == 0
        assert len(queue.over) == len(tasks)

    asyncio.run(body())
