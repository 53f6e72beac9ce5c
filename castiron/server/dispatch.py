"""One infer request from its head to its one outcome, whatever protocol it came by.

Bounds how many are in flight, reads, parses, starts the run, waits for it, its deadline or the
client's leaving, and counts how it ended. A place is free again only when the run that used it is
truly over. ``rest.py`` calls it; order and batching are the scheduler's business.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from castiron.registry import registry as registries
from castiron.registry import supply
from castiron.registry import version as versions
from castiron.server import body as bodies
from castiron.server import inference, meters, reply, status
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


class Clock:
    """When the last run in a queue that runs one at a time was over."""

    __slots__ = ("last_done_s",)

    def __init__(self) -> None:
        self.last_done_s = 0.0


@dataclass(frozen=True, slots=True)
class Served:
    """What dispatch keeps for one ready version."""

    interface: inference.Interface
    meters: meters.VersionMeters
    clock: Clock


class Dispatcher:
    """All infer requests of one process; owned by its event loop."""

    __slots__ = (
        "_budget", "_lane", "_native", "_served", "_settings", "_supply", "in_use", "meters",
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
        self._lane: Any = None
        self._native = Clock()
        self.meters = meters.Meters(supplied.memory)
        self.registry = registries.Registry(supplied, registry_settings, self._on_ready)
        self.in_use = 0

    def _on_ready(self, version: versions.Version) -> None:
        instance = version.instance
        assert instance is not None
        if instance.is_native and self._lane is None:
            self._lane = self._supply.open_lane(asyncio.get_running_loop())
        clock = self._native if instance.is_native else Clock()
        interface = inference.Interface.of(instance.signature)
        self._served[version] = Served(interface, self.meters.of(version), clock)

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
            body = await place.body.read(call.headers, call.receive)
            asked = self._parsed(call, body, served)
            run = _Run(place, version, served, asked)
            answer = await run.result(self._lane, self._time_left(asked, accepted_s), call.edge)
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

    def _parsed(self, call: Call, body: bytes, served: Served) -> inference.Inference:
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

    __slots__ = ("_dispatcher", "_held", "body", "is_running")

    def __init__(self, dispatcher: Dispatcher, body: bodies.Body) -> None:
        self._dispatcher = dispatcher
        self._held = False
        self.body = body
        self.is_running = False

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
        if self._held and not self.is_running:
            self._held = False
            self._dispatcher.in_use -= 1
            self.body.release()


class _Run:
    """A started run and the future that its request waits for."""

    __slots__ = ("_asked", "_future", "_place", "_served", "_submitted_s", "_version")

    def __init__(
        self,
        place: _Place,
        version: versions.Version,
        served: Served,
        asked: inference.Inference,
    ) -> None:
        self._place = place
        self._version = version
        self._served = served
        self._asked = asked
        self._submitted_s = 0.0
        self._future: asyncio.Future[reply.Reply] = asyncio.get_running_loop().create_future()

    async def result(
        self, lane: Any, time_left_s: float, connection: edge.Edge | None
    ) -> reply.Reply:
        """Start it and wait: for its end, its deadline, or until the client has left."""
        instance = self._version.instance
        assert instance is not None
        if time_left_s <= 0:
            raise _late()
        self._submitted_s = time.perf_counter()
        instance.start(self._asked.inputs, lane, self._done)
        self._place.is_running = True
        self._version.in_flight += 1
        timer = self._future.get_loop().call_later(time_left_s, self._give_up, _late)
        if connection is not None:
            connection.on_gone = self._gone
        try:
            return await self._future
        finally:
            timer.cancel()
            if connection is not None:
                connection.on_gone = None

    def _gone(self) -> None:
        self._give_up(lambda: status.ClientGone("the client left before its answer was ready"))

    def _give_up(self, reason: Callable[[], Exception]) -> None:
        if not self._future.done():
            self._future.set_exception(reason())

    def _done(self, outputs: Mapping[str, np.ndarray] | None, error: Exception | None) -> None:
        """The run is over; outputs are read now, since they may go back to the pool after."""
        done_s = time.perf_counter()
        self._version.in_flight -= 1
        self._observe(done_s)
        self._place.is_running = False
        if self._future.done():
            self._place.leave()
            return
        if error is not None:
            self._future.set_exception(error)
            return
        assert outputs is not None
        try:
            answer = reply.render(outputs, self._asked, self._served.interface, self._version)
        except Exception as fault:  # noqa: BLE001  the request is told, not the lane
            self._future.set_exception(fault)
            return
        self._served.meters.render.observe(time.perf_counter() - done_s)
        self._future.set_result(answer)

    def _observe(self, done_s: float) -> None:
        """Runs of one clock follow each other, so a run began when the one before it ended."""
        clock = self._served.clock
        begun_s = max(self._submitted_s, clock.last_done_s)
        clock.last_done_s = done_s
        self._served.meters.queue.observe(begun_s - self._submitted_s)
        self._served.meters.compute.observe(done_s - begun_s)


def _late() -> Exception:
    return status.Refusal(504, "the answer was not ready in the time allowed", status.TIMEOUT)


def _json_bytes(headers: Mapping[bytes, bytes]) -> int | None:
    text = headers.get(_LENGTH)
    if text is None:
        return None
    if not text.isdigit() or len(text) > 18:
        raise status.Refusal(
            400, "headers.inference-header-content-length: expected a number of bytes"
        )
    return int(text)
