"""POST /v2/models/{model}[/versions/{version}]/predict: an application's request, as one infer call.

It goes the way of every infer call (``dispatch.py``): the same limits, lane, deadline and
counters; only reading and answering differ. Bodies are ``asking.py``, steps ``application.py``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

import numpy as np

from castiron import errors
from castiron.server import application, asking, inference, reply, rest_call, routes, rows, status
from castiron.server import body as bodies
from castiron.server.steps import faults, inward

if TYPE_CHECKING:
    from castiron.server import served
    from castiron.server import settings as server_settings
    from castiron.server.http import exchange as exchanges

_JSON = (b"content-type", b"application/json")


class PredictCall(rest_call.RestCall):
    """One application-level call."""

    __slots__ = ("_application", "_begun_s", "_made")
    has_finish = True

    def __init__(
        self,
        route: routes.Route,
        exchange: exchanges.Exchange,
        given: server_settings.Settings,
        subject: str = "",
    ) -> None:
        super().__init__(route, exchange, given, subject)
        self._begun_s = time.monotonic()
        self._made = inward.Made({})
        self._application: application.Application | None = None

    async def read(self, held: bodies.Body, version: served.Served) -> inference.Inference:
        """The body, then its values, then the tensors that steps make of them."""
        found = self._application = _application_of(version)
        headers = self._exchange.headers
        self.timeout_s = rest_call.timeout_s(headers)
        version.bound(held)
        body = await held.read(self._exchange)
        self.timeline.read_ns = time.monotonic_ns()
        entries = found.contract.schema.input
        asked = asking.parse(headers, body, entries, self._settings.max_json_bytes)
        self._made = await self._in_time(found.before(asked, len(body)), version)
        wanted = found.outputs or list(version.interface.outputs)
        return inference.Inference("", self._made.tensors, dict.fromkeys(wanted, True), None)

    def render(
        self, outputs: rows.Arrays, asked: inference.Inference, version: served.Served
    ) -> Any:
        """The answer where that is quick; else copies of the outputs, for ``finish``."""
        assert self._application is not None
        chosen = {name: outputs[name] for name in asked.wanted}
        done = self._application.after_now(chosen, self._made)
        if done is not None:
            return _reply(done, version)
        return {name: np.array(array) for name, array in chosen.items()}

    async def finish(self, answer: Any, version: served.Served) -> Any:
        """What ``render`` left to a process."""
        if isinstance(answer, reply.Reply):
            return answer
        assert self._application is not None
        steps = self._application.after(answer, self._made)
        return _reply(await self._in_time(steps, version), version)

    async def _in_time(self, steps: Coroutine[Any, Any, Any], version: served.Served) -> Any:
        """Wait for steps until the deadline of the request, or until its client has left."""
        task = asyncio.ensure_future(steps)

        def leave() -> None:
            task.cancel()

        self.watch(leave)
        try:
            async with asyncio.timeout(self._time_left_s(version)):
                return await task
        except TimeoutError:
            raise status.Refusal(
                504, "the answer was not ready in the time allowed", status.TIMEOUT
            ) from None
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if current is not None and current.cancelling():
                task.cancel()
                raise
            raise status.ClientGone("the client left before its answer was ready") from None
        except (faults.TooLargeError, faults.LateError, faults.CrewDiedError) as fault:
            raise _refusal(fault) from None
        finally:
            self.watch(None)

    def _time_left_s(self, version: served.Served) -> float:
        allowed_s = version.default_timeout_ns / 1e9
        if self.timeout_s is not None:
            allowed_s = min(self.timeout_s, version.max_timeout_ns / 1e9)
        return allowed_s - (time.monotonic() - self._begun_s)


def _application_of(version: served.Served) -> application.Application:
    found = version.application
    if found is None:
        raise status.Refusal(
            404,
            f"path: model {version.version.model!r} has no application-level schema in its "
            "contract; call infer with tensors",
            status.NOT_FOUND,
        )
    if found.refusal:
        raise status.Refusal(403, found.refusal)
    return found


def _refusal(fault: errors.CastironError) -> status.Refusal:
    """What steps raise and the table of ``status`` does not know."""
    if isinstance(fault, faults.TooLargeError):
        return status.Refusal(413, str(fault))
    if isinstance(fault, faults.LateError):
        return status.Refusal(504, str(fault), status.TIMEOUT)
    return status.Refusal(500, str(fault), status.FAILED)


def _reply(body: bytes, version: served.Served) -> reply.Reply:
    headers = [
        _JSON,
        (b"content-length", b"%d" % len(body)),
        (b"x-model-version", version.version.digest.encode()),
    ]
    return reply.Reply(headers, [body])
