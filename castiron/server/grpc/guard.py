"""What guards the gRPC port: the same access, rights and certificates as the HTTP port.

Stands before the service, which asks ``require`` about each request that it has read; what lists
models is cut to those of the caller. A call that is not in the table is refused. The errors are those of HTTP, by the table of ``server/status.py``.
"""

from __future__ import annotations

import contextvars
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


class Question:
    """Whether one caller may make the requests of one call; asked once they are read."""

    __slots__ = ("_access", "_grant", "_name", "is_asked")

    def __init__(self, allowed: access.Access, grant: rights.Grant, name: str) -> None:
        self._access = allowed
        self._grant = grant
        self._name = name
        self.is_asked = False

    @property
    def subject(self) -> str:
        """Who asks."""
        return self._grant.subject

    def ask(self, request: Any) -> None:
        """Raise ModelNotFound or Refusal when it may not."""
        self.is_asked = True
        if self._name not in _NEEDED:
            raise rights.forbidden("this call is not offered here")
        action, field = _NEEDED[self._name]
        model = getattr(request, field) if field else ""
        if action == rights.ADMIN:
            self._access.require_control(self._grant, model)
        elif action and model:
            self._grant.require(model, action)
        elif model:
            self._grant.require_sight(model)

    def cut(self, answer: Any) -> Any:
        """The answer, without the models that the caller may not have described."""
        listed = _LISTS.get(self._name)
        if listed is not None:
            entries = getattr(answer, listed)
            seen = [each for each in entries if self._grant.allows(each.name, rights.METADATA)]
            if len(seen) != len(entries):
                del entries[:]
                entries.extend(seen)
        return answer


_question: contextvars.ContextVar[Question | None] = contextvars.ContextVar(
    "question", default=None
)


def require(request: Any) -> None:
    """Raise ModelNotFound or Refusal when the caller may not make this request.

    The service calls it for each request that it has read, before it does anything about it.
    """
    question = _question.get()
    if question is not None:
        question.ask(request)


def subject() -> str:
    """Who asks, by the token; "" where none is asked for. Rate limits count by it."""
    question = _question.get()
    return "" if question is None else question.subject


class Gate(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # published without types
    """Lets through what the access allows; who asks is known before a message is read."""

    def __init__(self, allowed: access.Access, on_refused: Callable[[BaseException], None]) -> None:
        self._access = allowed
        self._on_refused = on_refused

    async def intercept_service(
        self, go_on: Callable[[Any], Awaitable[Any]], asked: grpc.HandlerCallDetails
    ) -> Any:
        """The method's handler, behind the questions about its caller."""
        handler = await go_on(asked)
        service, _, name = asked.method.lstrip("/").rpartition("/")
        is_control = service == messages.SERVICE and name.startswith("RepositoryModel")
        if self._access.is_open and not is_control:
            return handler
        if handler is None or asked.method in _OPEN:
            return handler
        headers = [(k.lower().encode(), _bytes(v)) for k, v in asked.invocation_metadata or ()]
        if service == _HEALTH:
            return _health(handler, self._may_see(headers))
        try:
            grant = await self._access.check(headers)
        except errors.CastironError as error:
            self._on_refused(error)
            return _refusing(error)
        if service != messages.SERVICE:
            return handler
        return _asking(handler, Question(self._access, grant, name))

    def _may_see(self, headers: list[tuple[bytes, bytes]]) -> Callable[[str], Awaitable[None]]:
        """What raises when the caller may not know of a model."""

        async def check(model: str) -> None:
            try:
                (await self._access.check(headers)).require_sight(model)
            except errors.CastironError as error:
                self._on_refused(error)
                raise

        return check


def _asking(handler: Any, question: Question) -> Any:
    """The handler, for which the question is there to be asked."""

    async def unary(request: Any, context: Any) -> Any:
        _question.set(question)
        answer = await handler.unary_unary(request, context)
        assert question.is_asked, "answered without asking"
        return question.cut(answer)

    async def stream(requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        _question.set(question)
        async for each in handler.stream_stream(requests, context):
            assert question.is_asked or each.error_message, "answered without asking"
            yield each

    if handler.unary_unary is not None:
        return _like(handler, "unary_unary", unary)
    return _like(handler, "stream_stream", stream)


def _health(handler: Any, may_see: Callable[[str], Awaitable[None]]) -> Any:
    """The state of the server is for everybody, that of a model for those who see it."""

    async def check(request: Any, context: Any) -> None:
        if request.service in {"", messages.SERVICE}:
            return
        try:
            await may_see(request.service.partition("/")[0])  # MODEL/VERSION
        except errors.CastironError as error:
            await _abort(error, context)

    async def unary(request: Any, context: Any) -> Any:
        await check(request, context)
        return await handler.unary_unary(request, context)

    async def stream(request: Any, context: Any) -> AsyncIterator[Any]:
        await check(request, context)
        async for each in handler.unary_stream(request, context):
            yield each

    if handler.unary_unary is not None:
        return _like(handler, "unary_unary", unary)
    return _like(handler, "unary_stream", stream)


def _refusing(error: errors.CastironError) -> Any:
    """A handler that refuses without reading a message."""

    async def refuse(requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        await _abort(error, context)
        async for each in requests:  # never: it makes this the generator that is expected
            yield each

    return grpc.stream_stream_rpc_method_handler(refuse)


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
