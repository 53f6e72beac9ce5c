"""What guards the gRPC port: the same access, rights and certificates as the HTTP port.

Stands before the service: a call is looked at by its name and its model before the service sees
it, and what lists models is cut to those of the caller. A call that is not in the table is
refused. The errors are those of HTTP, by the table of ``server/status.py``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc

from castiron import errors
from castiron.server import status
from castiron.server.grpc import messages
from castiron.server.security import access, rights, tls

_CODES = {code.value[0]: code for code in grpc.StatusCode}

_OPEN = frozenset({
    f"/{messages.SERVICE}/ServerLive", f"/{messages.SERVICE}/ServerReady",
})  # fmt: skip
_HEALTH = "grpc.health.v1.Health"

# The right that a call needs, "" when being known is enough, and the field that names the model.
_NEEDED: dict[str, tuple[str, str]] = {
    "ModelReady": ("", "name"),
    "ServerMetadata": ("", ""),
    "ModelMetadata": (rights.METADATA, "name"),
    "ModelConfig": (rights.METADATA, "name"),
    "ModelStatistics": (rights.METADATA, "name"),
    "ModelInfer": (rights.INFER, "model_name"),
    "ModelStreamInfer": (rights.INFER, "model_name"),
    "RepositoryIndex": ("", ""),
    "RepositoryModelLoad": (rights.ADMIN, "model_name"),
    "RepositoryModelUnload": (rights.ADMIN, "model_name"),
}

# Where an answer lists models, and how each entry calls its own.
_LISTS = {"RepositoryIndex": "models", "ModelStatistics": "model_stats"}


class Gate(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # published without types
    """Lets through what the access allows."""

    def __init__(self, allowed: access.Access) -> None:
        self._access = allowed

    async def intercept_service(
        self, go_on: Callable[[Any], Awaitable[Any]], asked: grpc.HandlerCallDetails
    ) -> Any:
        """The method's handler, behind the questions about its caller."""
        handler = await go_on(asked)
        if self._access.is_open and not _is_control(asked.method):
            return handler
        if handler is None or asked.method in _OPEN:
            return handler
        service, _, name = asked.method.lstrip("/").rpartition("/")
        headers = [(k.lower().encode(), _bytes(v)) for k, v in asked.invocation_metadata or ()]
        check = _Check(self._access, headers, service, name)
        if handler.unary_unary is not None:
            return _like(handler, "unary_unary", check.unary(handler.unary_unary))
        if handler.unary_stream is not None:
            return _like(handler, "unary_stream", check.watch(handler.unary_stream))
        if handler.stream_stream is not None:
            return _like(handler, "stream_stream", check.stream(handler.stream_stream))
        return None


class _Check:
    """The questions about one call of one service."""

    def __init__(
        self, allowed: access.Access, headers: list[tuple[bytes, bytes]], service: str, name: str
    ) -> None:
        self._access = allowed
        self._headers = headers
        self._service = service
        self._name = name if service == messages.SERVICE else ""

    async def _grant(self, request: Any, context: Any) -> rights.Grant | None:
        """The caller's, which allows this request; None for one that everybody may make."""
        if self._service == _HEALTH and request.service in {"", messages.SERVICE}:
            return None
        try:
            grant = await self._access.check(self._headers)
            self._require(grant, request)
        except errors.CastironError as error:
            await _abort(error, context)
        return grant

    def unary(self, call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def answer(request: Any, context: Any) -> Any:
            grant = await self._grant(request, context)
            told = await call(request, context)
            return told if grant is None else self._cut(grant, told)

        return answer

    def watch(self, call: Callable[..., AsyncIterator[Any]]) -> Callable[..., AsyncIterator[Any]]:
        async def answer(request: Any, context: Any) -> AsyncIterator[Any]:
            await self._grant(request, context)
            async for each in call(request, context):
                yield each

        return answer

    def stream(self, call: Callable[..., AsyncIterator[Any]]) -> Callable[..., AsyncIterator[Any]]:
        async def answer(requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
            try:
                grant = await self._access.check(self._headers)
            except errors.CastironError as error:
                await _abort(error, context)
            refused: list[errors.CastironError] = []

            async def allowed() -> AsyncIterator[Any]:
                async for request in requests:
                    try:
                        self._require(grant, request)
                    except errors.CastironError as error:
                        refused.append(error)
                        return
                    yield request

            async for each in call(allowed(), context):
                yield each
            if refused:
                await _abort(refused[0], context)

        return answer

    def _require(self, grant: rights.Grant, request: Any) -> None:
        if self._service == _HEALTH:
            grant.require_sight(request.service.partition("/")[0])  # MODEL/VERSION
        if self._service != messages.SERVICE:
            return
        if self._name not in _NEEDED:
            raise rights.forbidden("this call is not offered here")
        action, field = _NEEDED[self._name]
        model = getattr(request, field) if field else ""
        if action == rights.ADMIN:
            self._access.require_control(grant, model)
        elif action and model:
            grant.require(model, action)
        elif model:
            grant.require_sight(model)

    def _cut(self, grant: rights.Grant, answer: Any) -> Any:
        listed = _LISTS.get(self._name)
        if listed is not None:
            entries = getattr(answer, listed)
            seen = [each for each in entries if grant.allows(each.name, rights.METADATA)]
            if len(seen) != len(entries):
                del entries[:]
                entries.extend(seen)
        return answer


def credentials(certificates: tls.Certificates) -> Any:
    """TLS for the port; the certificates of ``certificates`` as they are at each handshake."""
    needs_client = bool(certificates.client_ca)
    told = certificates.contents

    def configuration() -> Any:
        chain, key, *authorities = certificates.contents
        return grpc.ssl_server_certificate_configuration(
            [(key, chain)], authorities[0] if authorities else None
        )

    def renewed() -> Any:
        nonlocal told
        if certificates.contents is told:
            return None  # nothing new
        told = certificates.contents
        return configuration()

    return grpc.dynamic_ssl_server_credentials(configuration(), renewed, needs_client)


def _is_control(method: str) -> bool:
    return method.startswith(f"/{messages.SERVICE}/RepositoryModel")


def _like(handler: Any, kind: str, call: Any) -> Any:
    make = getattr(grpc, f"{kind}_rpc_method_handler")
    return make(
        call,
        request_deserializer=handler.request_deserializer,
        response_serializer=handler.response_serializer,
    )


async def _abort(error: errors.CastironError, context: Any) -> None:
    code = _CODES[status.grpc_code(error)]
    await context.abort(code, status.text_of(error)[:2000])


def _bytes(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode()
