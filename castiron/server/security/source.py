"""Where key sets come from and how they change while the server runs: a file, or a URL on loopback.

A set that cannot be read or is broken changes nothing: the keys of the last good one stay. An
unknown ``kid`` is reason to look at once, at most once a second. What a set may hold is
``keys.py``; the fetch itself is ``fetch.py``.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
from collections.abc import Callable
from typing import Protocol

from castiron import errors
from castiron.server import status
from castiron.server.security import fetch, keys

log = logging.getLogger("castiron.security")

_MIN_PAUSE_S = 1.0
_MAX_BACKOFF_S = 60.0
_MAX_WAITING = 64

Changed = Callable[[keys.KeySet], None]


class Source(Protocol):
    """Keys that may change; all calls are made by the event loop's thread."""

    keys: keys.KeySet
    is_known: bool

    def tick(self) -> None:
        """About once a second: look whether it is time for another set."""

    async def look(self) -> None:
        """A token names an unknown key: bring the set up to date as far as is allowed now."""

    def close(self) -> None:
        """Stop looking."""


def open_source(place: str, refresh_s: float, changed: Changed) -> Source:
    """The source that ``--jwks`` names; CastironError when it cannot be one."""
    if "://" in place:
        return UrlSource(fetch.address_of(place), refresh_s, changed)
    return FileSource(place, changed)


class FileSource:
    """A file, read again when its identity, size or time changed."""

    def __init__(self, path: str, changed: Changed) -> None:
        self._path = path
        self._changed = changed
        self._seen: tuple[int, int, int, int] | None = None
        self.keys = keys.KeySet()
        self.is_known = True
        try:
            self._seen = _identity(path)
            found = keys.parse(_read(path))
        except (OSError, keys.KeyFault) as fault:
            raise errors.CastironError(f"--jwks {path}: {_said(fault)}") from None
        if not found.keys:
            why = "; ".join(found.passed_over) or "it is empty"
            raise errors.CastironError(f"--jwks {path}: expected a key that can be used: {why}")
        _take(self, found, changed)

    def tick(self) -> None:
        """Read the file if it is another than before."""
        try:
            seen = _identity(self._path)
            if seen == self._seen:
                return
            self._seen = seen
            _take(self, keys.parse(_read(self._path)), self._changed)
        except (OSError, keys.KeyFault) as fault:
            if self._seen is not None:
                log.error("%s is not used, the keys before it stay: %s",  # noqa: TRY400  it says all
                          self._path, _said(fault))  # fmt: skip
            if isinstance(fault, OSError):
                self._seen = None

    async def look(self) -> None:
        """A file can be asked at any time."""
        self.tick()

    def close(self) -> None:
        """Nothing is open."""


class UrlSource:
    """A URL, asked now and then; failures are followed by pauses that double."""

    def __init__(self, address: fetch.Address, refresh_s: float, changed: Changed) -> None:
        self._address = address
        self._refresh_s = max(_MIN_PAUSE_S, refresh_s)
        self._changed = changed
        self._task: asyncio.Task[None] | None = None
        self._begun_s = -_MIN_PAUSE_S
        self._next_s = 0.0
        self._backoff_s = _MIN_PAUSE_S
        self._num_waiting = 0
        self._now = time.monotonic
        self.keys = keys.KeySet()
        self.is_known = False

    def tick(self) -> None:
        """Ask if it is time."""
        if self._now() >= self._next_s:
            self._begin()

    async def look(self) -> None:
        """Wait for an answer that was asked for after now, a second and a fetch at most."""
        if self._num_waiting >= _MAX_WAITING:
            raise status.Refusal(503, "too many tokens name keys that are not known; retry")
        self._num_waiting += 1
        try:
            if self._task is not None and not self._task.done():
                await asyncio.wait({self._task})
            pause_s = self._begun_s + _MIN_PAUSE_S - self._now()
            if pause_s > 0:
                await asyncio.sleep(pause_s)
            await asyncio.wait({self._begin()})
        finally:
            self._num_waiting -= 1

    def close(self) -> None:
        """Stop asking."""
        if self._task is not None:
            self._task.cancel()

    def _begin(self) -> asyncio.Task[None]:
        """The fetch that is under way, a new one if there is none."""
        if self._task is None or self._task.done():
            self._begun_s = self._now()
            self._next_s = self._begun_s + self._refresh_s
            self._task = asyncio.create_task(self._fetch())
        return self._task

    async def _fetch(self) -> None:
        try:
            found = keys.parse(await fetch.get(self._address, keys.MAX_SET_BYTES))
        except (OSError, fetch.FetchFault, keys.KeyFault) as fault:
            pause_s = self._backoff_s * random.uniform(0.8, 1.2)
            self._next_s = self._now() + min(pause_s, self._refresh_s)
            self._backoff_s = min(2 * self._backoff_s, _MAX_BACKOFF_S)
            log.error("%s: no keys, asked again in %.1f s: %s",  # noqa: TRY400  it says all
                      self._address, pause_s, _said(fault))  # fmt: skip
            return
        self._backoff_s = _MIN_PAUSE_S
        self.is_known = True
        _take(self, found, self._changed)


def _take(source: FileSource | UrlSource, found: keys.KeySet, changed: Changed) -> None:
    if source.keys.prints != found.prints or source.keys.passed_over != found.passed_over:
        log.info("keys: %s", ", ".join(str(key.kid) for key in found.keys) or "none")
        for line in found.passed_over:
            log.warning("a key is passed over: %s", line)
    source.keys = found
    changed(found)


def _identity(path: str) -> tuple[int, int, int, int]:
    found = os.stat(path)
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read(keys.MAX_SET_BYTES + 1)


def _said(fault: Exception) -> str:
    return (isinstance(fault, OSError) and fault.strerror) or str(fault) or type(fault).__name__
