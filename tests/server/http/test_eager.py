"""Coroutines that begin at once: done, waiting, cancelled or failing, as a task would be."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from castiron.server.http import eager


async def started(work: Coroutine[Any, Any, None]) -> asyncio.Task[None] | None:
    """Begun as connections do it: by the loop, outside of every task."""
    loop = asyncio.get_running_loop()
    found: asyncio.Future[asyncio.Task[None] | None] = loop.create_future()
    loop.call_soon(lambda: found.set_result(eager.start(work)))
    return await found


def test_what_waits_for_nothing_is_done_at_once_without_a_task() -> None:
    seen: list[asyncio.Task[None] | None] = []

    async def work() -> None:
        seen.append(asyncio.current_task())

    async def main() -> None:
        asyncio.get_running_loop().call_soon(lambda: seen.append(eager.start(work())))
        await asyncio.sleep(0.01)

    asyncio.run(main())
    assert seen == [None, None]


def test_what_waits_goes_on_in_a_task_with_what_it_waited_for() -> None:
    seen: list[object] = []

    async def work(future: asyncio.Future[int]) -> None:
        seen.append("begun")
        seen.append(await future)
        seen.append(await asyncio.wait_for(asyncio.sleep(0.001, "slept"), 60))

    async def main() -> None:
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        task = await started(work(future))
        assert task is not None
        assert seen == ["begun"]
        future.set_result(7)
        await task

    asyncio.run(main())
    assert seen == ["begun", 7, "slept"]


def test_an_error_before_the_first_wait_is_raised_and_a_later_one_is_the_tasks() -> None:
    async def at_once() -> None:
        raise KeyError("now")

    async def later() -> None:
        await asyncio.sleep(0)
        raise KeyError("later")

    async def main() -> None:
        with pytest.raises(KeyError, match="now"):
            eager.start(at_once())
        task = await started(later())
        assert task is not None
        with pytest.raises(KeyError, match="later"):
            await task

    asyncio.run(main())


@pytest.mark.parametrize("stubborn", [0, 1, 3])
def test_a_cancellation_reaches_the_coroutine_which_may_answer_it(stubborn: int) -> None:
    seen: list[int] = []

    async def work() -> None:
        for number in range(stubborn):
            try:
                await asyncio.sleep(10)
            except asyncio.CancelledError:
                seen.append(number)
        if not stubborn:
            await asyncio.sleep(10)

    async def main() -> None:
        task = await started(work())
        assert task is not None
        for _ in range(max(1, stubborn)):
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.sleep(0)
        await asyncio.wait([task])
        assert task.cancelled() == (not stubborn)

    asyncio.run(main())
    assert seen == list(range(stubborn))


def test_what_needs_a_task_becomes_one() -> None:
    seen: list[bool] = []

    async def work() -> None:
        await eager.in_task()
        async with asyncio.timeout(5):
            await eager.in_task()
            seen.append(asyncio.current_task() is not None)

    async def main() -> None:
        task = await started(work())
        assert task is not None
        await task

    asyncio.run(main())
    assert seen == [True]
