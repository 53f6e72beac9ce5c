"""One infer request from its head to its one outcome, whatever protocol it came by.

Bounds how many are in flight, reads, parses, starts the run, waits for it, its deadline or the
client's leaving, and counts how it ended. A place is free again only when the run that used it is
truly over. ``rest.py`` calls it; order and batching are the scheduler's business.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from castiron.registry import registry as registries
from castiron.registry import supply
from castiron.registry import version as versions
from castiron.server import body as bodies
from castiron.server import inference, meters, reply, status, turns
from castiron.server import settings as server_settings

if TYPE_CHECKING:
    import numpy as np

    from castiron.server import edge

_LENGTH = b"inference-header-content-length"


@dataclass(frozen=True, slots=True)
class Call:
    """One infer call as its protocol delivers it."""

    model: str
    version: str
    headers: Mapping[bytes, bytes]
    receive: bodies.Receive
    edge: edge.Edge | None


@dataclass(frozen=True, slots=True)
class Served:
    """What dispatch keeps for one ready version."""

    interface: inference.Interface
    meters: meters.VersionMeters
    turns: turns.Turns


class Dispatcher:
    """All infer requests of one process; owned by its event loop."""

    __slots__ = (
        "_budget", "_native", "_served", "_settings", "_supply", "in_use", "meters",
        "registry",
    )  # fmt: skip

    def __init__(
        self,
        supplied: supply.Supply,
        registry_settings: supply.Settings,
        settings: server_settings.Settings,
    ) -> None:
        self._supply = supplied
        self._settings = settings
        self._budget = bodies.Budget(settings.max_buffered_bytes)
        self._served: dict[versions.Version, Served] = {}
        self._native: turns.Turns | None = None
        self.meters = meters.Meters(supplied.memory)
        self.registry = registries.Registry(supplied, registry_settings, self._on_ready)
        self.in_use = 0

    def _on_ready(self, version: versions.Version) -> None:
        instance = version.instance
        assert instance is not None
        if not instance.is_native:
            own = turns.Turns(None, depth=1)
        elif self._native is None:
            lane = self._supply.open_lane(asyncio.get_running_loop())
            own = self._native = turns.Turns(lane, depth=2)
        else:
            own = self._native
        interface = inference.Interface.of(instance.signature)
        self._served[version] = Served(interface, self.meters.of(version), own)

    async def infer(self, call: Call) -> reply.Reply:
        """The answer. Raises what ``status.classify`` knows; counts the outcome either way."""
        accepted_s = time.perf_counter()
        self.meters.accepted.value += 1
        is_known = call.model in self.registry.models
        counted = self.meters.named(call.model, "") if is_known else self.meters.unknown
        outcome = status.FAILED
        place = _Place(self, bodies.Body(self._settings, self._budget))
        try:
            version = self.registry.find(call.model, call.version)
            served = self._served[version]
            counted = served.meters
            place.take()
            body = await place.body.read(call.headers, call.receive, call.edge)
            asked = self._parsed(call, body, served)
            answer = await self._run(call, version, asked, place, accepted_s)
            outcome = status.OK
            return answer
        except asyncio.CancelledError:
            outcome = status.NOT_READY
            raise
        except Exception as error:
            outcome = status.classify(error)[1]
            raise
        finally:
            place.leave()
            counted.end(outcome)

    def _parsed(self, call: Call, body: bytes | memoryview, served: Served) -> inference.Inference:
        begun_s = time.perf_counter()
        json_bytes = _json_bytes(call.headers)
        size = len(body) if json_bytes is None else json_bytes
        limit = self._settings.max_json_bytes
        if size > limit and len(body) > limit:
            raise status.Refusal(
                413,
                f"body: expected at most {limit} bytes of JSON, found {size}; "
                "send large tensors as binary data",
            )
        asked = inference.parse(body, json_bytes, served.interface)
        served.meters.parse.observe(time.perf_counter() - begun_s)
        return asked

    async def _run(
        self,
        call: Call,
        version: versions.Version,
        asked: inference.Inference,
        place: _Place,
        accepted_s: float,
    ) -> reply.Reply:
        served = self._served[version]

        def render(outputs: Mapping[str, np.ndarray]) -> reply.Reply:
            begun_s = time.perf_counter()
            answer = reply.render(outputs, asked, served.interface, version)
            served.meters.render.observe(time.perf_counter() - begun_s)
            return answer

        run = turns.Run(version, asked.inputs, render, served.meters)
        place.run = run
        run.on_over = place.leave
        return await run.result(served.turns, self._time_left(asked, accepted_s), call.edge)

    def _time_left(self, asked: inference.Inference, accepted_s: float) -> float:
        allowed = self._settings.request_timeout_s
        if asked.timeout_s is not None:
            allowed = min(allowed, asked.timeout_s)
        return allowed - (time.perf_counter() - accepted_s)

    @property
    def max_in_flight(self) -> int:
        """How many places there are."""
        return self._settings.max_in_flight


class _Place:
    """A request's share of the bounds: held while it is read, and while its run is not over."""

    __slots__ = ("_dispatcher", "_held", "body", "run")

    def __init__(self, dispatcher: Dispatcher, body: bodies.Body) -> None:
        self._dispatcher = dispatcher
        self._held = False
        self.body = body
        self.run: turns.Run | None = None

    def take(self) -> None:
        if self._dispatcher.in_use >= self._dispatcher.max_in_flight:
            raise status.Refusal(
                503,
                f"{self._dispatcher.in_use} requests are in flight, which is the limit; retry",
                status.OVERLOADED,
            )
        self._dispatcher.in_use += 1
        self._held = True

    def leave(self) -> None:
        """Free it, unless a run still reads the request's body."""
        if self._held and (self.run is None or self.run.is_over):
            self._held = False
            self._dispatcher.in_use -= 1
            self.body.release()


def _json_bytes(headers: Mapping[bytes, bytes]) -> int | None:
    text = headers.get(_LENGTH)
    if text is None:
        return None
    if not text.isdigit() or len(text) > 18:
        raise status.Refusal(
            400, "headers.inference-header-content-length: expected a number of bytes"
        )
    return int(text)
