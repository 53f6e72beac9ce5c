"""The supervisor: holds the ports, starts workers on them, replaces those that die or hang.

It answers no request, so it has little to fail at: sockets that workers inherit, a look at the
board ten times a second, and the changes that all workers make together. SIGTERM drains workers
and ends with status 0; a second signal ends them at once.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Sequence
from typing import Any

from castiron import errors
from castiron.server import listen
from castiron.server import settings as server_settings
from castiron.server.security import settings as security_settings
from castiron.server.workers import blame, board, changing, child, messages
from castiron.telemetry import families, metrics, shared

log = logging.getLogger("castiron.server")

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_LOOK_S = 0.1
_STOPPED_NS = 400_000_000
_STUCK_NS = 1_200_000_000
_START_NS = 120_000_000_000
_QUICK_NS = 2_000_000_000
_LONGEST_PAUSE_S = 5.0
_FORCE_S = 2.0
_MARGIN_S = 5.0


def serve(
    command: Sequence[str],
    settings: server_settings.Settings,
    security: security_settings.Settings,
) -> int:
    """Keep ``settings.workers`` processes of this command serving until a signal; the status.

    Prints where they listen once they do. Raises CastironError when a port cannot be had.
    """
    folder = settings.metrics_dir or tempfile.mkdtemp(prefix="castiron-metrics-")
    try:
        ports = _Ports(settings, security)
        return asyncio.run(_Supervisor(command, settings, ports, folder).run())
    finally:
        if not settings.metrics_dir:
            shutil.rmtree(folder, ignore_errors=True)


class _Ports:
    """The sockets that workers inherit, and where they listen."""

    def __init__(
        self, settings: server_settings.Settings, security: security_settings.Settings
    ) -> None:
        self.scheme = "https" if security.tls_cert else "http"
        self.taken = {"data": listen.listen(settings.host, settings.port)}
        self.hosts = {"data": settings.host, "admin": security.admin_host}
        if security.admin_port >= 0:
            self.taken["admin"] = listen.listen(security.admin_host, security.admin_port)
        self.grpc_port = settings.grpc_port
        self._grpc = _reserved(settings.host, settings.grpc_port)
        if self._grpc is not None:
            self.grpc_port = self._grpc.getsockname()[1]

    @property
    def places(self) -> dict[str, tuple[str, int]]:
        """Host and port of each inherited socket."""
        return {name: (self.hosts[name], taken.getsockname()[1])
                for name, taken in self.taken.items()}  # fmt: skip

    def tell(self) -> None:
        """Print the lines that other programs read."""
        data = self.taken["data"]
        print(f"serving on {listen.url_of(data, self.scheme)}", flush=True)  # noqa: T201
        if self._grpc is not None:
            where = listen.url_of(self._grpc, "grpc")
            print(f"serving on {where}", flush=True)  # noqa: T201
        if "admin" in self.taken:
            where = listen.url_of(self.taken["admin"], self.scheme)
            print(f"admin on {where}", flush=True)  # noqa: T201

    def close(self) -> None:
        """Workers have their own; once they too have closed theirs, nobody can connect."""
        for taken in (*self.taken.values(), *([self._grpc] if self._grpc else [])):
            taken.close()


def _reserved(host: str, port: int) -> socket.socket | None:
    """A port for sockets that each worker's gRPC makes itself; it takes no connections."""
    if port < 0:
        return None
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    taken = socket.socket(family, socket.SOCK_STREAM)
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        taken.bind((host, port))
    except OSError as fault:
        taken.close()
        raise errors.CastironError(
            f"cannot listen on {host} port {port} for gRPC: {fault.strerror}"
        ) from None
    return taken


