"""The gRPC server of the process: made on the loop that HTTP runs on, stopped with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc
from grpc_health.v1 import health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from castiron import errors
from castiron.server import dispatch
from castiron.server.grpc import guard, health, messages, service
from castiron.server.security import guard as guards

_ENVELOPE_BYTES = 64 << 10  # names and shapes around tensors of the largest size


class Listener:
    """Listens from ``start`` on; ``stop`` answers what is in flight."""

    def __init__(
        self,
        dispatcher: dispatch.Dispatcher,
        is_draining: Callable[[], bool],
        guarded: guards.Guard,
    ) -> None:
        self._certificates = guarded.certificates
        self._given = given = dispatcher.settings
        self._server: Any = grpc.aio.server(
            interceptors=(guard.Gate(guarded.access, dispatcher.meters.note_caller),),
            options=[
                ("grpc.max_receive_message_length", given.max_body_bytes + _ENVELOPE_BYTES),
                ("grpc.max_send_message_length", -1),
                ("grpc.max_metadata_size", given.max_head_bytes),
                # A port that is taken is told, unless it is shared with the other workers.
                ("grpc.so_reuseport", int(given.workers > 1)),
            ],
        )
        made = service.Service(dispatcher, is_draining)
        self._server.add_generic_rpc_handlers((made.handlers(),))
        watched = health.Health(made, dispatcher.registry.models)
        health_pb2_grpc.add_HealthServicer_to_server(watched, self._server)
        names = (messages.SERVICE, "grpc.health.v1.Health", reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self._server, pool=messages.POOL)

    async def start(self) -> str:
        """Listen; the address. Raises CastironError when that cannot be."""
        host, port = self._given.host, self._given.grpc_port
        shown = f"[{host}]" if ":" in host else host
        try:
            bound = self._bind(f"{shown}:{port}")
        except RuntimeError:
            bound = 0
        if not bound:
            raise errors.CastironError(f"cannot listen on {host} port {port} for gRPC")
        await self._server.start()
        return f"{shown}:{bound}"

    def _bind(self, address: str) -> int:
        if self._certificates is None:
            return int(self._server.add_insecure_port(address))
        return int(self._server.add_secure_port(address, guard.credentials(self._certificates)))

    async def stop(self, grace_s: float) -> None:
        """Take no more calls; answer those in flight, as many as end in time."""
        await self._server.stop(grace_s)
