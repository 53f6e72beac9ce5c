"""Processes that run steps beside the event loop: a few, started when needed, replaced when dead.

A call takes a process that is free, or waits for one; so many may wait and no more. A process
that is late is ended. The other side is ``worker.py``; who calls is ``application.py``.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from castiron import errors
from castiron.runtime import interpreted, region
from castiron.server.steps import faults, message

log = logging.getLogger("castiron.server")

_START_S = 60.0
_DYING_S = 0.3  # a process that closed its socket is on its way out
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much a crew may use."""

    processes: int
    """At once, at most."""

    timeout_s: float
    """Of one call, without its waiting."""

    memory_bytes: int
    """Of one process, private and shared apart."""

    max_waiting: int = 256
    """Calls that wait for a process."""


@dataclass(frozen=True, slots=True)
class Lesson:
    """A contract as a process learns it."""

    contract: str
    folder: str
    metadata: Mapping[str, str]
    key: int = field(default_factory=lambda: next(_numbers))

    def head(self) -> dict[str, Any]:
        """The message that teaches it."""
        return {
            "act": "learn", "key": self.key, "contract": self.contract, "folder": self.folder,
            "metadata": dict(self.metadata),
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back; nothing in it lies in shared memory any more."""

    head: dict[str, Any]
    raw: dict[str, bytes]
    tensors: dict[str, np.ndarray]


class Crew:
    """Some processes of one kind; lives on the loop that was running when it was made."""

    __slots__ = ("_all", "_bounds", "_calls", "_forgotten", "_idle", "_name", "_waiting")

    def __init__(self, name: str, bounds: Bounds) -> None:
        self._name = name
        self._bounds = bounds
        self._all: set[_Process] = set()
        self._idle: list[_Process] = []
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._calls: set[asyncio.Task[Answer]] = set()
        self._forgotten: set[int] = set()

    @property
    def process_ids(self) -> list[int]:
        """Of the processes that are there."""
        return [process.popen.pid for process in self._all]

    async def call(
        self,
        lesson: Lesson,
        head: dict[str, Any],
        raw: Mapping[str, Any] | None = None,
        tensors: message.Arrays | None = None,
    ) -> Answer:
        """Run one call in some process that has learnt the lesson.

        Raises what the steps raise, LateError, CrewDiedError; ResourceError when too many wait.
        Its caller may be cancelled: the process is free again when it is done.
        """
        process = await self._take()
        run = self._run(process, lesson, head, raw or {}, tensors or {})
        task = asyncio.get_running_loop().create_task(run)
        self._calls.add(task)
        task.add_done_callback(self._over)
        return await asyncio.shield(task)

    def forget(self, lesson: Lesson) -> None:
        """A version is gone: processes drop what they learnt for it when they are used next."""
        self._forgotten.add(lesson.key)

    def close(self) -> None:
        """End all processes; calls under way get CrewDiedError."""
        for process in list(self._all):
            process.end()
        self._all.clear()
        self._idle.clear()

    def _over(self, task: asyncio.Task[Answer]) -> None:
        self._calls.discard(task)
        if not task.cancelled():
            task.exception()  # told to the caller, unless it was cancelled

    async def _take(self) -> _Process:
        """A process for this call alone."""
        while True:
            while self._idle:
                process = self._idle.pop()
                if process.is_alive:
                    return process
                self._drop(process)
            if len(self._all) < self._bounds.processes:
                return self._spawned()
            if len(self._waiting) >= self._bounds.max_waiting:
                raise errors.ResourceError(
                    f"{len(self._waiting)} requests wait for a process of {self._name}; retry"
                )
            await self._turn()

    async def _turn(self) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._wake()  # it was this one's turn; now it is the next one's
            raise
        finally:
            with contextlib.suppress(ValueError):
                self._waiting.remove(turn)

    def _wake(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return

    def _spawned(self) -> _Process:
        process = _Process(self._bounds)
        self._all.add(process)
        return process

    def _drop(self, process: _Process) -> None:
        self._all.discard(process)
        process.end()

    async def _run(
        self,
        process: _Process,
        lesson: Lesson,
        head: dict[str, Any],
        raw: Mapping[str, Any],
        tensors: message.Arrays,
    ) -> Answer:
        try:
            await process.ready()
            gone = process.known & self._forgotten
            if lesson.key not in process.known:
                process.known.add(lesson.key)
                try:
                    await process.ask(lesson.head(), {}, {})
                except errors.CastironError:
                    process.known.discard(lesson.key)
                    raise
            process.known -= gone
            whole = head | {"key": lesson.key, "forget": list(gone)}
            return await process.ask(whole, raw, tensors)
        finally:
            if process.is_alive:
                self._idle.append(process)
            else:
                log.error("a process of %s ended: %s", self._name, process.how_it_ended())
                self._drop(process)
            self._wake()


class _Process:
    """One process and what it shares with this one; one call at a time."""

    __slots__ = ("_inbox", "_is_ready", "_loop", "_outbox", "_reply", "_socket", "_timeout_s",
                 "is_alive", "known", "popen")  # fmt: skip

    def __init__(self, bounds: Bounds) -> None:
        self._timeout_s = bounds.timeout_s
        self._loop = asyncio.get_running_loop()
        self._reply: asyncio.Future[int] | None = self._loop.create_future()
        self._is_ready = False
        self.is_alive = True
        self.known: set[int] = set()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._inbox = region.Region.create("castiron-steps-in")
        self._outbox = region.Region.create("castiron-steps-out")
        fds = (theirs.fileno(), self._inbox.fd, self._outbox.fd)
        command = [sys.executable, "-m", "castiron.server.steps.worker",
                   ",".join(map(str, fds)), str(bounds.memory_bytes)]  # fmt: skip
        with theirs:
            self.popen = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=fds,
                start_new_session=True, env=_environment(),
            )  # fmt: skip
        self._socket.setblocking(False)
        self._loop.add_reader(self._socket, self._read)

    async def ready(self) -> None:
        """Return when it has started. Raises CrewDiedError, LateError."""
        if not self._is_ready:
            await self._wait(_START_S)
            self._is_ready = True

    async def ask(
        self, head: dict[str, Any], raw: Mapping[str, Any], tensors: message.Arrays
    ) -> Answer:
        """One message and its answer."""
        used = message.write(self._inbox, head, raw, tensors)
        self._reply = self._loop.create_future()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._socket.send(interpreted.MESSAGE.pack(interpreted.RUN, used))
        size = await self._wait(self._timeout_s)
        try:
            found, raws, arrays = message.read(self._outbox, size)
            raised = message.fault_in(found)
        except Exception as fault:  # noqa: BLE001  whatever was written there
            self.end()  # it wrote over what is not its own
            raise faults.CrewDiedError(f"the steps answered nonsense: {fault!r:.200}") from None
        if raised is not None:
            raise raised
        return Answer(
            found,
            {name: bytes(data) for name, data in raws.items()},
            {name: array.copy() for name, array in arrays.items()},
        )

    async def _wait(self, seconds: float) -> int:
        assert self._reply is not None
        try:
            async with asyncio.timeout(seconds):
                return await self._reply
        except TimeoutError:
            self.end()
            raise faults.LateError(
                f"the steps before or after the model took longer than {seconds:g} s"
            ) from None
        finally:
            self._reply = None

    def _read(self) -> None:
        try:
            received = self._socket.recv(interpreted.MESSAGE.size)
        except BlockingIOError:
            return
        except ConnectionResetError:
            received = b""
        waiting = self._reply if self._reply is not None and not self._reply.done() else None
        if len(received) < interpreted.MESSAGE.size:
            self.end(is_dying=True)
        elif waiting is not None:
            waiting.set_result(interpreted.MESSAGE.unpack(received)[1])

    def _died(self) -> faults.CrewDiedError:
        return faults.CrewDiedError(
            f"the process of the steps before or after the model ended: {self.how_it_ended()}; "
            "another one takes its place"
        )

    def end(self, *, is_dying: bool = False) -> None:
        """End it now, however busy it is; one that is dying already may tell how."""
        if not self.is_alive:
            return
        self.is_alive = False
        self._loop.remove_reader(self._socket)
        self._socket.close()
        if is_dying:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.popen.wait(_DYING_S)
        self.popen.kill()
        self.popen.wait()
        self._inbox.close()
        self._outbox.close()
        if self._reply is not None and not self._reply.done():
            self._reply.set_exception(self._died())

    def how_it_ended(self) -> str:
        """Its exit status or the signal, in words."""
        status = self.popen.returncode
        return f"signal {-status} ended it" if status < 0 else f"it left with status {status}"


def _environment() -> dict[str, str]:
    """One thread for each process: there are several, and the model needs processors too."""
    return {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
