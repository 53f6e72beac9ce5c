"""One worker as the supervisor sees it: its process, its line on the board, what it was told.

Started by exec, never by fork alone: a process whose threads are native code cannot be copied.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from castiron import errors
from castiron.runtime import crash
from castiron.server.workers import board, messages

VARIABLE = "CASTIRON_WORKER"
_FAULTS = frozenset({"SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE", "SIGABRT", "SIGTRAP"})


class Child:
    """The worker with this number, through all processes that are it one after the other."""

    def __init__(self, index: int, lines: board.Board) -> None:
        self.index = index
        self.board = lines
        self.crashes = crash.CrashBlock.create()
        self.process: subprocess.Popen[bytes] | None = None
        self.end: socket.socket | None = None
        self.started_ns = 0
        self.num_starts = 0
        self.num_quick_deaths = 0
        self.is_listening = False
        self.reason = ""
        self.paths: dict[str, str] = {}
        self._waiting: dict[int, asyncio.Future[messages.Message]] = {}
        self._num_orders = 0

    @property
    def is_alive(self) -> bool:
        """Whether there is a process."""
        return self.process is not None

    def start(
        self,
        command: Sequence[str],
        given: messages.Message,
        fds: Mapping[str, int],
        on_end: Callable[[Child], None],
    ) -> None:
        """Start its process, with these descriptors of the supervisor's to inherit."""
        self.board.clear(self.index)
        self.crashes.clear()
        own, other = messages.pair()
        own.setblocking(False)
        shared = {**fds, "board": self.board.fd, "crash": self.crashes.fd}
        told = given | {
            "index": self.index, "fds": shared, "is_replacement": self.num_starts > 0,
            "num_workers": self.board.num_workers,
        }  # fmt: skip
        messages.send(own, told)
        self.process = subprocess.Popen(
            [*command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[other.fileno(), *shared.values()],
            env=os.environ | {VARIABLE: str(other.fileno())},
            start_new_session=True,
        )
        other.close()
        self.end = own
        self.num_starts += 1
        self.started_ns = time.monotonic_ns()
        self.is_listening = False
        self.reason = ""
        watched = os.pidfd_open(self.process.pid)
        loop = asyncio.get_running_loop()

        def ended() -> None:
            loop.remove_reader(watched)
            os.close(watched)
            on_end(self)

        loop.add_reader(watched, ended)

    def collect(self) -> int:
        """Its exit status, once it has ended; nobody waits for it any more."""
        assert self.process is not None and self.end is not None
        status = self.process.wait()
        self.process = None
        asyncio.get_running_loop().remove_reader(self.end.fileno())
        self.end.close()
        self.end = None
        self.is_listening = False
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(errors.ModelNotReady(f"worker {self.index} died meanwhile"))
        self._waiting.clear()
        return status

    def signal(self, number: int) -> None:
        """Send its process a signal."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(number)

    def kill(self, reason: str) -> None:
        """End its process, also a stopped one."""
        self.reason = reason
        self.signal(signal.SIGKILL)

    def order(self, do: str, **given: object) -> asyncio.Future[messages.Message]:
        """Tell it to do something; what it says when it is done."""
        self._num_orders += 1
        future: asyncio.Future[messages.Message] = asyncio.get_running_loop().create_future()
        self._waiting[self._num_orders] = future
        message = {"do": do, "id": self._num_orders, **given}
        if self.end is None or not messages.send(self.end, message):
            del self._waiting[self._num_orders]
            future.set_exception(errors.ModelNotReady(f"worker {self.index} cannot be reached"))
        return future

    def settle(self, found: messages.Message) -> None:
        """It is done with an order."""
        future = self._waiting.pop(found["done"], None)
        if future is None or future.done():
            return
        if found.get("fault"):
            future.set_exception(messages.error_of(found["fault"]))
        else:
            future.set_result(found)

    def is_stopped(self) -> bool:
        """Whether somebody has stopped its process."""
        if self.process is None:
            return False
        try:
            text = Path(f"/proc/{self.process.pid}/stat").read_text()
        except OSError:
            return False
        return text.rpartition(")")[2].split()[0] in {"T", "t"}


def cause_of(status: int) -> str:
    """How a process ended, in words for the log and for metrics."""
    return signal.Signals(-status).name if status < 0 else f"status {status}"


def is_fault(cause: str) -> bool:
    """Whether the code that ran did it, rather than somebody who ended the process."""
    return cause in _FAULTS
