"""What the edge counts: requests by outcome, time by stage, what is in flight, the pool.

In flight is derived (accepted minus ended), never counted apart, so the sums always agree. A
version's children are looked up once and kept in its ``VersionMeters``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import castiron
from castiron.registry import version as versions
from castiron.server import status
from castiron.telemetry import metrics

_ROW_BOUNDS = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 1024.0)
_MOST_ROWS = 1024
_LANE_GAUGES = {
    "lane_waiting": "Requests that wait in the lane.",
    "lane_running": "Batches under way.",
    "lane_batch_limit_rows": "Rows that a batch may have at present.",
    "lane_shut_classes": "Priority classes that are refused at present.",
    "breaker_open": "1 while the version is given a rest, 0.5 while it is tried again.",
    "inline_runs": "Runs made by the event loop itself, so far.",
}

STAGES = ("parse", "queue", "compute", "render")


class VersionMeters:
    """The counters of one version, and when it last answered."""

    __slots__ = (
        "answered_rows",
        "batch_rows",
        "batches",
        "compute",
        "executions",
        "last_ms",
        "outcomes",
        "parse",
        "queue",
        "render",
        "wasted",
    )

    def __init__(self, meters: Meters, model: str, number: str) -> None:
        self.outcomes = {
            outcome: meters.ended.child(model, number, outcome) for outcome in status.OUTCOMES
        }
        self.parse, self.queue, self.compute, self.render = (
            meters.stages.child(model, number, stage) for stage in STAGES
        )
        self.wasted = meters.wasted.child(model, number)
        self.executions = meters.executions.child(model, number)
        self.answered_rows = meters.answered_rows.child(model, number)
        self.batch_rows = meters.batch_rows.child(model, number)
        self.last_ms = 0
        self.batches: dict[int, tuple[int, int]] = {}

    def count_batch(self, num_rows: int, time_ns: int) -> None:
        """One run of so many rows; sizes above a thousand are counted as one."""
        num_rows = min(num_rows, _MOST_ROWS)
        self.executions.value += 1
        self.batch_rows.observe(num_rows)
        count, total_ns = self.batches.get(num_rows, (0, 0))
        self.batches[num_rows] = count + 1, total_ns + time_ns

    def end(self, outcome: str) -> None:
        """Count one request's end."""
        self.outcomes[outcome].value += 1
        if outcome == status.OK:
            self.last_ms = time.time_ns() // 1_000_000


class Meters:
    """All families of the edge and the children it needs itself."""

    __slots__ = (
        "_known",
        "accepted",
        "answered_rows",
        "batch_rows",
        "direct_bodies",
        "ended",
        "executions",
        "lanes",
        "page",
        "ready",
        "refused_heads",
        "refused_requests",
        "stages",
        "unknown",
        "wasted",
    )

    def __init__(self, memory: Callable[[], Mapping[str, float]]) -> None:
        self.page = metrics.Metrics()
        self.accepted = self.page.counter(
            "castiron_requests_accepted_total", "Infer requests whose head was read."
        ).child()
        self.ended = self.page.counter(
            "castiron_requests_total",
            "Infer requests by the one outcome each had; model is empty for unknown names.",
            "model", "version", "outcome",
        )  # fmt: skip
        self.stages = self.page.histogram(
            "castiron_stage_seconds",
            "Time of answered infer requests by stage.",
            "model", "version", "stage",
        )  # fmt: skip
        self.wasted = self.page.counter(
            "castiron_wasted_runs_total",
            "Runs whose end nobody waited for any more.",
            "model", "version",
        )  # fmt: skip
        self.executions = self.page.counter(
            "castiron_runs_total", "Runs that went through.", "model", "version"
        )
        self.answered_rows = self.page.counter(
            "castiron_rows_total", "Rows of answered requests.", "model", "version"
        )
        self.batch_rows = self.page.histogram(
            "castiron_batch_rows", "Rows of each run.", "model", "version", bounds=_ROW_BOUNDS
        )
        self.refused_requests = self.page.counter(
            "castiron_refused_requests_total",
            "Requests that flow control refused, by its reason.",
            "model", "version", "reason",
        )  # fmt: skip
        self.ready = self.page.gauge("castiron_version_ready", "1 when ready.", "model", "version")
        self.lanes = {
            name: self.page.gauge(f"castiron_{name}", text, "model", "version")
            for name, text in _LANE_GAUGES.items()
        }
        self.refused_heads = self.page.counter(
            "castiron_connections_refused_total",
            "Connections ended because of a malformed, oversize or late request.",
            "reason",
        )
        self.direct_bodies = self.page.counter(
            "castiron_direct_bodies_total", "Large bodies read straight into memory of their own."
        ).child()
        self._known: dict[tuple[str, str], VersionMeters] = {}
        self.unknown = self.named("", "")
        self._declare_gauges(memory)

    def _declare_gauges(self, memory: Callable[[], Mapping[str, float]]) -> None:
        in_flight = self.page.gauge("castiron_requests_in_flight", "Accepted and not ended.")
        in_flight.child().source = lambda: self.in_flight
        build = self.page.gauge("castiron_build_info", "Always 1.", "version")
        build.child(castiron.__version__).value = 1
        for name in memory():
            gauge = self.page.gauge(f"castiron_pool_{name}", f"Pool of the device: {name}.")
            gauge.child().source = lambda name=name: memory()[name]

    @property
    def in_flight(self) -> float:
        """Requests accepted and not ended."""
        ended = sum(child.value for child in self.ended.children.values())
        return self.accepted.value - ended

    def of(self, version: versions.Version) -> VersionMeters:
        """The meters of this version."""
        return self.named(version.model, str(version.number))

    def named(self, model: str, number: str) -> VersionMeters:
        """The meters of a model and version; names come from the registry, never from clients."""
        key = (model, number)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = VersionMeters(self, *key)
        return found

    def watch(self, version: versions.Version) -> None:
        """Show whether the version is ready; a version of the same number takes its place."""
        child = self.ready.child(version.model, str(version.number))
        child.source = lambda: float(version.is_ready)

    def watch_lane(
        self, version: versions.Version, read: Mapping[str, Callable[[], float]]
    ) -> None:
        """Show the numbers of a version's lane, by the names of its gauges."""
        for name, source in read.items():
            self.lanes[name].child(version.model, str(version.number)).source = source
