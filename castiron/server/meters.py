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

STAGES = ("parse", "queue", "compute", "render")


class VersionMeters:
    """The counters of one version, and when it last answered."""

    __slots__ = (
        "compute",
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
        self.last_ms = 0

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
        "direct_bodies",
        "ended",
        "page",
        "refused_heads",
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

    def watch_versions(self, every: Callable[[], list[versions.Version]]) -> None:
        """Show for each version whether it is ready, once the registry knows them."""
        family = self.page.gauge("castiron_version_ready", "1 when ready.", "model", "version")
        for version in every():
            child = family.child(version.model, str(version.number))
            child.source = lambda version=version: float(version.is_ready)
