"""The gRPC server of the process: made on the loop that HTTP runs on, stopped with it.

The library ends its server by itself when a caller names a method with bytes that are not UTF-8.
That nobody can take the port down so, another one is started in its place; calls that were in
flight are told UNAVAILABLE or CANCELLED.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any

import grpc
from grpc_health.v1 import health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from castiron import errors
from castiron.server import dispatch
from castiron.server.grpc import guard, health, messages, service
from castiron.server.security import guard as guards

log = logging.getLogger("castiron.server")

_ENVELOPE_BYTES = 64 << 10  # names and shapes around tensors of the largest size
_LOOK_S = 0.1


class Listener:
    """Listens from ``start`` on; ``stop`` answers what is in flight."""

    def __init__(
        self,
        dispatcher: dispatch.Dispatcher,
        is_draining: Callable[[], bool],
        guarded: guards.Guard,
    ) -> None:
        self._dispatcher = dispatcher
        self._is_draining = is_draining
        self._guarded = guarded
        self._given = dispatcher.settings
        self._keeper: asyncio.Task[None] | None = None
        self._leaving: set[asyncio.Task[Any]] = set()
        self._server = self._made()

    def _made(self) -> Any:
        given, meters = self._given, self._dispatcher.meters
        server = grpc.aio.server(
            interceptors=(guard.Gate(self._guarded.access, meters.note_caller),),
            options=[
                ("grpc.max_receive_message_length", given.max_body_bytes + _ENVELOPE_BYTES),
                ("grpc.max_send_message_length", -1),
                ("grpc.max_metadata_size", given.max_head_bytes),
                # A port that is taken is told, unless it is shared with the other workers.
                ("grpc.so_reuseport", int(given.workers > 1)),
            ],
        )
        made = service.Service(self._dispatcher, self._is_draining)
        server.add_generic_rpc_handlers((made.handlers(),))
        watched = health.Health(made, self._dispatcher.registry.models)
        health_pb2_grpc.add_HealthServicer_to_server(watched, server)
        names = (messages.SERVICE, "grpc.health.v1.Health", reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, server, pool=messages.POOL)
        return server

    async def start(self) -> str:
        """Listen; the address. Raises CastironError when that cannot be."""
        host, port = self._given.host, self._given.grpc_port
        shown = f"[{host}]" if ":" in host else host
        bound = self._bind(f"{shown}:{port}")
        if not bound:
            raise errors.CastironError(f"cannot listen on {host} port {port} for gRPC")
        await self._server.start()
        self._keeper = asyncio.create_task(self._keep(f"{shown}:{bound}"))
        return f"{shown}:{bound}"

    def _bind(self, address: str) -> int:
        """The port; 0 when it cannot be had."""
        certificates = self._guarded.certificates
        with contextlib.suppress(RuntimeError):
            if certificates is None:
                return int(self._server.add_insecure_port(address))
            return int(self._server.add_secure_port(address, guard.credentials(certificates)))
        return 0

    async def _keep(self, address: str) -> None:
        """Start another server whenever one ends that nobody has stopped."""
        while True:
            await asyncio.sleep(_LOOK_S)  # no event tells of it before all clients have left
            if _is_running(self._server):
                continue
            log.error("the gRPC server was ended by a broken request; another one is started")
            ended, self._server = self._server, self._made()
            if self._bind(address):
                await self._server.start()
            leaving = asyncio.create_task(ended.wait_for_termination())
            self._leaving.add(leaving)
            leaving.add_done_callback(self._left)

    def _left(self, task: asyncio.Task[Any]) -> None:
        """All connections of a server that has ended are closed; the library has logged why."""
        self._leaving.discard(task)
        if not task.cancelled():
            task.exception()

    async def stop(self, grace_s: float) -> None:
        """Take no more calls; answer those in flight, as many as end in time."""
        for task in (self._keeper, *self._leaving):
            if task is not None:
                task.cancel()
        await self._server.stop(grace_s)


def _is_running(server: Any) -> bool:
    """Whether it takes calls; the library tells that only inside."""
    return bool(server.__dict__["_server"].is_running())
