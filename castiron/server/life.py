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

import uvicorn
import uvloop

from castiron import errors
from castiron.registry import supply, watch
from castiron.server import changes, dispatch, edge, listen, rest
from castiron.server import settings as server_settings
from castiron.server.security import guard, tls
from castiron.server.security import settings as security_settings
from castiron.server.workers import link
from castiron.telemetry import tracer

log = logging.getLogger("castiron.server")

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_SWEEP_S = 1.0
_PREPARE_S = 30.0
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def serve(
    models_dir: Path,
    supplied: supply.Supply,
    registry_settings: supply.Settings,
    settings: server_settings.Settings,
    security: security_settings.Settings,
    open_traces: Callable[[tracer.Counts], tracer.Spool] | None = None,
) -> int:
    """Serve the folder until a signal; return the exit status.

    Prints ``serving on http://HOST:PORT`` once connections are taken (``https`` with TLS), then
    ``admin on ...`` if there are admin calls. Raises CastironError when it cannot listen there,
    should not, or the folder is missing. ``open_traces`` starts what sends spans on.
    """
    _keep_large_memory()
    guarded = guard.Guard(security)
    guarded.require_closed(settings.host)
    listener = listen.listen(settings.host, settings.port)
    if not models_dir.is_dir():
        listener.close()
        raise errors.CastironError(f"expected a folder of models, found none at {models_dir}")
    dispatcher = dispatch.Dispatcher(supplied, registry_settings, settings)
    admin_listener = guarded.open_admin(changes.calls(dispatcher), settings, dispatcher.meters)
    process = _Process(dispatcher, settings, models_dir, guarded)
    process.admin_listener = admin_listener
    if open_traces is not None:
        spool = open_traces(dispatcher.meters.fates)
        dispatcher.tracer = tracer.Tracer(settings.trace_share, spool)
    uvloop.run(process.serve(sockets=[listener]))
    return 1 if process.force_exit else 0


def _keep_large_memory() -> None:
    """Let bodies reuse memory: fresh pages for each cost more than all else about a large one.

    Blocks up to 32 MB come from the heap, of which up to 64 MB stay when free.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:  # glibc
        set_option(_M_MMAP_THRESHOLD, 32 << 20)
        set_option(_M_TRIM_THRESHOLD, 64 << 20)


class _Process(uvicorn.Server):
    """uvicorn's server with our signals, our exit status and our sweeper."""

    def __init__(
        self,
        dispatcher: dispatch.Dispatcher,
        settings: server_settings.Settings,
        models_dir: Path,
        guarded: guard.Guard,
    ) -> None:
        self._guard = guarded
        self.admin_listener: socket.socket | None = None
        self._dispatcher = dispatcher
        self._settings = settings
        self._models_dir = models_dir
        self._rest = rest.Rest(dispatcher, settings, guarded.access)
        self._grpc: Any = None
        self._grpc_stop: asyncio.Task[None] | None = None
        self._watcher: watch.Watcher | None = None
        self._link = link.of_process()
        super().__init__(_config(self._rest, dispatcher, settings, guarded))

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
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
        await super().startup(sockets)
        await self._guard.start()
        if self._settings.grpc_port >= 0:
            # Only here: it takes a tenth of a second and memory to import.
            from castiron.server.grpc import listener

            self._grpc = listener.Listener(
                self._dispatcher, lambda: self._rest.is_draining, self._guard
            )
        loop = asyncio.get_running_loop()
        self._watcher = self._watch()
        loop.call_later(_SWEEP_S, self._sweep, loop)
        assert sockets
        # Other programs read these lines.
        print(f"serving on {listen.url_of(sockets[0], self._guard.scheme)}", flush=True)  # noqa: T201
        if self._grpc is not None:
            print(f"serving on grpc://{await self._grpc.start()}", flush=True)  # noqa: T201
        if self.admin_listener is not None:
            shown = listen.url_of(self.admin_listener, self._guard.scheme)
            print(f"admin on {shown}", flush=True)  # noqa: T201
        if self._link is not None:
            self._link.start()

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
        for connection in list(self.server_state.connections):
            assert isinstance(connection, edge.Edge)
            connection.check_time(now_s)
        self._guard.tick(now_s)
        self._dispatcher.tick(now_s)
        loop.call_later(_SWEEP_S, self._sweep, loop)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Ours: no signal is raised again at the end, so the exit status is ours too."""
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
            self.force_exit = self.should_exit = True
            for task in self.server_state.tasks:
                task.cancel()
            return
        log.info("%s: stopping", signal.Signals(number).name)
        self._rest.is_draining = True
        asyncio.get_running_loop().call_later(self._settings.drain_delay_s, self._close)

    def _close(self) -> None:
        """Take no more connections from now on, not only when the main loop looks next."""
        for server in self.servers:
            server.close()
        if self._grpc is not None:
            stop = self._grpc.stop(self._settings.drain_timeout_s)
            self._grpc_stop = asyncio.get_running_loop().create_task(stop)
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer what is in flight, then give the models back."""
        if self._watcher is not None:
            self._watcher.close()
        await super().shutdown(sockets)
        if self.server_state.tasks:  # cancelled for being late; each still tells its client
            await asyncio.wait(self.server_state.tasks, timeout=1)
        if self._grpc is not None:
            await self._end_grpc()
        await self._guard.close()
        self._dispatcher.registry.close()
        await asyncio.to_thread(self._dispatcher.tracer.close)
        log.info("stopped")

    async def _end_grpc(self) -> None:
        if self.force_exit or self._grpc_stop is None:
            await self._grpc.stop(0)
        else:
            await self._grpc_stop


def _config(
    application: Any,
    dispatcher: dispatch.Dispatcher,
    settings: server_settings.Settings,
    guarded: guard.Guard,
) -> uvicorn.Config:
    # uvicorn calls ``http`` as it would a class, and hands the times to the loop as they are.
    return uvicorn.Config(
        application,
        loop="none",
        http=edge.maker(settings, dispatcher.meters),  # type: ignore[arg-type]
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=settings.keep_alive_s,  # type: ignore[arg-type]
        timeout_graceful_shutdown=settings.drain_timeout_s,  # type: ignore[arg-type]
        ssl_context_factory=tls.factory(guarded.certificates),
    )


def _settled(task: asyncio.Task[None]) -> None:
    if task.cancelled():
        return
    task.result()
    # Models stay for long: later collections need not look at them.
    gc.collect()
    gc.freeze()
