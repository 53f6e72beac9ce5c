"""Lanes on a real loop: who runs with whom, who is told what, and what is held how long."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from castiron import errors
from castiron.registry import store
from castiron.registry import version as versions
from castiron.scheduler import lane, request
from castiron.scheduler import settings as lane_settings
from castiron.server import lanes, meters, served, status
from castiron.server import settings as server_settings
from castiron.telemetry import tracer
from castiron.tensor import dtype as dtypes
from castiron.tensor import signature

METERS = meters.Meters(dict)
TRACER = tracer.Tracer()
SPECS = (signature.TensorSpec("x", dtypes.FLOAT32, ("n", 1)),)


class ByHand:
    """An Instance whose runs end when the test says so. A row of -1 cannot begin."""

    is_native = True
    signature = signature.Signature(SPECS, (signature.TensorSpec("y", dtypes.FLOAT32, ("n", 1)),))
    metadata: Mapping[str, str] = {}
    digest = "0"

    def __init__(self) -> None:
        self.begun: list[list[float]] = []
        self.ends: list[tuple[np.ndarray, Callable[[Any, Exception | None], None]]] = []

    def run(self, inputs: Any) -> Any:
        raise AssertionError(inputs)

    def start(self, inputs: Mapping[str, np.ndarray], native: Any, on_done: Any) -> None:
        assert native == "the lane"
        if (inputs["x"] == -1).any():
            raise errors.InputError("does not fit", "inputs.x")
        self.begun.append(inputs["x"].reshape(-1).tolist())
        self.ends.append((inputs["x"], on_done))

    def bind(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Every run is begun by ``start``."""

    def end(self, error: Exception | None = None) -> None:
        """The oldest run is over."""
        x, on_done = self.ends.pop(0)
        on_done(None if error else {"y": x + 100}, error)

    def close(self) -> None:
        pass


class Bench:
    """One version before one lane."""

    def __init__(self, depth: int = 2, **given: Any) -> None:
        self.instance = ByHand()
        version = versions.Version(store.Found("m", 1, Path("model.cast")))
        version.stage(self.instance)
        version.admit()
        self.lanes = lanes.Lanes("the lane", depth)
        self.served = served.Served(
            version, self.instance, self.lanes, METERS.of(version), server_settings.Settings()
        )
        self.served.lane = lane.Lane(lane_settings.Lane(max_batch_rows=4, **given))
        self.lanes.add(self.served)
        self.over: list[int] = []

    def add(self, *values: float, **more: Any) -> tuple[request.Request, asyncio.Future[Any]]:
        x = np.array(values, np.float32).reshape(-1, 1)
        work = lanes.Work({"x": x}, x.nbytes, lambda outputs: outputs["y"].reshape(-1).tolist())
        now = time.monotonic_ns()
        number = lanes.next_number()
        work.on_over = lambda: self.over.append(number)
        within_ns = more.pop("within_ns", 60 * 10**9)
        asked = request.Request(
            number, now, now + within_ns, len(values), x.nbytes, more.pop("priority", 1),
            more.pop("key", "same"), payload=work, timeline=TRACER.begin(now, None, None),
        )  # fmt: skip
        self.lanes.submit(self.served, asked)
        return asked, work.future


