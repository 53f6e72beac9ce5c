"""The admin calls over HTTP: what is served, and what may be done about it, each call audited.

An application for a listener of its own; nothing of it can be asked on the data port. What the
calls do is handed in as functions (``Calls``); who may make them is asked of ``access``.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

import orjson

from castiron import errors
from castiron.server import body as bodies
from castiron.server import settings as server_settings
from castiron.server import status
from castiron.server.http import eager
from castiron.server.http import exchange as exchanges
from castiron.server.security import access as accesses
from castiron.server.security import audit, loopback, rights, tls

log = logging.getLogger("castiron.security")

MAX_BODY_BYTES = 64 << 10
_numbers = itertools.count(1)

Action = Callable[[str, Mapping[str, Any]], Awaitable[Any]]
Described = Callable[[Callable[[str], bool]], Any]
Answer = tuple[int, list[tuple[bytes, bytes]], bytes]


@dataclass(frozen=True, slots=True)
class Calls:
    """What the admin calls do.

    ``status`` describes the models for which its argument is true. ``actions`` are called with a
    model and the parameters of the request, and give what is answered as JSON; what they raise
    becomes an error as for every other call.
    """

    status: Described
    actions: Mapping[str, Action] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Asked:
    """One request as the audit log tells of it."""

    action: str
    model: str
    origin: str
    certificate: str
    begun_s: float = field(default_factory=time.perf_counter)
    id: str = field(default_factory=lambda: f"{os.getpid()}-{next(_numbers)}")

    def told(self, grant: rights.Grant | None) -> dict[str, Any]:
        who = {"certificate": self.certificate}
        if grant is not None:
            who |= {"subject": grant.subject, "issuer": grant.issuer}
        return {
            "id": self.id, "who": {name: text for name, text in who.items() if text},
            "from": self.origin, "action": self.action, "model": self.model,
        }  # fmt: skip


class Admin:
    """The application."""

    __slots__ = ("_access", "_audit", "_budget", "_calls", "_settings", "on_refused")

    def __init__(
        self,
        calls: Calls,
        access: accesses.Access,
        log_of: audit.Audit,
        settings: server_settings.Settings,
    ) -> None:
        self._calls = calls
        self._access = access
        self._audit = log_of
        self._settings = settings
        self._budget = bodies.Budget(settings.max_buffered_bytes)
        self.on_refused: Callable[[BaseException], None] = _nobody_counts

    async def __call__(self, exchange: exchanges.Exchange) -> None:
        """One request."""
        await eager.in_task()
        try:
            code, headers, content = await self._answer(exchange)
        except status.ClientGone:
            return
        except Exception as error:
            if status.classify(error)[1] == status.FAILED:
                log.exception("%s %s failed", exchange.method, exchange.path, exc_info=error)
            self.on_refused(error)
            code, headers, content = status.answer(error)
        exchange.answer(code, headers, content)

    async def _answer(self, exchange: exchanges.Exchange) -> Answer:
        asked = _asked(exchange)
        grant: rights.Grant | None = None
        try:
            if self._access.is_open:
                _refuse_browsers(exchange.headers)
            grant = await self._access.check(exchange.header_lines)
            self._check(exchange.method, asked, grant)
        except errors.CastironError as error:
            await self._tell_refused(asked, grant, error)
            raise
        if not asked.model:
            return _json(await self._status(asked, grant))
        parameters = await self._parameters(exchange)
        return _json(await self._act(asked, grant, parameters))

    def _check(self, method: str, asked: _Asked, grant: rights.Grant) -> None:
        """Refuse what may not be asked, or does not exist."""
        if not asked.action:
            raise status.Refusal(404, "path: no such admin call", status.NOT_FOUND)
        if asked.model:
            grant.require(asked.model, rights.ADMIN)
            if asked.action not in self._calls.actions:
                known = ", ".join(self._calls.actions) or "none"
                raise status.Refusal(
                    404, f"path: no such action: {asked.action[:40]}; there are: {known}",
                    status.NOT_FOUND,
                )  # fmt: skip
        expected = "POST" if asked.model else "GET"
        if method != expected:
            raise status.Refusal(405, f"method: expected {expected}, found {method}",
                                 headers=((b"allow", expected.encode()),))  # fmt: skip

    async def _tell_refused(
        self, asked: _Asked, grant: rights.Grant | None, error: Exception
    ) -> None:
        code = status.classify(error)[0]
        told = asked.told(grant)
        try:
            await self._audit.write_refusal(**told, outcome="refused", code=code, reason=str(error))
        except OSError:
            log.exception("the audit log misses a refusal: %s", told)

    async def _status(self, asked: _Asked, grant: rights.Grant) -> Any:
        found = self._calls.status(lambda model: grant.allows(model, rights.ADMIN))
        await self._audit.write(**asked.told(grant), outcome="ok")
        return found

    async def _act(self, asked: _Asked, grant: rights.Grant, parameters: dict[str, Any]) -> Any:
        told = asked.told(grant) | {"parameters": orjson.dumps(parameters).decode()}
        try:
            await self._audit.write(**told, outcome="begun")
        except OSError as fault:
            raise errors.ModelNotReady(
                f"the audit log cannot be written ({fault.strerror or fault}), so nothing was done"
            ) from None
        outcome: dict[str, Any] = {"outcome": "failed"}
        try:
            result = await self._calls.actions[asked.action](asked.model, parameters)
            outcome = {"outcome": "ok"}
            return result
        except asyncio.CancelledError:
            outcome = {"outcome": "cancelled"}
            raise
        except Exception as error:
            outcome |= {"code": status.classify(error)[0], "reason": str(error)}
            raise
        finally:
            took_ms = round((time.perf_counter() - asked.begun_s) * 1e3, 3)
            await self._tell_after({**told, **outcome, "took_ms": took_ms})

    async def _tell_after(self, told: dict[str, Any]) -> None:
        """What was done cannot be taken back because it cannot be written down."""
        try:
            await self._audit.write(**told)
        except OSError:
            log.exception("the audit log misses how a call ended: %s", told)

    async def _parameters(self, exchange: exchanges.Exchange) -> dict[str, Any]:
        headers = exchange.headers
        if b"content-length" not in headers and b"transfer-encoding" not in headers:
            return {}
        body = bodies.Body(self._settings, self._budget)
        try:
            text = await body.read(exchange)
            found = orjson.loads(text) if text else {}
        except orjson.JSONDecodeError:
            raise errors.InputError("expected a JSON object", "body") from None
        finally:
            body.release()
        if not isinstance(found, dict):
            raise errors.InputError("expected a JSON object", "body")
        return found


def _asked(exchange: exchanges.Exchange) -> _Asked:
    """What is asked for: the status, an action on a model, or (no action) something unknown."""
    parts = exchange.raw_path.decode("latin-1").strip("/").split("/")
    action = model = ""
    if parts == ["v1", "status"]:
        action = "status"
    elif len(parts) == 4 and parts[:2] == ["v1", "models"] and parts[2]:
        model, action = unquote(parts[2]), unquote(parts[3])
    connection = exchange.connection
    subject = tls.subject_of(connection.transport)
    return _Asked(action, model, connection.address, subject)


def _nobody_counts(error: BaseException) -> None:
    del error


def _refuse_browsers(headers: Mapping[bytes, bytes]) -> None:
    """Where no token is asked for, a page in a browser of this machine must not be the one."""
    try:
        host = urlsplit("//" + headers.get(b"host", b"").decode("latin-1")).hostname or ""
    except ValueError:  # half an address
        host = ""
    is_page = b"origin" in headers or headers.get(b"sec-fetch-site", b"none") != b"none"
    if is_page or not loopback.is_loopback(host):
        raise rights.forbidden(
            "expected a request of a program on this machine to 127.0.0.1 or localhost"
        )


def _json(content: Any) -> Answer:
    encoded = orjson.dumps(content)
    return (
        200,
        [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(encoded))],
        encoded,
    )
