"""Start, drain, stop: one process that listens, from its first line to its exit status.

SIGTERM or SIGINT: readiness goes down, after ``drain_delay_s`` nothing more is accepted, what is
in flight is answered, and the process ends with status 0. A second signal ends it at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import logging
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import uvloop

from castiron import errors
from castiron.registry import supply, watch
from castiron.runtime import native_thread
from castiron.server import changes, dispatch, listen, rest
from castiron.server import settings as server_settings
from castiron.server.http import listener, port
from castiron.server.security import guard, tls
from castiron.server.security import settings as security_settings
from castiron.server.workers import link
from castiron.telemetry import tracer

log = logging.getLogger("castiron.server")

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_SWEEP_S = 1.0
_PREPARE_S = 30.0
_COLLECTED = (700, 4, 1)
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def serve(
    models_dir: Path,
    supplied: supply.Supply,
    registry_settings: supply.Settings,
    settings: server_settings.Settings,
    security: security_settings.Settings,
    begin: Callable[[tracer.Counts], tracer.Spool | None] | None = None,
) -> int:
    """Serve the folder until a signal; return the exit status.

    Prints ``serving on http://HOST:PORT`` once connections are taken (``https`` with TLS), then
    ``admin on ...`` if there are admin calls. Raises CastironError when it cannot listen there,
    should not, or the folder is missing. ``begin`` is called once nothing stands against serving, and
    gives what takes spans, if they are wanted.
    """
    _keep_large_memory()
    native_thread.give_way(settings.compute_nice)
    guarded = guard.Guard(security)
    guarded.require_closed(settings.host)
    taken = listen.listen(settings.host, settings.port)
    if not models_dir.is_dir():
        taken.close()
        raise errors.CastironError(f"expected a folder of models, found none at {models_dir}")
    dispatcher = dispatch.Dispatcher(supplied, registry_settings, settings)
    admin_listener = guarded.open_admin(changes.calls(dispatcher), settings, dispatcher.meters)
    process = _Process(dispatcher, settings, models_dir, guarded, taken)
    process.admin_listener = admin_listener
    spool = None if begin is None else begin(dispatcher.meters.fates)
    if spool is not None:
        dispatcher.tracer = tracer.Tracer(settings.trace_share, spool)
    uvloop.run(process.run())
    return 1 if process.is_forced else 0


def _keep_large_memory() -> None:
    """Let bodies reuse memory: fresh pages for each cost more than all else about a large one.

    Blocks up to 32 MB come from the heap, of which up to 64 MB stay when free.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:  # glibc
        set_option(_M_MMAP_THRESHOLD, 32 << 20)
        set_option(_M_TRIM_THRESHOLD, 64 << 20)


