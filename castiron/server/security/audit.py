"""The audit log: one JSON line before an admin call and one after, on disk before it goes on.

Appends only. An operator may move the file away at any time; the next line opens a new one. A
line that cannot be written means that the call is not made.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import os
from concurrent import futures
from typing import Any

import orjson

from castiron import errors

_MAX_TEXT = 500
_MAX_REFUSALS_PER_S = 20


class Audit:
    """Lines in order, written by one thread; owned by the event loop."""

    __slots__ = ("_file", "_num_refusals", "_num_untold", "_path", "_second", "_thread")

    def __init__(self, path: str) -> None:
        """Raise CastironError when the file cannot be appended to."""
        self._path = path
        self._second = 0
        self._num_refusals = 0
        self._num_untold = 0
        try:
            self._file = _open(path)
        except OSError as fault:
            raise errors.CastironError(
                f"--audit-log {path}: cannot be appended to: {fault.strerror}"
            ) from None
        self._thread = futures.ThreadPoolExecutor(1, "castiron-audit")

    async def write(self, **fields: Any) -> None:
        """Add a line; returns when it is on disk. OSError when that failed."""
        at = dt.datetime.now(dt.UTC).isoformat(timespec="microseconds")
        line = orjson.dumps({"when": at, **{key: _bounded(value) for key, value in fields.items()}})
        await asyncio.get_running_loop().run_in_executor(self._thread, self._append, line + b"\n")

    async def write_refusal(self, **fields: Any) -> None:
        """Add a line about one who was not let in; of many in a second only some, with a count."""
        second = int(asyncio.get_running_loop().time())
        if second != self._second:
            self._second, self._num_refusals = second, 0
        self._num_refusals += 1
        if self._num_refusals > _MAX_REFUSALS_PER_S:
            self._num_untold += 1
            return
        untold, self._num_untold = self._num_untold, 0
        if untold:
            fields["refusals_not_written"] = untold
        await self.write(**fields)

    def close(self) -> None:
        """After the last line."""
        self._thread.shutdown()
        os.close(self._file)

    def _append(self, line: bytes) -> None:
        if not self._is_in_place():
            moved, self._file = self._file, _open(self._path)
            os.close(moved)
        written = os.write(self._file, line)
        if written != len(line):
            raise OSError(f"only {written} of {len(line)} bytes were written to the audit log")
        os.fsync(self._file)

    def _is_in_place(self) -> bool:
        try:
            return os.path.samestat(os.stat(self._path), os.fstat(self._file))
        except FileNotFoundError:
            return False


def _open(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _bounded(value: Any) -> Any:
    """Texts from outside, short and such as JSON can hold."""
    if isinstance(value, str):
        return value[:_MAX_TEXT].encode("utf-8", "replace").decode()
    return value
