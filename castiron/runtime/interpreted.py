"""An Instance whose runs happen in a process of its own: the parent's side.

Interpreted steps are Python, and Python beside the event loop costs it milliseconds. Inputs and
outputs lie in two shared regions; small fixed messages go over a socket that the loop watches.
Runs are answered in order, one at a time. A process that dies fails the run it was in and is
replaced. The other side is ``interpreter.py``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct
import subprocess
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from castiron import errors
from castiron.runtime import region
from castiron.tensor import signature as signatures

if TYPE_CHECKING:
    import numpy as np

    OnDone = Callable[["dict[str, np.ndarray] | None", "Exception | None"], None]

log = logging.getLogger("castiron.runtime")

MESSAGE = struct.Struct("<qq")  # kind, bytes used in the region
READY, RUN, DONE, FAILED = range(4)

# A process that lived at least this long did work; its successor starts at once.
_LIVED_S = 5.0
_LONGEST_PAUSE_S = 30.0


class InterpretedInstance:
    """Same use as ``instance.Instance``; lives on the loop that was running when it was made."""

    is_native = False

    def __init__(
        self, command: list[str], opened: Any, *, start_timeout_s: float, run_timeout_s: float
    ) -> None:
        """``command`` gets ``SOCKET,INPUTS,OUTPUTS`` appended; ``opened`` is the Instance
        of the same executable in this process, read for what it says about itself."""
        self.signature: signatures.Signature = opened.signature
        self.metadata: Mapping[str, str] = opened.metadata
        self.digest: str = opened.digest
        self._dtypes = {spec.name: spec.dtype.name for spec in self.signature.inputs}
        self._command = command
        self._timeouts = (start_timeout_s, run_timeout_s)
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[Mapping[str, np.ndarray], OnDone]] = deque()
        self._running: OnDone | None = None
        self._pause_s = 0.0
        self._process: _Process | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._ready = asyncio.Event()
        self._fault = ""
        self._closed = False
        self._spawn()

    @property
    def is_alive(self) -> bool:
        """Whether a process is there and has answered."""
        return self._ready.is_set() and self._process is not None

    @property
    def process_id(self) -> int | None:
        """The process that would run the next request."""
        return None if self._process is None else self._process.popen.pid

    async def wait_ready(self) -> None:
        """Return when the process has opened the executable; ModelNotReady when it cannot."""
        await self._ready.wait()
        if self._process is None:
            raise errors.ModelNotReady(self._fault)

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Never called: whoever would wait for it holds up the loop that it needs."""
        raise AssertionError(f"a run in another process is begun, not awaited: {list(inputs)}")

    def start(self, inputs: Mapping[str, np.ndarray], lane: Any, on_done: OnDone) -> None:  # noqa: ARG002
        """Queue a run; ``on_done(outputs, None)`` or ``on_done(None, error)`` comes later.

        Raises InputError for names that are not the model's, ModelNotReady while no process can
        be started.
        """
        if self._closed or (self._process is None and self._pause_s):
            raise errors.ModelNotReady(
                f"the process for interpreted steps ended: {self._fault}; retry in some seconds"
            )
        if inputs.keys() != self._dtypes.keys():
            raise errors.InputError(
                f"expected {sorted(self._dtypes)}, found {sorted(inputs)}", "inputs"
            )
        self._waiting.append((inputs, on_done))
        self._send_next()

    def bind(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """None for any shapes: a run in another process has no memory here."""

    def close(self) -> None:
        """End the process; runs that are not over get ModelNotReady."""
        self._closed = True
        self._end_process()
        self._fail_all(errors.ModelNotReady("the model was closed before this run was over"))

    def _spawn(self) -> None:
        self._timer = None
        if self._closed:
            return
        self._ready.clear()
        self._process = _Process(self._command)
        self._loop.add_reader(self._process.socket, self._read)
        self._set_timer(self._timeouts[0], "it did not answer after its start")

    def _set_timer(self, seconds: float, fault: str) -> None:
        self._timer = self._loop.call_later(seconds, self._lost, f"{fault} within {seconds:g} s")

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _send_next(self) -> None:
        if self._running is not None or not self._waiting or not self.is_alive:
            return
        assert self._process is not None
        inputs, on_done = self._waiting.popleft()
        try:
            used = self._process.inputs.write(inputs, self._dtypes)
            self._process.socket.send(MESSAGE.pack(RUN, used))
        except (BrokenPipeError, ConnectionResetError):
            # Not given to it: the run waits for the successor that its end-of-file will bring.
            self._waiting.appendleft((inputs, on_done))
            return
        except Exception as error:  # noqa: BLE001  no memory for these inputs; others may fit
            self._loop.call_soon(on_done, None, error)
            self._loop.call_soon(self._send_next)
            return
        self._running = on_done
        self._set_timer(self._timeouts[1], "a run was not over")

    def _read(self) -> None:
        assert self._process is not None
        try:
            message = self._process.socket.recv(MESSAGE.size)
        except BlockingIOError:
            return
        except ConnectionResetError:
            message = b""
        if len(message) < MESSAGE.size:
            self._lost("")
            return
        kind, used = MESSAGE.unpack(message)
        self._stop_timer()
        if kind == READY:
            self._ready.set()
        elif self._running is not None:
            on_done, self._running = self._running, None
            outputs, error = self._result(kind, used)
            self._send_next_after(on_done, outputs, error)
            return
        self._send_next()

    def _send_next_after(
        self, on_done: OnDone, outputs: dict[str, np.ndarray] | None, error: Exception | None
    ) -> None:
        try:
            self._send_next()
        finally:
            on_done(outputs, error)

    def _result(
        self, kind: int, used: int
    ) -> tuple[dict[str, np.ndarray] | None, Exception | None]:
        assert self._process is not None
        values = self._process.outputs.read(used)
        if kind == DONE:
            # The next run writes over the region.
            return {name: value.copy() for name, value in values.items()}, None
        name, message, path = (str(values[key].item()) for key in ("name", "message", "path"))
        if name == "InputError":
            return None, errors.InputError(message, path)
        return None, errors.CastironError(f"the model failed on this input: {name}: {message}")

    def _lost(self, fault: str) -> None:
        """The process is gone, or is ended now because of ``fault``: fail its run, replace it."""
        process = self._process
        assert process is not None
        was_ready = self._ready.is_set()
        self._end_process()
        self._fault = fault or process.how_it_ended()
        log.error("process %d for interpreted steps: %s", process.popen.pid, self._fault)
        lived = was_ready and time.monotonic() - process.started_s >= _LIVED_S
        self._pause_s = 0.0 if lived else min(_LONGEST_PAUSE_S, 2 * self._pause_s or 0.1)
        gone = errors.ModelNotReady(
            f"the process that runs this model ended: {self._fault}; it is being replaced, retry"
        )
        running, self._running = self._running, None
        if not was_ready:
            self._ready.set()  # whoever waits is told that it failed
            self._fail_all(gone)
        if self._pause_s:
            self._timer = self._loop.call_later(self._pause_s, self._spawn)
        else:
            self._spawn()
        if running is not None:
            running(None, gone)

    def _end_process(self) -> None:
        self._stop_timer()
        if self._process is not None:
            self._loop.remove_reader(self._process.socket)
            self._process.end()
            self._process = None

    def _fail_all(self, error: Exception) -> None:
        waiting = [on_done for _, on_done in self._waiting]
        self._waiting.clear()
        if self._running is not None:
            waiting.insert(0, self._running)
            self._running = None
        for on_done in waiting:
            with contextlib.suppress(asyncio.InvalidStateError):
                on_done(None, error)


class _Process:
    """One process and what it shares with this one."""

    __slots__ = ("inputs", "outputs", "popen", "socket", "started_s")

    def __init__(self, command: list[str]) -> None:
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.inputs = region.Region.create("castiron-inputs")
        self.outputs = region.Region.create("castiron-outputs")
        fds = (theirs.fileno(), self.inputs.fd, self.outputs.fd)
        self.started_s = time.monotonic()
        with theirs:
            # A session of its own: a signal to the server's group must not end runs in flight.
            self.popen = subprocess.Popen(
                [*command, ",".join(map(str, fds))],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=fds,
                start_new_session=True,
            )
        self.socket.setblocking(False)

    def end(self) -> None:
        """End it now, however busy it is; returns when it is gone."""
        self.socket.close()
        if self.popen.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.popen.wait(0.05)  # one that is dying tells how
            self.popen.kill()
            self.popen.wait()
        self.inputs.close()
        self.outputs.close()

    def how_it_ended(self) -> str:
        """Its exit status or the signal, in words."""
        status = self.popen.returncode
        return f"signal {-status} ended it" if status < 0 else f"it left with status {status}"