class _Supervisor:
    """All workers, and how they are."""

    def __init__(
        self,
        command: Sequence[str],
        settings: server_settings.Settings,
        ports: _Ports,
        folder: str,
    ) -> None:
        self._command = command
        self._settings = settings
        self._ports = ports
        self._folder = folder
        self._board = board.Board.create(settings.workers)
        self._workers = [child.Child(index, self._board) for index in range(settings.workers)]
        self._changes = changing.Changes(self._listening, self._on_switch)
        self._blame = blame.Blame()
        self._status: int | None = None
        self._is_stopping = False
        self._has_told = False
        self._last_look_ns = 0
        self._page = page = metrics.Metrics(shared.Page(os.path.join(folder, "supervisor.metrics")))
        self._restarts = page.family(families.RESTARTS)
        self._swaps = page.family(families.SWAP)
        self._num_alive = page.family(families.WORKERS).child()

    def _listening(self) -> list[child.Child]:
        return [worker for worker in self._workers if worker.is_listening]

    def _on_switch(self, model: str, took_s: float) -> None:
        self._swaps.child(model).observe(took_s)

    async def run(self) -> int:
        """Until all workers have ended after a signal."""
        loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._on_signal, number)
        for worker in self._workers:
            self._start(worker)
        work = loop.create_task(self._changes.work())
        looks = loop.create_task(self._look_on())
        await self._ended.wait()
        work.cancel()
        looks.cancel()
        self._ports.close()
        assert self._status is not None
        log.info("all workers have ended")
        return self._status

    # Workers come and go.

    def _start(self, worker: child.Child) -> None:
        if self._is_stopping:
            return
        given: messages.Message = {
            "places": self._ports.places, "grpc_port": self._ports.grpc_port,
            "metrics_dir": self._folder, "trips": self._blame.trips,
            "promoted": self._changes.promoted, "left_out": sorted(self._changes.left_out),
        }  # fmt: skip
        fds = {name: taken.fileno() for name, taken in self._ports.taken.items()}
        worker.start(self._command, given, fds, self._on_end)
        assert worker.end is not None
        asyncio.get_running_loop().add_reader(worker.end.fileno(), self._read, worker)
        self._count()

    def _count(self) -> None:
        self._num_alive.value = sum(worker.is_alive for worker in self._workers)

    def _on_end(self, worker: child.Child) -> None:
        assert worker.process is not None
        self._drain_messages(worker)
        process, reason, was_listening = worker.process.pid, worker.reason, worker.is_listening
        cause = child.cause_of(worker.collect())
        self._count()
        if self._is_stopping:
            log.info("worker %d (process %d) ended with %s", worker.index, process, cause)
            self._finish_when_empty(is_good=cause == "status 0")
            return
        log.error("worker %d (process %d) died: %s", worker.index, process, reason or cause,
                  extra={"worker": worker.index, "cause": cause, "reason": reason})  # fmt: skip
        for name in self._blame.look(worker, cause):
            for other in self._listening():
                other.order("trip", name=name, until_ns=self._blame.trips[name]).add_done_callback(
                    _forget
                )
        if worker.num_starts == 1 and not was_listening and not self._has_told:
            self._give_up()
            return
        self._restarts.child(reason or cause).value += 1
        is_quick = time.monotonic_ns() - worker.started_ns < _QUICK_NS
        worker.num_quick_deaths = worker.num_quick_deaths + 1 if is_quick else 0
        pause_s = 0.0
        if worker.num_quick_deaths > 1:
            pause_s = min(0.1 * 2**worker.num_quick_deaths, _LONGEST_PAUSE_S)
        asyncio.get_running_loop().call_later(pause_s, self._start, worker)

    def _give_up(self) -> None:
        """What the first worker could not begin, others cannot either; it has said why."""
        self._is_stopping = True
        self._status = 1
        for worker in self._workers:
            worker.kill("not needed")
        self._finish_when_empty(is_good=False)

    def _finish_when_empty(self, *, is_good: bool) -> None:
        if self._status is None or not is_good:
            self._status = 0 if is_good else 1
        if not any(worker.is_alive for worker in self._workers):
            self._ended.set()

    # What workers say.

    def _read(self, worker: child.Child) -> None:
        while worker.end is not None:
            try:
                found = messages.receive(worker.end)
            except BlockingIOError:
                return
            if found is None:
                asyncio.get_running_loop().remove_reader(worker.end.fileno())
                return
            self._take(worker, found)

    def _drain_messages(self, worker: child.Child) -> None:
        """What it said before it died counts."""
        self._read(worker)

    def _take(self, worker: child.Child, found: messages.Message) -> None:
        if "done" in found:
            worker.settle(found)
        elif "ask" in found:
            number, end = found["ask"], worker.end

            def answer(error: BaseException | None) -> None:
                told: messages.Message = {"answer": number}
                if error is not None:
                    told["fault"] = messages.fault_of(error)
                if end is not None and end is worker.end:
                    messages.send(end, told)

            self._changes.put(found, answer)
        elif found["say"] == "have":
            worker.paths[found["name"]] = found["path"]
        elif found["say"] == "listening":
            self._on_listening(worker)

    def _on_listening(self, worker: child.Child) -> None:
        worker.is_listening = True
        log.info("worker %d listens after %d ms", worker.index,
                 (time.monotonic_ns() - worker.started_ns) // 1_000_000)  # fmt: skip
        if not self._has_told:
            self._has_told = True
            self._ports.tell()

    # Looking on.

    async def _look_on(self) -> None:
        self._last_look_ns = time.monotonic_ns()
        while True:
            await asyncio.sleep(_LOOK_S)
            now = time.monotonic_ns()
            # A machine that lets us wait lets workers wait too: that is no fault of theirs.
            late_ns = max(0, now - self._last_look_ns - int(2 * _LOOK_S * 1e9))
            self._last_look_ns = now
            for worker in self._workers:
                self._look(worker, now - 2 * late_ns)
            self._page.publish()

    def _look(self, worker: child.Child, now: int) -> None:
        if not worker.is_alive or worker.reason or self._is_stopping:
            return
        beat_ns = self._board.beat_ns(worker.index)
        if not beat_ns:
            if now - worker.started_ns > _START_NS:
                worker.kill("did not start")
            return
        silent_ns = now - beat_ns
        if silent_ns > _STUCK_NS or (silent_ns > _STOPPED_NS and worker.is_stopped()):
            log.error("worker %d has said nothing for %d ms: replaced", worker.index,
                      silent_ns // 1_000_000)  # fmt: skip
            worker.kill("stopped" if worker.is_stopped() else "stuck")

    # The end.

    def _on_signal(self, number: int) -> None:
        if self._is_stopping:
            log.warning("second signal: stopping at once")
            self._status = 1
            self._signal_all(signal.SIGTERM)
            asyncio.get_running_loop().call_later(_FORCE_S, self._kill_all)
            return
        log.info("%s: stopping", signal.Signals(number).name)
        self._is_stopping = True
        loop = asyncio.get_running_loop()
        given = self._settings
        self._signal_all(signal.SIGTERM)
        loop.call_later(given.drain_delay_s, self._ports.close)
        cap_s = given.drain_delay_s + given.drain_timeout_s + _MARGIN_S
        loop.call_later(cap_s, self._kill_all)
        if not any(worker.is_alive for worker in self._workers):
            self._finish_when_empty(is_good=True)

    def _signal_all(self, number: int) -> None:
        for worker in self._workers:
            if worker.is_stopped():
                worker.kill("stopped")
            worker.signal(number)

    def _kill_all(self) -> None:
        for worker in self._workers:
            worker.kill("late")


def _forget(order: asyncio.Future[Any]) -> None:
    if not order.cancelled():
        order.exception()


def settings_of(
    told: messages.Message,
    settings: server_settings.Settings,
    security: security_settings.Settings,
) -> tuple[server_settings.Settings, security_settings.Settings]:
    """The settings of one worker: the ports that were taken, and its place among the others."""
    places = told["places"]
    own = dataclasses.replace(
        settings, port=places["data"][1], grpc_port=told["grpc_port"],
        metrics_dir=told["metrics_dir"], worker=told["index"],
        watch_s=settings.watch_s if told["index"] == 0 else 0.0,
    )  # fmt: skip
    if "admin" in places:
        security = dataclasses.replace(security, admin_port=places["admin"][1])
    return own, security
