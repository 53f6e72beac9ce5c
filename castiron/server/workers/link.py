"""The worker's end: joins a serving process to its supervisor.

``join`` reads what the supervisor has prepared (sockets, places, what was changed so far); while
the process serves, orders are followed on its event loop and every beat is written to the board.
When the supervisor is gone, the process stops as after SIGTERM.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Coroutine
from typing import Any

from castiron import errors
from castiron.registry import version as versions
from castiron.runtime import crash
from castiron.server import describe, dispatch, listen, patience, served
from castiron.server.workers import board, child, messages

log = logging.getLogger("castiron.server")

_BEAT_S = 0.1
_PR_SET_PDEATHSIG = 1
_joined: list[Link] = []


class Link:
    """One worker's connection to its supervisor."""

    def __init__(self, end: socket.socket, told: messages.Message) -> None:
        self.told = told
        self.index: int = told["index"]
        self.is_replacement: bool = told["is_replacement"]
        self._end = end
        self._board = board.Board(told["fds"]["board"], told["num_workers"])
        self._crashes = crash.CrashBlock.attach(told["fds"]["crash"])
        self._slots: dict[versions.Version, crash.Slot] = {}
        self._trips: dict[str, int] = dict(told["trips"])
        self._asked: dict[int, asyncio.Future[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._dispatcher: dispatch.Dispatcher | None = None
        self._is_draining: Callable[[], bool] = lambda: False
        self._num_asked = 0

    def attach(self, dispatcher: dispatch.Dispatcher, is_draining: Callable[[], bool]) -> None:
        """Before models are prepared: this is whose worker we are."""
        self._dispatcher = dispatcher
        self._is_draining = is_draining
        dispatcher.change = self.ask
        dispatcher.on_prepared = self._on_prepared
        dispatcher.on_retired = self._on_retired
        dispatcher.readiness = self.readiness
        registry = dispatcher.registry
        registry.routes.promoted.update(self.told["promoted"])
        registry.left_out.update(self.told["left_out"])

    def start(self) -> None:
        """The loop runs and the process listens."""
        loop = asyncio.get_running_loop()
        loop.add_reader(self._end.fileno(), self._read)
        self._beat()
        patience.grant(lambda time_ns: self._board.wait_for(self.index, time_ns))
        messages.send(self._end, {"say": "listening"})

    def _beat(self) -> None:
        assert self._dispatcher is not None
        state = board.STOPPING
        if not self._is_draining():
            is_ready, _ = describe.readiness(
                self._dispatcher.registry,
                is_draining=False,
                is_strict=self._dispatcher.settings.strict_readiness,
            )
            state = board.READY if is_ready else board.UNREADY
        self._board.beat(self.index, state)
        asyncio.get_running_loop().call_later(_BEAT_S, self._beat)

    def readiness(self, is_ready: bool, detail: dict[str, Any]) -> tuple[bool, dict[str, Any]]:
        """What one worker would say, and what is so for all: one that is ready is enough.

        A worker that does not listen gets no connections, so it is no reason to send none here.
        """
        num_ready = self._board.num_ready(time.monotonic_ns())
        detail["workers"] = {"ready": num_ready, "expected": self._board.num_workers}
        return is_ready, detail

    # Changes that some client of this worker wants.

    async def ask(self, action: str, model: str, number: int | None) -> None:
        """Have the supervisor change all workers. Raises what the change failed with."""
        self._num_asked += 1
        asked = self._num_asked
        future = self._asked[asked] = asyncio.get_running_loop().create_future()
        messages.send(
            self._end,
            {"ask": asked, "action": action, "model": model, "number": number},
        )
        await future

    # Orders.

    def _read(self) -> None:
        while True:
            try:
                found = messages.receive(self._end)
            except BlockingIOError:
                return
            if found is None:
                self._on_gone()
                return
            self._follow(found)

    def _on_gone(self) -> None:
        asyncio.get_running_loop().remove_reader(self._end.fileno())
        if not self._is_draining():
            log.error("the supervisor is gone: stopping")
            os.kill(os.getpid(), signal.SIGTERM)

    def _follow(self, found: messages.Message) -> None:
        if "answer" in found:
            future = self._asked.pop(found["answer"])
            if future.done():
                return
            if found.get("fault"):
                future.set_exception(messages.error_of(found["fault"]))
            else:
                future.set_result(None)
            return
        act: dict[str, Callable[[messages.Message], Any]] = {
            "stage": self._stage, "switch": self._switch, "drop": self._drop,
            "turn": self._turn, "unload": self._unload, "trip": self._trip,
        }  # fmt: skip
        # What needs no waiting is done before anything else of the loop has its turn.
        done: messages.Message = {"done": found["id"]}
        try:
            result = act[found["do"]](found)
        except Exception as error:  # noqa: BLE001  the supervisor is told
            messages.send(self._end, done | {"fault": messages.fault_of(error)})
            return
        if asyncio.iscoroutine(result):
            self._spawn(self._finish(done, result))
        else:
            messages.send(self._end, done | (result or {}))

    async def _finish(self, done: messages.Message, work: Coroutine[Any, Any, Any]) -> None:
        try:
            done |= await work or {}
        except Exception as error:  # noqa: BLE001  the supervisor is told
            done["fault"] = messages.fault_of(error)
        messages.send(self._end, done)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @property
    def _registry(self) -> Any:
        assert self._dispatcher is not None
        return self._dispatcher.registry

    async def _stage(self, found: messages.Message) -> messages.Message:
        numbers, problems = await self._registry.stage(found["model"])
        return {"numbers": numbers, "problems": problems}

    def _switch(self, found: messages.Message) -> None:
        self._spawn(self._registry.take_away(self._registry.switch(found["model"])))

    async def _drop(self, found: messages.Message) -> None:
        await self._registry.drop(found["model"])

    def _turn(self, found: messages.Message) -> messages.Message:
        model, number = found["model"], found["number"]
        if found.get("is_back"):
            number = self._registry.before(model)
        if found.get("is_trial"):
            self._registry.require(model, number)
        else:
            self._spawn(self._registry.take_away(self._registry.turn(model, number)))
        return {"number": number}

    async def _unload(self, found: messages.Message) -> None:
        await self._registry.unload(found["model"])

    def _trip(self, found: messages.Message) -> None:
        assert self._dispatcher is not None
        self._trips[found["name"]] = found["until_ns"]
        for version in list(self._slots):
            if _name(version) == found["name"] and version.is_ready:
                self._open(self._dispatcher.served_by(version))

    # Versions come and go.

    def _on_prepared(self, made: served.Served) -> None:
        version = made.version
        if made.instance.is_native and hasattr(made.instance, "crash_address"):
            digest = bytes.fromhex(made.instance.digest)
            with contextlib.suppress(errors.ResourceError):  # it answers, though nobody is told
                slot = self._slots[version] = self._crashes.claim(_name(version), digest)
                made.instance.crash_address = slot.step_address
        if _name(version) in self._trips:
            self._open(made)
        path = getattr(made.instance, "path", "")
        messages.send(self._end, {"say": "have", "name": _name(version), "path": str(path)})

    def _open(self, made: served.Served) -> None:
        now = time.monotonic_ns()
        made.breaker.trip(now, self._trips[_name(made.version)] - now)

    def _on_retired(self, version: versions.Version) -> None:
        slot = self._slots.pop(version, None)
        if slot is not None:
            slot.release()


def _name(version: versions.Version) -> str:
    return f"{version.model}/{version.number}"


def join(fd: int) -> Link:
    """Become the worker whose supervisor is at the other end of this socket."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.environ.pop(child.VARIABLE)
    end = socket.socket(fileno=fd)
    end.set_inheritable(False)
    told = messages.receive(end)
    assert told is not None, "the supervisor was gone at once"
    end.setblocking(False)
    for name, (host, port) in told["places"].items():
        taken = socket.socket(fileno=told["fds"][name])
        taken.set_inheritable(False)
        listen.adopt(host, port, taken)
    for name in ("board", "crash"):
        os.set_inheritable(told["fds"][name], False)
    made = Link(end, told)
    _joined.append(made)
    return made


def of_process() -> Link | None:
    """The link of this process, if it is a worker."""
    return _joined[0] if _joined else None
