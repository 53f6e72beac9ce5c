"""A model in a process of its own: same answers, and what happens when that process dies."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from castiron import errors
from castiron.runtime import interpreted
from castiron.tensor import dtype as dtypes
from castiron.tensor import elements
from tests import numpy_instance

COMMAND = [sys.executable, "-m", "tests.numpy_instance", "interpret"]


async def opened(path: Path, run_timeout_s: float = 60.0) -> interpreted.InterpretedInstance:
    apart = interpreted.InterpretedInstance(
        [*COMMAND, str(path)],
        numpy_instance.opened(path),
        start_timeout_s=60,
        run_timeout_s=run_timeout_s,
    )
    await apart.wait_ready()
    return apart


def run(apart: interpreted.InterpretedInstance, **inputs: Any) -> asyncio.Future[Any]:
    future = asyncio.get_running_loop().create_future()

    def on_done(outputs: Any, error: Exception | None) -> None:
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(outputs)

    apart.start(inputs, None, on_done)
    return future


def served(
    tmp_path: Path,
    model: str,
    use: Callable[[interpreted.InterpretedInstance], Awaitable[None]],
    run_timeout_s: float = 60.0,
) -> None:
    """Open the model in its own process, use it, and see that the process is gone after."""
    (tmp_path / "model").write_text(model)

    async def body() -> None:
        apart = await opened(tmp_path / "model", run_timeout_s)
        try:
            await use(apart)
        finally:
            process_id = apart.process_id
            apart.close()
        if process_id is not None:
            with pytest.raises(ProcessLookupError):
                os.kill(process_id, 0)

    asyncio.run(body())


def test_every_dtype_goes_there_and_back_bit_for_bit(tmp_path: Path) -> None:
    inputs: dict[str, np.ndarray] = {}
    for kind in dtypes.ALL:
        if kind is dtypes.STRING:
            inputs["string"] = np.array(["", "a\0b", "\udcff", "päx"], object)
        elif kind is dtypes.BOOL:
            inputs["bool"] = np.array([True, False, True, True])
        else:
            raw = np.arange(4 * kind.size_bytes, dtype=np.uint8) * 37
            inputs[kind.name] = raw.view(elements.numpy_dtype(kind))

    async def use(apart: interpreted.InterpretedInstance) -> None:
        outputs = await run(apart, **inputs)
        for name, value in inputs.items():
            found = outputs[f"{name}_out"]
            assert found.dtype == value.dtype
            if name == "string":
                assert found.tolist() == value.tolist()
            else:
                assert found.tobytes() == value.tobytes()

    served(tmp_path, "identity_of_all", use)


def test_many_runs_are_answered_in_order_and_inputs_may_grow(tmp_path: Path) -> None:
    async def use(apart: interpreted.InterpretedInstance) -> None:
        sizes = [1, 0, 100_000, 3, 1_000_000, 5]
        answers = [run(apart, x=np.full(size, index, "f")) for index, size in enumerate(sizes)]
        for index, (size, answer) in enumerate(zip(sizes, answers, strict=True)):
            assert np.array_equal((await answer)["y"], np.full(size, index, "f"))

    served(tmp_path, "identity_float32", use)


def test_wrong_names_are_refused_at_once_and_wrong_shapes_by_the_model(tmp_path: Path) -> None:
    async def use(apart: interpreted.InterpretedInstance) -> None:
        with pytest.raises(errors.InputError, match=r"expected \['x'\], found \['z'\]"):
            run(apart, z=np.zeros(1, "f"))
        with pytest.raises(errors.InputError, match=r"^inputs.x: expected rank 1, found 2$") as at:
            await run(apart, x=np.zeros((1, 1), "f"))
        assert at.value.path == "inputs.x"

    served(tmp_path, "identity_float32", use)


def test_a_model_that_raises_fails_only_its_own_run(tmp_path: Path) -> None:
    async def use(apart: interpreted.InterpretedInstance) -> None:
        bad, good = run(apart, x=np.array([-1], "f")), run(apart, x=np.array([4], "f"))
        with pytest.raises(errors.CastironError, match="ZeroDivisionError: the model divides"):
            await bad
        assert (await good)["y"] == [8]

    served(tmp_path, "fragile", use)


def test_a_process_that_dies_is_replaced_and_later_runs_are_answered(tmp_path: Path) -> None:
    async def use(apart: interpreted.InterpretedInstance) -> None:
        first = apart.process_id
        dying, queued = run(apart, x=np.array([-2], "f")), run(apart, x=np.array([4], "f"))
        with pytest.raises(errors.ModelNotReady, match=f"signal {signal.SIGABRT} ended it"):
            await dying
        assert (await queued)["y"] == [8]
        assert apart.is_alive
        assert apart.process_id != first

    served(tmp_path, "fragile", use)


def test_a_process_killed_while_idle_is_replaced(tmp_path: Path) -> None:
    async def use(apart: interpreted.InterpretedInstance) -> None:
        assert apart.process_id is not None
        os.kill(apart.process_id, signal.SIGKILL)
        end = time.monotonic() + 30
        while True:
            await asyncio.sleep(0.02)
            try:
                answer = await run(apart, x=np.array([1], "f"))
                break
            except errors.ModelNotReady:
                assert time.monotonic() < end
        assert answer["y"] == [2]

    served(tmp_path, "fragile", use)


def test_a_run_that_hangs_is_ended_and_the_next_one_answered(tmp_path: Path) -> None:
    async def use(apart: interpreted.InterpretedInstance) -> None:
        hanging, queued = run(apart, x=np.array([-3], "f")), run(apart, x=np.array([4], "f"))
        with pytest.raises(errors.ModelNotReady, match=r"a run was not over within 3 s"):
            await hanging
        assert (await queued)["y"] == [8]

    served(tmp_path, "fragile", use, run_timeout_s=3)


def test_a_process_that_cannot_open_the_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "model").write_text("fragile")

    async def body() -> None:
        apart = interpreted.InterpretedInstance(
            [sys.executable, "-c", "raise SystemExit(3)"],
            numpy_instance.opened(tmp_path / "model"),
            start_timeout_s=60,
            run_timeout_s=60,
        )
        with pytest.raises(errors.ModelNotReady, match="it left with status 3"):
            await apart.wait_ready()
        with pytest.raises(errors.ModelNotReady, match="retry in some seconds"):
            run(apart, x=np.zeros(1, "f"))
        assert not apart.is_alive
        apart.close()

    asyncio.run(body())


def test_closing_fails_what_is_in_flight(tmp_path: Path) -> None:
    async def use(apart: interpreted.InterpretedInstance) -> None:
        hanging = run(apart, x=np.array([-3], "f"))
        await asyncio.sleep(0.05)
        apart.close()
        with pytest.raises(errors.ModelNotReady, match="closed before this run was over"):
            await hanging

    served(tmp_path, "fragile", use)