class _Process:
    """What listens and what it needs, from its start to its stop."""

    __slots__ = (
        "_dispatcher", "_grpc", "_grpc_stop", "_guard", "_link", "_listener", "_models_dir",
        "_rest", "_settings", "_socket", "_stopping", "_watcher", "admin_listener", "is_forced",
    )  # fmt: skip

    def __init__(
        self,
        dispatcher: dispatch.Dispatcher,
        settings: server_settings.Settings,
        models_dir: Path,
        guarded: guard.Guard,
        taken: socket.socket,
    ) -> None:
        self._guard = guarded
        self._socket = taken
        self.admin_listener: socket.socket | None = None
        self._dispatcher = dispatcher
        self._settings = settings
        self._models_dir = models_dir
        self._rest = rest.Rest(dispatcher, settings, guarded.access)
        self._listener = listener.Listener(port.Port(self._rest, settings, dispatcher.meters))
        self._grpc: Any = None
        self._grpc_stop: asyncio.Task[None] | None = None
        self._watcher: watch.Watcher | None = None
        self._link = link.of_process()
        self._stopping = asyncio.Event()
        self.is_forced = False

    async def run(self) -> None:
        """All of its life."""
        with self._signals():
            await self._start()
            await self._stopping.wait()
            await self._stop()

    async def _start(self) -> None:
        """Listen at once; models become ready while readiness tells so.

        A worker that takes the place of another listens when it can answer: until then, its
        siblings have the connections.
        """
        registry = self._dispatcher.registry
        if self._link is not None:
            self._link.attach(self._dispatcher, lambda: self._rest.is_draining)
        task = registry.start(self._models_dir)
        task.add_done_callback(_settled)
        if self._link is not None and self._link.is_replacement:
            await asyncio.wait([task], timeout=_PREPARE_S)
        await self._listener.start(self._socket, tls.context_of(self._guard.certificates))
        await self._guard.start()
        if self._settings.grpc_port >= 0:
            # Only here: it takes a tenth of a second and memory to import.
            from castiron.server.grpc import listener as grpc_listener

            self._grpc = grpc_listener.Listener(
                self._dispatcher, lambda: self._rest.is_draining, self._guard
            )
        loop = asyncio.get_running_loop()
        self._watcher = self._watch()
        loop.call_later(_SWEEP_S, self._sweep, loop)
        await self._announce()
        if self._link is not None:
            self._link.start()

    async def _announce(self) -> None:
        """Other programs read these lines."""
        shown = listen.url_of(self._socket, self._guard.scheme)
        print(f"serving on {shown}", flush=True)  # noqa: T201
        if self._grpc is not None:
            print(f"serving on grpc://{await self._grpc.start()}", flush=True)  # noqa: T201
        if self.admin_listener is not None:
            shown = listen.url_of(self.admin_listener, self._guard.scheme)
            print(f"admin on {shown}", flush=True)  # noqa: T201

    def _watch(self) -> watch.Watcher | None:
        """Somebody who looks at the folder, if that is wanted."""
        if not self._settings.watch_s:
            return None
        change = self._dispatcher.change
        watcher = watch.Watcher(
            self._models_dir, self._settings.watch_s,
            lambda model: change("load", model, None), lambda model: change("unload", model, None),
        )  # fmt: skip
        watcher.start()
        return watcher

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        now_s = loop.time()
        self._listener.tick(now_s)
        self._guard.tick(now_s)
        self._dispatcher.tick(now_s)
        loop.call_later(_SWEEP_S, self._sweep, loop)

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._on_signal, number)
        try:
            yield
        finally:
            for number in _SIGNALS:
                loop.remove_signal_handler(number)

    def _on_signal(self, number: int) -> None:
        if self._rest.is_draining:
            log.warning("second signal: stopping at once")
            self._hurry()
            return
        log.info("%s: stopping", signal.Signals(number).name)
        self._rest.is_draining = True
        asyncio.get_running_loop().call_later(self._settings.drain_delay_s, self._close)

    def _hurry(self) -> None:
        """End what is in flight, whichever port it came by."""
        self.is_forced = True
        self._listener.hurry()
        self._guard.hurry()
        if self._grpc_stop is not None:
            self._grpc_stop = asyncio.get_running_loop().create_task(self._grpc.stop(0))
        self._stopping.set()

    def _close(self) -> None:
        """Take no more connections from now on."""
        self._listener.stop_accepting()
        if self._grpc is not None:
            stop = self._grpc.stop(self._settings.drain_timeout_s)
            self._grpc_stop = asyncio.get_running_loop().create_task(stop)
        self._stopping.set()

    async def _stop(self) -> None:
        """Answer what is in flight, then give the models back."""
        if self._watcher is not None:
            self._watcher.close()
        await self._listener.drain(self._settings.drain_timeout_s)
        self._socket.close()
        if self._grpc is not None:
            await self._end_grpc()
        self._dispatcher.meters.publish()  # other workers go on telling it
        await self._guard.close()
        self._dispatcher.registry.close()
        await asyncio.to_thread(self._dispatcher.tracer.close)
        log.info("stopped")

    async def _end_grpc(self) -> None:
        if self.is_forced or self._grpc_stop is None:
            await self._grpc.stop(0)
        else:
            await self._grpc_stop


def _settled(task: asyncio.Task[None]) -> None:
    if task.cancelled():
        return
    task.result()
    # Models stay for long: later collections need not look at them. Those of what requests leave
    # behind hold up all others, so they are many and short, under two milliseconds each.
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECTED)
