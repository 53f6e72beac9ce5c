"""One infer request from its coming to its one outcome, whatever protocol it came by.

Finds the version, asks flow control, reads, checks, lets the lane run it, and counts how it ended.
A place is free again only when the run that used it is truly over. ``rest.py`` and ``grpc`` call
it; order and batches are decided in ``scheduler``.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from castiron import errors
from castiron.registry import registry as registries
from castiron.registry import supply
from castiron.registry import version as versions
from castiron.scheduler import breaker, rate, request
from castiron.server import application, inference, lanes, meters, reports, served, status
from castiron.server import body as bodies
from castiron.server import call as calls
from castiron.server import settings as server_settings
from castiron.telemetry import tracer

if TYPE_CHECKING:
    import numpy as np

_STATES = {breaker.CLOSED: 0.0, breaker.TRYING: 0.5, breaker.OPEN: 1.0}


class Dispatcher:
    """All infer requests of one process; owned by its event loop."""

    __slots__ = (
        "_crews",
        "_limiter",
        "_native",
        "_served",
        "_supply",
        "budget",
        "change",
        "in_use",
        "max_in_flight",
        "meters",
        "on_prepared",
        "on_retired",
        "readiness",
        "registry",
        "reports",
        "settings",
        "tracer",
    )  # fmt: skip

    def __init__(
        self,
        supplied: supply.Supply,
        registry_settings: supply.Settings,
        settings: server_settings.Settings,
    ) -> None:
        self._supply = supplied
        self.settings = settings
        self.budget = bodies.Budget(settings.max_buffered_bytes)
        self._crews = application.Crews(settings)
        self._limiter = rate.Limiter()
        self._served: dict[versions.Version, served.Served] = {}
        self._native: lanes.Lanes | None = None
        self.meters = meters.Meters(supplied.memory, settings.metrics_dir, settings.worker)
        self.tracer = tracer.Tracer()
        self.reports = reports.Reports(
            self.meters, supplied.memory, is_terse=settings.terse_replies
        )
        hooks = registries.Hooks(self._prepare, self._retire, self.meters.watch)
        self.registry = registries.Registry(supplied, registry_settings, hooks)
        self.in_use = 0
        self.max_in_flight = settings.max_in_flight  # how many places there are
        self.readiness: Callable[[bool, Any], tuple[bool, Any]] = _as_it_is
        self.on_prepared: Callable[[served.Served], None] = _nothing
        self.on_retired: Callable[[versions.Version], None] = _nothing
        self.change: Callable[[str, str, int | None], Awaitable[None]] = self.registry.change

    # Versions come and go.

    async def _prepare(self, version: versions.Version, instance: supply.Instance) -> None:
        """Make ready what a version needs to answer. What it raises keeps the version out."""
        if not instance.is_native:
            own = lanes.Lanes(None, depth=1)
        elif self._native is None:
            native = self._supply.open_lane(asyncio.get_running_loop())
            own = self._native = lanes.Lanes(native, depth=2)
        else:
            own = self._native
        made = served.Served(version, instance, own, self.meters.of(version), self.settings)
        self.on_prepared(made)  # before its first run, so that a fault in that one is named too
        try:
            made.application = await application.prepare(
                made.contract, version, instance.metadata, self._crews
            )
            await made.open_lane(self.settings)
        except BaseException:
            self.on_retired(version)
            raise
        self._served[version] = made
        self.meters.watch_lane(version, _gauges(made))

    async def _retire(self, version: versions.Version) -> None:
        """Take nothing more for it, and return when nothing of it runs or waits."""
        gone = self._served.get(version)
        if gone is None:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.settings.drain_timeout_s):
                # Nobody chooses it any more; who did before, and still reads, is answered too.
                while gone.num_asking:  # noqa: ASYNC110  as below
                    await asyncio.sleep(0.01)
        gone.lane.give_up()
        gone.lanes.wake()
        await _until_empty(gone)
        gone.lanes.remove(gone)
        if gone.application is not None:
            gone.application.close()
        del self._served[version]
        self.on_retired(version)

    def served_by(self, version: versions.Version) -> served.Served:
        """What is kept for a version that is ready."""
        return self._served[version]

    # Requests.

    def body(self) -> bodies.Body:
        """A body that counts among all bodies of the process."""
        return bodies.Body(self.settings, self.budget)

    def refuse(self, model: str, error: BaseException) -> None:
        """Count a call that ended before it became requests."""
        self.meters.accepted.value += 1
        self._counted(model).end(status.classify(error)[1])

    async def infer(self, call: calls.Call) -> Any:
        """The answer, in the form of the call's protocol.

        Raises what ``status.classify`` knows; counts the outcome either way.
        """
        now = time.monotonic_ns()
        timeline = call.timeline = self.tracer.begin(now, call.parent, call.trace_state)
        place = _Place(self)
        outcome = status.FAILED
        self.meters.accepted.value += 1
        try:
            version = self._choose(call, place, now)
            self._admit(call, version, now)
            place.enter()
            timeline.labels = version.labels[call.protocol]
            asked = await call.read(place, version)
            timeline.parsed_ns = time.monotonic_ns()
            version.check(asked)
            answer = await self._run(call, version, asked, place)
            if call.has_finish:
                answer = await call.finish(answer, version)
            outcome = status.OK
            timeline.ended_ns = time.monotonic_ns()
            version.meters.answered(timeline)
            return answer
        except asyncio.CancelledError:
            outcome = call.cancelled_outcome
            raise
        except Exception as error:
            outcome = status.classify(error)[1]
            place.is_fault = outcome == status.FAILED or isinstance(error, errors.ModelNotReady)
            self._note(error, place)
            raise
        finally:
            self._end(call, place, outcome)

    def _end(self, call: calls.Call, place: _Place, outcome: str) -> None:
        """Give back what the request held, and count how it ended."""
        now = time.monotonic_ns()
        version = place.version
        if version is not None:
            counted = version.meters
            version.num_asking -= 1
            is_good = True if outcome == status.OK else False if place.is_fault else None
            version.breaker.report(place.permit, is_good, now)
        else:
            counted = self._counted(call.model)
        place.leave()
        counted.end(outcome)
        self.tracer.end(call.timeline, outcome, now)

    def _counted(self, model: str) -> meters.VersionMeters:
        """Where requests count that no version took."""
        is_known = model in self.registry.models
        return self.meters.named(model, "") if is_known else self.meters.unknown

    def tick(self, now_s: float) -> None:
        """A second has passed."""
        self.meters.publish()  # first: reports read what it counts
        self.reports.tick(now_s)

    def _choose(self, call: calls.Call, place: _Place, now: int) -> served.Served:
        """The version that answers, from now on held by the place with its breaker's leave.

        Without a number, an older version stands in for one that fails too often.
        """
        candidates = self.registry.candidates(call.model, call.version)
        for version in candidates:
            found = self._served[version]
            permit = found.breaker.permit(now)
            if permit is not None:
                found.num_asking += 1
                place.version, place.permit = found, permit
                return found
        breakers = [self._served[version].breaker for version in candidates]
        self._count_refusal(self._served[candidates[0]], request.BROKEN)
        raise status.Refusal(
            503,
            f"model {call.model!r} fails too often at present and is given a rest; retry later",
            status.NOT_READY,
            reason=request.BROKEN,
            retry_after_ns=max(1, min(each.retry_after_ns(now) for each in breakers)),
        )

    def _admit(self, call: calls.Call, version: served.Served, now: int) -> None:
        """Rate limits, before anything is read."""
        version.retries.note(is_retry=call.is_retry)
        if version.rate is None:
            return
        late_ns = self._limiter.take(call.client, call.model, version.rate, now)
        if late_ns:
            raise status.Refusal(
                429,
                f"this client asks model {call.model!r} more often than "
                f"{version.rate.per_second:g} times a second; retry later",
                status.OVERLOADED,
                reason=request.RATE,
                retry_after_ns=late_ns,
            )

    def _note(self, error: Exception, place: _Place) -> None:
        """Count what flow control refused; a model that bears no more retries says so."""
        if not isinstance(error, status.Refusal) or not error.reason or place.version is None:
            return
        self._count_refusal(place.version, error.reason)
        if place.version.retries.is_spent and error.retry_after_ns:
            error.retry_after_ns = 0
            error.headers = (*error.headers, (b"x-retry-budget", b"spent"))

    def _count_refusal(self, version: served.Served, reason: str) -> None:
        found = version.version
        self.meters.refused_requests.child(found.model, str(found.number), reason).value += 1

    async def _run(
        self, call: calls.Call, version: served.Served, asked: inference.Inference, place: _Place
    ) -> Any:
        timeline = call.timeline
        timeline.input_bytes = asked.size_bytes
        priority = version.priority(asked)
        deadline_ns = timeline.accepted_ns + _allowed_ns(call, asked, version)
        size = version.short(asked)
        if size is not None and time.monotonic_ns() < deadline_ns:
            answer = call.render(version.run_inline(size, asked, timeline), asked, version)
            timeline.rendered_ns = time.monotonic_ns()
            return answer
        waits = _waiting(call, version, asked, (priority, deadline_ns))
        place.work = work = waits.payload
        work.on_over = place.leave
        return await _answer(call, version, waits)


def _waiting(
    call: calls.Call, version: served.Served, asked: inference.Inference, order: tuple[int, int]
) -> request.Request:
    """The request as its lane takes it; ``order`` is its class and deadline."""
    timeline = call.timeline

    def render(outputs: Mapping[str, np.ndarray]) -> Any:
        answer = call.render(outputs, asked, version)
        timeline.rendered_ns = time.monotonic_ns()
        return answer

    inputs, size_bytes = asked.inputs, asked.size_bytes
    num_rows = version.rows and version.rows.count(inputs)
    key = version.rows.key(inputs, tuple(asked.wanted)) if version.rows and num_rows else None
    work = lanes.Work(inputs, size_bytes, render)
    priority, deadline_ns = order
    return request.Request(
        lanes.next_number(), timeline.accepted_ns, deadline_ns, num_rows or 1, size_bytes,
        priority, key, call.client, call.model, work, timeline,
    )  # fmt: skip


async def _answer(call: calls.Call, version: served.Served, waits: request.Request) -> Any:
    """Give the request to its lane and wait for its outcome."""
    work: lanes.Work = waits.payload
    if call.is_gone:
        work.over()
        raise status.ClientGone("the client left before its request was read")
    version.lanes.submit(version, waits)
    if work.future.done():
        return work.future.result()
    call.watch(lambda: version.lanes.cancel(version, waits))
    try:
        return await work.future
    finally:
        call.watch(None)
        if not waits.outcome:
            version.lanes.cancel(version, waits)


def _allowed_ns(call: calls.Call, asked: inference.Inference, version: served.Served) -> int:
    """How long the answer may take: what the client asks, within what the model allows."""
    if call.timeout_s is None and asked.timeout_s is None:
        return version.default_timeout_ns
    wanted = [each for each in (call.timeout_s, asked.timeout_s) if each is not None]
    return min(int(min(wanted) * 1e9), version.max_timeout_ns)


def _as_it_is(is_ready: bool, detail: Any) -> tuple[bool, Any]:
    return is_ready, detail


def _nothing(told: object) -> None:
    del told


async def _until_empty(gone: served.Served) -> None:
    while gone.lane.held:  # noqa: ASYNC110  rare, and runs end by callbacks
        await asyncio.sleep(0.01)


def _gauges(made: served.Served) -> dict[str, Any]:
    """They outlive the version, and must not keep its code, weights and templates."""
    own, opened, short = made.lane, made.breaker, made.quick
    return {
        "lane_waiting": lambda: own.num_waiting,
        "lane_fill_ratio": lambda: own.fill,
        "lane_high_water": lambda: own.high_water,
        "lane_running": lambda: own.num_running,
        "lane_batch_limit_rows": lambda: own.limit.rows,
        "lane_shut_classes": lambda: own.shedder.num_shut,
        "breaker_open": lambda: _STATES[opened.state(time.monotonic_ns())],
        "inline_runs": lambda: short.num_runs,
    }


class _Place(bodies.Body):
    """A request's share of the bounds: held while it is read, and while its run is not over."""

    __slots__ = ("_dispatcher", "_is_held", "is_fault", "permit", "version", "work")

    def __init__(self, dispatcher: Dispatcher) -> None:
        super().__init__(dispatcher.settings, dispatcher.budget)
        self._dispatcher = dispatcher
        self._is_held = self.is_fault = False
        self.work: lanes.Work | None = None
        self.version: served.Served | None = None
        self.permit = 0

    def enter(self) -> None:
        """Refusal when there is no place left."""
        dispatcher = self._dispatcher
        if dispatcher.in_use >= dispatcher.max_in_flight:
            raise status.Refusal(
                503,
                f"{dispatcher.in_use} requests are in flight, which is the limit; retry",
                status.OVERLOADED,
                reason=request.FULL,
            )
        dispatcher.in_use += 1
        self._is_held = True

    def leave(self) -> None:
        """Free it, unless a run still reads the request's body."""
        if self._is_held and (self.work is None or self.work.is_over):
            self._is_held = False
            self._dispatcher.in_use -= 1
            self.release()
