"""The Open Inference Protocol over HTTP: one ASGI callable, no framework.

Finds the route, calls ``describe`` or ``dispatch``, and writes the answer; each error leaves as
the one error body. Listening and stopping are ``life.py``, the connection itself ``edge.py``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import orjson

from castiron import errors
from castiron.server import (
    body,
    control,
    describe,
    dispatch,
    inference,
    predict,
    rest_batch,
    rest_call,
    rest_parts,
    status,
)
from castiron.server import settings as server_settings
from castiron.server.security import access, page, rights
from castiron.telemetry import metrics

if TYPE_CHECKING:
    from castiron.server import edge

log = logging.getLogger("castiron.server")

_CALL = "castiron.call"

Scope = MutableMapping[str, Any]
Send = Callable[[Mapping[str, Any]], Awaitable[None]]
Answer = tuple[int, list[tuple[bytes, bytes]], list[bytes | memoryview] | rest_parts.Parts]


class Rest:
    """The application; ``is_draining`` takes readiness down before the server stops."""

    __slots__ = ("_access", "_client_header", "_dispatcher", "_settings", "is_draining")

    def __init__(
        self,
        dispatcher: dispatch.Dispatcher,
        settings: server_settings.Settings,
        allowed: access.Access,
    ) -> None:
        self._access = allowed
        self._client_header = settings.client_header.lower().encode("latin-1")
        self._dispatcher = dispatcher
        self._settings = settings
        self.is_draining = False

    async def __call__(self, scope: Scope, receive: body.Receive, send: Send) -> None:
        """One request."""
        assert scope["type"] == "http", scope["type"]
        stop: asyncio.CancelledError | None = None
        try:
            answer = await self._answer(scope, receive)
        except status.ClientGone:
            return
        except asyncio.CancelledError as cancelled:
            # The time for draining is over; the client is told before the loop ends.
            stop = cancelled
            answer = _refused(errors.ModelNotReady("the server is stopping; retry elsewhere"))
        except Exception as error:
            if status.classify(error)[1] == status.FAILED:
                log.exception("%s %s failed", scope["method"], scope["path"], exc_info=error)
            answer = _refused(error)
            if (asked := scope.get(_CALL)) is not None:
                answer[1].extend(self._dispatcher.reports.headers(asked.timeline))
        await _write(answer, scope, send)
        if stop is not None:
            raise stop

    async def _answer(self, scope: Scope, receive: body.Receive) -> Answer:
        parts = scope["raw_path"].decode("latin-1").strip("/").split("/")
        method = scope["method"]
        if parts[:2] == ["v2", "health"]:
            return self._health(method, parts[2:])
        grant = await self._access.check(scope["headers"])
        if grant.subject:
            # Rate limits count who it is; what a client calls itself comes earlier and loses.
            scope["headers"] = [*scope["headers"], (self._client_header, grant.subject.encode())]
        if parts[0] == "v2":
            if len(parts) > 2 and parts[1] == "models" and parts[2] != "stats":
                return await self._model(grant, parts[2:], scope, receive)
            if len(parts) > 2 and parts[1] == "repository":
                return await self._repository(grant, parts[2:], scope, receive)
            return self._server(method, parts[1:], grant)
        if parts == ["metrics"]:
            _allow(method, "GET")
            text = page.visible(self._dispatcher.meters.expose(), grant).encode()
            return 200, _headers(text, metrics.CONTENT_TYPE.encode()), [text]
        raise _no_route(scope)

    def _health(self, method: str, parts: list[str]) -> Answer:
        """For whoever probes, without a token; which models there are is told to those known."""
        if parts == ["live"]:
            _allow(method, "GET")
            return _json({"live": True})
        if parts != ["ready"]:
            raise status.Refusal(404, "path: no such call below /v2/health", status.NOT_FOUND)
        _allow(method, "GET")
        is_ready, detail = describe.readiness(
            self._dispatcher.registry,
            is_draining=self.is_draining,
            is_strict=self._settings.strict_readiness,
        )
        is_ready, detail = self._dispatcher.readiness(is_ready, detail)
        if not self._access.is_open:
            detail.pop("versions", None)
        return _json(detail, 200 if is_ready else 503)

    def _server(self, method: str, parts: list[str], grant: rights.Grant) -> Answer:
        registry = self._dispatcher.registry
        route = "/".join(parts)
        if route == "models/stats":
            _allow(method, "GET")
            return _json({"model_stats": [self._statistics(version) for version in registry
                                          if grant.allows(version.model, rights.METADATA)]})  # fmt: skip
        if route == "models":
            _allow(method, "GET")
            return _json({"models": [model for model in registry.models
                                     if grant.allows(model, rights.METADATA)]})  # fmt: skip
        if route == "":
            _allow(method, "GET")
            return _json(describe.server())
        raise status.Refusal(404, f"path: no such call: /v2/{route[:200]}", status.NOT_FOUND)

    async def _repository(
        self, grant: rights.Grant, parts: list[str], scope: Scope, receive: body.Receive
    ) -> Answer:
        """repository/index, repository/models/{model}/load and unload."""
        is_model = len(parts) == 3 and parts[0] == "models" and parts[2] in {"load", "unload"}
        if parts != ["index"] and not is_model:
            raise _no_route(scope)
        _allow(scope["method"], "POST")
        if is_model:
            self._access.require_control(grant, unquote(parts[1]))
        given = await self._object(scope, receive)
        if parts == ["index"]:
            told = describe.index(self._dispatcher.registry, only_ready=given.get("ready") is True)
            return _json([one for one in told if grant.allows(one["name"], rights.METADATA)])
        change = control.load if parts[2] == "load" else control.unload
        parameters = given.get("parameters", {})
        if type(parameters) is not dict:
            raise errors.InputError("expected an object", "parameters")
        await change(self._dispatcher, unquote(parts[1]), parameters)
        return _json({})

    async def _object(self, scope: Scope, receive: body.Receive) -> dict[str, Any]:
        """The JSON object in a small body; empty when there is no body."""
        headers = dict(scope["headers"])
        if headers.get(b"content-length", b"0") == b"0" and b"transfer-encoding" not in headers:
            return {}
        held = self._dispatcher.body()
        try:
            return inference.decoded(
                bytes(await held.read(headers, receive, scope.get("castiron.edge")))
            )
        finally:
            held.release()

    async def _model(
        self, grant: rights.Grant, parts: list[str], scope: Scope, receive: body.Receive
    ) -> Answer:
        """models/{model}[/versions/{version}][/infer|predict|batch|ready|config|stats]."""
        method, model, parts = scope["method"], unquote(parts[0]), parts[1:]
        grant.require_sight(model)
        number = ""
        if len(parts) > 1 and parts[0] == "versions":
            number, parts = unquote(parts[1]), parts[2:]
            if not number:
                raise status.Refusal(404, "path: expected a version number", status.NOT_FOUND)
        if parts == ["infer"]:
            _allow(method, "POST")
            grant.require(model, rights.INFER)
            return await self._infer(model, number, scope, receive)
        if parts == ["predict"]:
            _allow(method, "POST")
            grant.require(model, rights.INFER)
            return await self._predict(model, number, scope, receive)
        if parts == ["batch"]:
            _allow(method, "POST")
            grant.require(model, rights.INFER)
            return await self._batch(model, number, scope, receive)
        if parts not in ([], ["ready"], ["config"], ["stats"]):
            raise _no_route(scope)
        _allow(method, "GET")
        if parts != ["ready"]:
            grant.require(model, rights.METADATA)
        if parts == ["stats"] and not number:
            return self._model_statistics(model)
        version = self._dispatcher.registry.find(model, number)
        if not parts:
            return _json(describe.model(self._dispatcher.registry, version))
        if parts == ["ready"]:
            return _json({"name": model, "ready": True})
        if parts == ["config"]:
            return _json(describe.configuration(self._dispatcher.served_by(version)))
        return _json({"model_stats": [self._statistics(version)]})

    async def _batch(self, model: str, number: str, scope: Scope, receive: body.Receive) -> Answer:
        headers, connection = dict(scope["headers"]), scope.get("castiron.edge")
        batch = rest_batch.Batch((model, number), headers, connection, self._dispatcher)
        answer = await batch.answer(receive)
        if isinstance(answer, rest_parts.Parts):
            return 200, answer.headers, answer
        return 200, answer.headers, answer.parts

    async def _infer(self, model: str, number: str, scope: Scope, receive: body.Receive) -> Answer:
        call = rest_call.RestCall(
            (model, number), dict(scope["headers"]), receive, scope.get("castiron.edge"),
            self._settings,
        )  # fmt: skip
        scope[_CALL] = call
        answer = await self._dispatcher.infer(call)
        headers = [*answer.headers, *self._dispatcher.reports.headers(call.timeline)]
        return 200, headers, answer.parts

    async def _predict(
        self, model: str, number: str, scope: Scope, receive: body.Receive
    ) -> Answer:
        call = predict.PredictCall(
            (model, number), dict(scope["headers"]), receive, scope.get("castiron.edge"),
            self._settings,
        )  # fmt: skip
        scope[_CALL] = call
        answer = await self._dispatcher.infer(call)
        headers = [*answer.headers, *self._dispatcher.reports.headers(call.timeline)]
        return 200, headers, answer.parts

    def _model_statistics(self, model: str) -> Answer:
        numbered = self._dispatcher.registry.models.get(model)
        if numbered is None:
            raise errors.ModelNotFound(f"model {model!r} is not served here")
        return _json({"model_stats": [self._statistics(numbered[key]) for key in numbered]})

    def _statistics(self, version: Any) -> dict[str, Any]:
        return describe.statistics(version, self._dispatcher.meters.of(version))


async def _write(answer: Answer, scope: Scope, send: Send) -> None:
    """Send an answer; its head and first part leave together."""
    code, headers, parts = answer
    if isinstance(parts, rest_parts.Parts):
        await _write_parts(headers, parts, send)
        return
    first, *rest = parts
    connection: edge.Edge | None = scope.get("castiron.edge")
    if connection is not None:
        if code == 200 and not rest and connection.write_whole(scope, headers, first):
            return
        if code != 200 and connection.awaits_continue:
            # Whether its body follows now is the client's choice; only a close makes it certain.
            headers.append((b"connection", b"close"))
        connection.outlet.hold()
    try:
        await send({"type": "http.response.start", "status": code, "headers": headers})
        await send({"type": "http.response.body", "body": first, "more_body": bool(rest)})
    finally:
        if connection is not None:
            connection.outlet.release()
    for index, part in enumerate(rest, 1):
        more = index < len(rest)
        await send({"type": "http.response.body", "body": part, "more_body": more})


async def _write_parts(
    headers: list[tuple[bytes, bytes]], parts: rest_parts.Parts, send: Send
) -> None:
    """Send the parts of an answer as they come; nothing more once the client has gone."""
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    with contextlib.suppress(status.ClientGone):
        async with contextlib.aclosing(parts.body()) as body_parts:
            async for part in body_parts:
                await send({"type": "http.response.body", "body": part, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def _refused(error: BaseException) -> Answer:
    code, headers, content = status.answer(error)
    return code, headers, [content]


def _allow(method: str, allowed: str) -> None:
    if method != allowed and (method, allowed) != ("HEAD", "GET"):
        raise status.Refusal(
            405, f"method: expected {allowed}, found {method}",
            headers=((b"allow", b"GET, HEAD" if allowed == "GET" else b"POST"),),
        )  # fmt: skip


def _no_route(scope: Scope) -> status.Refusal:
    return status.Refusal(404, f"path: no such call: {scope['path'][:200]}", status.NOT_FOUND)


def _json(content: Any, code: int = 200) -> Answer:
    encoded = orjson.dumps(content)
    return code, _headers(encoded, b"application/json"), [encoded]


def _headers(content: bytes, kind: bytes) -> list[tuple[bytes, bytes]]:
    return [(b"content-type", kind), (b"content-length", b"%d" % len(content))]