def on_loop(body: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(body())


def test_an_idle_lane_begins_at_once_and_a_busy_one_collects() -> None:
    async def body() -> None:
        bench = Bench()
        _, first = bench.add(1)
        assert bench.instance.begun == [[1]]
        others = [bench.add(value)[1] for value in (2, 3, 4)]
        bench.instance.end()
        assert await first == [101]
        assert bench.instance.begun == [[1], [2, 3, 4]]
        bench.instance.end()
        assert [await other for other in others] == [[102], [103], [104]]
        assert len(bench.over) == 4
        assert bench.served.version.in_flight == 0

    on_loop(body)


def test_rows_are_counted_and_other_keys_wait_for_their_own_run() -> None:
    async def body() -> None:
        bench = Bench()
        bench.add(1)
        futures = [bench.add(2, 3)[1], bench.add(4, key="other")[1], bench.add(5, 6, 7)[1]]
        for _ in range(4):
            bench.instance.end()
        assert bench.instance.begun == [[1], [2, 3], [4], [5, 6, 7]]
        assert [await future for future in futures] == [[102, 103], [104], [105, 106, 107]]

    on_loop(body)


def test_more_important_requests_go_first() -> None:
    async def body() -> None:
        bench = Bench(max_hold_ns=0)
        bench.add(1, key=None)
        bench.add(2, priority=2, key=None)
        bench.add(3, priority=0, key=None)
        bench.add(4, priority=1, key=None, within_ns=50 * 10**9)
        bench.add(5, priority=1, key=None, within_ns=40 * 10**9)
        for _ in range(5):
            bench.instance.end()
        assert bench.instance.begun == [[1], [3], [5], [4], [2]]

    on_loop(body)


def test_one_bad_request_of_a_batch_fails_alone() -> None:
    async def body() -> None:
        bench = Bench()
        _, first = bench.add(1)
        good = [bench.add(value)[1] for value in (2, 3)]
        _, bad = bench.add(-1)
        while bench.instance.ends:
            bench.instance.end()
        assert await first == [101]
        assert [await one for one in good] == [[102], [103]]
        with pytest.raises(errors.InputError, match="does not fit"):
            await bad
        assert len(bench.over) == 4

    on_loop(body)


def test_whoever_leaves_a_batch_harms_no_mate() -> None:
    async def body() -> None:
        bench = Bench()
        bench.add(1)
        leaving = [bench.add(value) for value in (2, 4)]
        _, staying = bench.add(3)
        bench.lanes.cancel(bench.served, leaving[0][0])  # while it is queued
        bench.instance.end()
        assert bench.instance.begun == [[1], [4, 3]]
        wasted = METERS.of(bench.served.version).wasted.value
        bench.lanes.cancel(bench.served, leaving[1][0])  # while it runs
        assert leaving[1][0].id not in bench.over
        bench.instance.end()
        assert await staying == [103]
        assert leaving[1][0].id in bench.over
        assert METERS.of(bench.served.version).wasted.value == wasted + 1
        for _, future in leaving:
            with pytest.raises(status.ClientGone):
                await future

    on_loop(body)


def test_deadlines_are_kept_by_a_timer_whatever_runs() -> None:
    async def body() -> None:
        bench = Bench(refuses_late=False)
        running, queued = (bench.add(1, within_ns=500_000_000), bench.add(2, within_ns=500_000_000))
        begun = time.monotonic()
        for _, future in (running, queued):
            with pytest.raises(status.Refusal, match="not ready in the time allowed") as refused:
                await future
            assert status.classify(refused.value) == (504, status.TIMEOUT)
        assert 0.4 < time.monotonic() - begun < 10
        assert bench.over == [queued[0].id]
        bench.instance.end()
        assert bench.over == [queued[0].id, running[0].id]
        assert bench.instance.begun == [[1]]

    on_loop(body)


def test_what_a_full_lane_refuses_says_why_and_when_to_come_back() -> None:
    async def body() -> None:
        bench = Bench(max_requests=2)
        bench.add(1)
        bench.add(2)
        with pytest.raises(status.Refusal) as refused:
            bench.add(3, priority=0)
        assert refused.value.reason == request.FULL
        assert status.retry_after_ns(refused.value)
        with pytest.raises(status.Refusal) as refused:
            bench.add(*range(9))
        assert (refused.value.code, refused.value.reason) == (413, request.TOO_LARGE)
        assert status.retry_after_ns(refused.value) is None

    on_loop(body)


def test_a_process_that_died_is_nobodys_fault() -> None:
    async def body() -> None:
        bench = Bench()
        bench.add(1)
        both = [bench.add(value)[1] for value in (2, 3)]
        bench.instance.end()
        bench.instance.end(errors.ModelNotReady("the process ended"))
        for one in both:
            with pytest.raises(errors.ModelNotReady, match="the process ended"):
                await one
        assert bench.instance.begun == [[1], [2, 3]]

    on_loop(body)


async def answered(bench: Bench) -> weakref.ref[np.ndarray]:
    asked, future = bench.add(1)
    held = weakref.ref(asked.payload.inputs["x"])
    bench.instance.end()
    await future
    return held


def test_tensors_are_freed_at_the_end_of_a_run_and_do_not_wait_for_a_collection() -> None:
    async def body() -> None:
        held = await answered(Bench())
        assert held() is None

    gc.disable()
    try:
        on_loop(body)
    finally:
        gc.enable()


@settings(deadline=None)
@given(st.lists(st.sampled_from(["add", "bad", "alone", "cancel", "end", "fail"]), max_size=60))
def test_whatever_happens_each_request_has_one_outcome_and_nothing_stays(steps: list[str]) -> None:
    async def body() -> None:
        bench = Bench(refuses_late=False)
        added: list[tuple[request.Request, asyncio.Future[Any]]] = []
        for step in steps:
            if step in {"add", "bad", "alone"}:
                value = -1 if step == "bad" else len(added)
                added.append(bench.add(value, key=None if step == "alone" else "same"))
            elif step == "cancel" and added:
                bench.lanes.cancel(bench.served, added[len(added) // 2][0])
            elif bench.instance.ends:
                bench.instance.end(RuntimeError("it failed") if step == "fail" else None)
            bench.served.lane.check()
        while bench.instance.ends:
            bench.instance.end()
        told = await asyncio.gather(*(future for _, future in added), return_exceptions=True)
        for (asked, _), outcome in zip(added, told, strict=True):
            assert isinstance(outcome, list) == (asked.outcome == request.ANSWERED)
        assert sorted(bench.over) == [asked.id for asked, _ in added]
        assert not bench.served.lane.held
        assert bench.served.version.in_flight == 0

    on_loop(body)
