"""The standard gRPC health service, answered from the registry at each question.

Nothing is mirrored, so it cannot be out of date. The empty name is the server; ``MODEL`` and
``MODEL/VERSION`` are what is served.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from castiron.server.grpc import messages, service

_LOOK_S = 0.2
_Response = health_pb2.HealthCheckResponse


class Health(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # published without types
    """grpc.health.v1.Health."""

    def __init__(self, inference: service.Service, models: Any) -> None:
        self._inference = inference
        self._models = models

    def _status(self, name: str) -> int | None:
        """None for a name that is not served here."""
        if name in {"", messages.SERVICE}:
            is_ready = self._inference.is_ready()
        else:
            model, _, number = name.partition("/")
            if model not in self._models:
                return None
            is_ready = self._inference.is_model_ready(model, number)
        serving: int = _Response.SERVING if is_ready else _Response.NOT_SERVING
        return serving

    async def Check(self, request: Any, context: Any) -> Any:  # noqa: N802  the protocol's name
        """The state now; NOT_FOUND for a name that is not served here."""
        found = self._status(request.service)
        if found is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such service or model")
        return _Response(status=found)

    async def Watch(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        """The state now, and again whenever it has changed."""
        del context
        last: int | None = None
        while True:
            found = self._status(request.service)
            found = _Response.SERVICE_UNKNOWN if found is None else found
            if found != last:
                last = found
                yield _Response(status=found)
            await asyncio.sleep(_LOOK_S)
