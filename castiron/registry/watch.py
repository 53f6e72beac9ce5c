"""Watches the models folder, and has changed models loaded once their files are complete.

A file counts as complete when it looks the same twice, and an executable also when its header and
plan are whole; whoever wants certainty writes elsewhere on the same file system and renames the
version's folder into place. What is incomplete for long is loaded all the same, so that its
version fails with a reason. Looks at names and stamps only; ``registry.py`` loads.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

from castiron import errors
from castiron.executable import reader
from castiron.registry import policy, store

log = logging.getLogger("castiron.registry")

_PATIENCE_LOOKS = 20
_Stamps = dict[str, tuple[tuple[str, int, int, int], ...]]


class Watcher:
    """Looks every ``period_s`` until ``close``; ``load`` and ``unload`` are given a model."""

    def __init__(
        self,
        folder: Path,
        period_s: float,
        load: Callable[[str], Awaitable[None]],
        unload: Callable[[str], Awaitable[None]],
    ) -> None:
        self._folder = folder
        self._period_s = period_s
        self._load = load
        self._unload = unload
        self._policy = _stamps_of(folder / policy.FILE_NAME)
        self._known = stamps(folder)  # what the registry starts with
        self._last: _Stamps = dict(self._known)
        self._looks: dict[str, int] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin; the loop runs."""
        self._task = asyncio.get_running_loop().create_task(self._watch())

    def close(self) -> None:
        """End."""
        if self._task is not None:
            self._task.cancel()

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._period_s)
            try:
                now = await loop.run_in_executor(None, stamps, self._folder)
                await self._compare(now)
            except Exception:  # the folder may be gone for a while; the next look tells
                log.exception("cannot look at %s", self._folder)

    async def _compare(self, now: _Stamps) -> None:
        policies = _stamps_of(self._folder / policy.FILE_NAME)
        changed = {model for model in now if now[model] != self._known.get(model)}
        if policies != self._policy:
            changed |= now.keys()
            self._policy = policies
        for model in sorted(changed):
            if now[model] != self._last.get(model) or not self._is_complete(model):
                continue
            self._known[model] = now[model]
            self._looks.pop(model, None)
            await self._told(self._load, model)
        for model in sorted(self._known.keys() - now.keys()):
            del self._known[model]
            await self._told(self._unload, model)
        self._last = now

    async def _told(self, change: Callable[[str], Awaitable[None]], model: str) -> None:
        try:
            await change(model)
        except errors.CastironError as fault:
            log.warning("%s changed: %s", model, fault)

    def _is_complete(self, model: str) -> bool:
        looks = self._looks[model] = self._looks.get(model, 0) + 1
        return looks > _PATIENCE_LOOKS or all(
            is_whole(found.file) for found in store.of_model(self._folder, model) if found.file
        )


def is_whole(path: Path) -> bool:
    """Whether an executable's header, plan and length agree; other files are not looked into."""
    if path.suffix != ".cast":
        return True
    with contextlib.suppress(errors.ExecutableError), reader.open(path):
        return True
    return False


def stamps(folder: Path) -> _Stamps:
    """Of each model, every file of its versions with what changes when it is written."""
    found: dict[str, list[tuple[str, int, int, int]]] = {}
    for version in store.scan(folder).versions:
        held = found.setdefault(version.model, [])
        if version.file is not None:
            held.extend(_stamps_of(*sorted(version.file.parent.iterdir())))
    return {model: tuple(held) for model, held in found.items()}


def _stamps_of(*paths: Path) -> tuple[tuple[str, int, int, int], ...]:
    found = []
    for path in paths:
        with contextlib.suppress(OSError):
            held = os.stat(path)
            found.append((str(path), held.st_ino, held.st_size, held.st_mtime_ns))
    return tuple(found)
