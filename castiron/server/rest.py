"""The Open Inference Protocol over HTTP: an exchange to its answer, no framework.

Finds the route, asks whether it may be taken, calls ``describe`` or ``dispatch``, and writes the
answer; each error leaves as the one error body. Connections are ``http``, listening ``life.py``.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, NamedTuple

import orjson

from castiron import errors
from castiron.registry import version as versions
from castiron.server import (
    control,
    describe,
    dispatch,
    inference,
    predict,
    reply,
    rest_batch,
    rest_call,
    rest_parts,
    routes,
    status,
)
from castiron.server import settings as server_settings
from castiron.server.http import eager
from castiron.server.http import exchange as exchanges
from castiron.server.security import access, page, rights
from castiron.telemetry import metrics

log = logging.getLogger("castiron.server")

Exchange = exchanges.Exchange


class Answer(NamedTuple):
    """What is written for one request; ``lines`` are more headers, written already."""

    code: int
    headers: exchanges.Headers
    parts: list[exchanges.Bytes] | rest_parts.Parts
    lines: bytes = b""


class Rest:
    """The application; ``is_draining`` takes readiness down before the server stops."""

    __slots__ = ("_access", "_dispatcher", "_settings", "is_draining")

    def __init__(
        self,
        dispatcher: dispatch.Dispatcher,
        settings: server_settings.Settings,
        allowed: access.Access,
    ) -> None:
        self._access = allowed
        self._dispatcher = dispatcher
        self._settings = settings
        self.is_draining = False

    async def __call__(self, exchange: Exchange) -> None:
        """One request."""
        stop: asyncio.CancelledError | None = None
        try:
            route = routes.of(exchange.head.raw_path)
            if route.call == routes.INFER:
                answer = await self._infer(route, exchange)
            else:
                await eager.in_task()
                answer = await self._other(route, exchange)
        except status.ClientGone:
            exchange.asked = None
            return
        except asyncio.CancelledError as cancelled:
            # The time for draining is over; the client is told before the loop ends.
            stop = cancelled
            fault = errors.ModelNotReady("the server is stopping; retry elsewhere")
            answer = self._refused(exchange, fault)
        except Exception as error:  # noqa: BLE001  ``_refused`` tells the log
            answer = self._refused(exchange, error)
        exchange.asked = None  # it knows the exchange, and no collection should be needed for both
        code, headers, parts, lines = answer
        if type(parts) is list and len(parts) == 1:
            exchange.answer(code, headers, parts[0], lines)
        else:
            await _write(exchange, answer)
        if stop is not None:
            raise stop

    def _refused(self, exchange: Exchange, error: Exception) -> Answer:
        if status.classify(error)[1] == status.FAILED:
            log.error("%s %s failed", exchange.method, exchange.path, exc_info=error)
        self._dispatcher.meters.note_caller(error)
        code, headers, content = status.answer(error)
        if isinstance(exchange.asked, rest_call.RestCall):
            headers.extend(self._dispatcher.reports.headers(exchange.asked.timeline))
        return Answer(code, headers, [content])

    async def _infer(self, route: routes.Route, exchange: Exchange) -> Answer:
        """One infer request, which is what must be quick."""
        head = exchange.head
        grant = await self._access.check(head.lines)
        grant.require(route.model, rights.INFER)
        _allow(head.method, route)
        return await self._answer(
            exchange, rest_call.RestCall(route, exchange, self._settings, grant.subject)
        )

    async def _answer(self, exchange: Exchange, call: rest_call.RestCall) -> Answer:
        exchange.asked = call
        done: reply.Reply = await self._dispatcher.infer(call)
        lines = done.lines + self._dispatcher.reports.lines(call.timeline)
        return Answer(200, done.headers, done.parts, lines)

    async def _other(self, route: routes.Route, exchange: Exchange) -> Answer:
        """All that is not one infer request."""
        if route.call in {"live", "ready"}:
            _allow(exchange.method, route)
            return self._health(route)
        grant = await self._access.check(exchange.header_lines)
        if not route.call and not route.model:
            raise _no_route(exchange)
        if route.model and route.call not in {"load", "unload"}:
            return await self._model(route, grant, exchange)
        _allow(exchange.method, route)
        if route.call in {"load", "unload", "index"}:
            return await self._repository(route, grant, exchange)
        return self._server(route, grant)

    def _health(self, route: routes.Route) -> Answer:
        """For whoever probes, without a token; which models there are is told to those known."""
        if route.call == "live":
            return _json({"live": True})
        is_ready, detail = describe.readiness(
            self._dispatcher.registry,
            is_draining=self.is_draining,
            is_strict=self._settings.strict_readiness,
        )
        is_ready, detail = self._dispatcher.readiness(is_ready, detail)
        if not self._access.is_open:
            detail.pop("versions", None)
        return _json(detail, 200 if is_ready else 503)

    def _server(self, route: routes.Route, grant: rights.Grant) -> Answer:
        registry = self._dispatcher.registry
        if route.call == "all_stats":
            return _json({"model_stats": [self._statistics(version) for version in registry
                                          if grant.allows(version.model, rights.METADATA)]})  # fmt: skip
        if route.call == "models":
            return _json({"models": [model for model in registry.models
                                     if grant.allows(model, rights.METADATA)]})  # fmt: skip
        if route.call == "metrics":
            text = page.visible(self._dispatcher.meters.expose(), grant).encode()
            return Answer(200, _headers(text, metrics.CONTENT_TYPE.encode()), [text])
        return _json(describe.server())

    async def _repository(
        self, route: routes.Route, grant: rights.Grant, exchange: Exchange
    ) -> Answer:
        """repository/index, repository/models/{model}/load and unload."""
        if route.call != "index":
            self._access.require_control(grant, route.model)
        given = await self._object(exchange)
        if route.call == "index":
            told = describe.index(self._dispatcher.registry, only_ready=given.get("ready") is True)
            return _json([one for one in told if grant.allows(one["name"], rights.METADATA)])
        change = control.load if route.call == "load" else control.unload
        parameters = given.get("parameters", {})
        if type(parameters) is not dict:
            raise errors.InputError("expected an object", "parameters")
        await change(self._dispatcher, route.model, parameters)
        return _json({})

    async def _object(self, exchange: Exchange) -> dict[str, Any]:
        """The JSON object in a small body; empty when there is no body."""
        headers = exchange.headers
        if headers.get(b"content-length", b"0") == b"0" and b"transfer-encoding" not in headers:
            return {}
        held = self._dispatcher.body()
        try:
            return inference.decoded(bytes(await held.read(exchange)))
        finally:
            held.release()

    async def _model(self, route: routes.Route, grant: rights.Grant, exchange: Exchange) -> Answer:
        """All that is asked of one model, infer apart."""
        grant.require_sight(route.model)
        if not route.call:
            raise _no_route(exchange)
        _allow(exchange.method, route)
        if route.call == routes.PREDICT:
            grant.require(route.model, rights.INFER)
            call = predict.PredictCall(route, exchange, self._settings, grant.subject)
            return await self._answer(exchange, call)
        if route.call == routes.BATCH:
            grant.require(route.model, rights.INFER)
            return await self._batch(route, grant, exchange)
        if route.call != "model_ready":
            grant.require(route.model, rights.METADATA)
        if route.call == "stats" and not route.version:
            return self._model_statistics(route.model)
        return self._description(route)

    async def _batch(self, route: routes.Route, grant: rights.Grant, exchange: Exchange) -> Answer:
        asked = rest_batch.Batch(route, exchange, self._dispatcher, grant.subject)
        done = await asked.answer()
        parts = done if isinstance(done, rest_parts.Parts) else done.parts
        return Answer(200, done.headers, parts)

    def _description(self, route: routes.Route) -> Answer:
        version = self._dispatcher.registry.find(route.model, route.version)
        if route.call == "model_ready":
            return _json({"name": route.model, "ready": True})
        if route.call == "config":
            return _json(describe.configuration(self._dispatcher.served_by(version)))
        if route.call == "stats":
            return _json({"model_stats": [self._statistics(version)]})
        return _json(describe.model(self._dispatcher.registry, version))

    def _model_statistics(self, model: str) -> Answer:
        numbered = self._dispatcher.registry.models.get(model)
        if numbered is None:
            raise errors.ModelNotFound(f"model {model!r} is not served here")
        return _json({"model_stats": [self._statistics(numbered[key]) for key in numbered]})

    def _statistics(self, version: versions.Version) -> dict[str, Any]:
        return describe.statistics(version, self._dispatcher.meters.of(version))


async def _write(exchange: Exchange, answer: Answer) -> None:
    """What cannot be written at once."""
    code, headers, parts, lines = answer
    if isinstance(parts, rest_parts.Parts):
        await exchange.stream(code, headers, parts.body())
    else:
        await exchange.answer_in_parts(code, headers, parts, lines)


def _allow(method: str, route: routes.Route) -> None:
    allowed = route.method
    if method != allowed and (method, allowed) != ("HEAD", "GET"):
        raise status.Refusal(
            405, f"method: expected {allowed}, found {method}",
            headers=((b"allow", b"GET, HEAD" if allowed == "GET" else b"POST"),),
        )  # fmt: skip


def _no_route(exchange: Exchange) -> status.Refusal:
    return status.Refusal(404, f"path: no such call: {exchange.path[:200]}", status.NOT_FOUND)


def _json(content: Any, code: int = 200) -> Answer:
    encoded = orjson.dumps(content)
    return Answer(code, _headers(encoded, b"application/json"), [encoded])


def _headers(content: bytes, kind: bytes) -> exchanges.Headers:
    return [(b"content-type", kind), (b"content-length", b"%d" % len(content))]
