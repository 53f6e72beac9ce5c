"""Coroutines that begin at once and become tasks only when they have to wait.

Most requests are answered without waiting for anything, and a task costs as much as reading one:
its making, a turn of the loop, its end. Python 3.12 has this as its eager task factory.
"""

from __future__ import annotations

import asyncio
import types
from collections.abc import Coroutine, Generator
from typing import Any


def start(work: Coroutine[Any, Any, None]) -> asyncio.Task[None] | None:
    """Run up to the first wait; the task that goes on from there, None when all is done.

    For callbacks of the loop, not from inside a task. Until then there is no current task: what
    needs one begins with ``in_task``. What is raised before the first wait is raised here.
    """
    try:
        awaited = work.send(None)
    except StopIteration:
        return None
    return asyncio.get_running_loop().create_task(_rest_of(work, awaited))


async def in_task() -> None:
    """Go on as a task, for what asks which task it is (``asyncio.timeout`` does)."""
    if asyncio.current_task() is None:
        await asyncio.sleep(0)


async def _rest_of(work: Coroutine[Any, Any, None], awaited: Any) -> None:
    await _continued(work, awaited)


@types.coroutine
def _continued(work: Coroutine[Any, Any, None], awaited: Any) -> Generator[Any, Any, None]:
    """Wait for what ``work`` waits for already, then go on with it."""
    try:
        yield awaited
    except BaseException as thrown:  # noqa: BLE001  a cancellation, which is for ``work``
        try:
            again = work.throw(thrown)
        except StopIteration:
            return
        yield from _continued(work, again)
        return
    yield from work
