"""What the edge counts: requests by outcome, time by stage, what is in flight, the pool.

In flight is derived (accepted minus ended), never counted apart, so the sums always agree. A
version's children are looked up once and kept in its ``VersionMeters``; what times they took is
counted apart from requests, in ``ledger.py``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

import castiron
from castiron.registry import version as versions
from castiron.server import ledger, status
from castiron.telemetry import families, metrics, shared, tracer
from castiron.telemetry import timeline as timelines

# Answers and runs that a version keeps until they are counted; more would save little.
MOST_KEPT = 256


class VersionMeters:
    """The counters of one version.

    Outcomes are counted at once: what a crash took with it is told from them. Times are kept, and
    counted before somebody reads them, which only ``settled`` lets anybody do.
    """

    __slots__ = (
        "_answers",
        "_ledger",
        "_rows",
        "_runs",
        "_runs_kept",
        "answered_rows",
        "executions",
        "outcomes",
        "wasted",
    )

    def __init__(self, meters: Meters, model: str, number: str) -> None:
        self.outcomes = {
            outcome: meters.ended.child(model, number, outcome) for outcome in status.OUTCOMES
        }
        self.wasted = meters.wasted.child(model, number)
        self._runs = meters.executions.child(model, number)
        self._rows = meters.answered_rows.child(model, number)
        self.executions = int(self._runs.value)
        self.answered_rows = int(self._rows.value)
        self._answers: list[ledger.Times] = []
        self._runs_kept: list[tuple[int, int]] = []
        self._ledger = ledger.Ledger(
            meters.latency.child(model, number),
            {stage: meters.stages.child(model, number, stage) for stage in families.STAGES},
            meters.batch_rows.child(model, number),
            meters.busy,
        )

    def answered(self, done: timelines.Timeline) -> None:
        """One request was answered, whose timeline is complete."""
        kept = self._answers
        kept.append(ledger.times_of(done))
        if len(kept) >= MOST_KEPT:
            self.settled()

    def count_batch(self, num_rows: int, time_ns: int) -> None:
        """One run of so many rows."""
        self.executions += 1
        kept = self._runs_kept
        kept.append((num_rows, time_ns))
        if len(kept) >= MOST_KEPT:
            self.settled()

    def end(self, outcome: str) -> None:
        """Count one request's end."""
        self.outcomes[outcome].value += 1

    def settled(self) -> ledger.Ledger:
        """The times of all answers and runs until now."""
        if self._answers:
            self._ledger.count_answers(self._answers)
            self._answers.clear()
        if self._runs_kept:
            self._ledger.count_runs(self._runs_kept)
            self._runs_kept.clear()
        self._runs.value = self.executions
        self._rows.value = self.answered_rows
        return self._ledger


class Meters:
    """All families of the edge and the children it needs itself."""

    __slots__ = (
        "_folder",
        "_known",
        "accepted",
        "answered_rows",
        "batch_rows",
        "busy",
        "direct_bodies",
        "ended",
        "executions",
        "fates",
        "lanes",
        "latency",
        "page",
        "ready",
        "refused_callers",
        "refused_heads",
        "refused_requests",
        "stages",
        "unknown",
        "wasted",
    )

    def __init__(
        self, memory: Callable[[], Mapping[str, float]], folder: str = "", worker: int = 0
    ) -> None:
        """Count alone, or as this worker among those that share the folder."""
        self._folder = folder
        path = os.path.join(folder, f"worker-{worker}{shared.SUFFIX}")
        store = shared.Page(path) if folder else None
        self.page = page = metrics.Metrics(store)
        self.fates = tracer.Fates(page.family(families.SPANS))
        self.accepted = page.family(families.ACCEPTED).child()
        self.ended = page.family(families.ENDED)
        self.latency = page.family(families.LATENCY)
        self.stages = page.family(families.STAGE)
        self.wasted = page.family(families.WASTED)
        self.executions = page.family(families.RUNS)
        self.answered_rows = page.family(families.ROWS)
        self.batch_rows = page.family(families.BATCH_ROWS)
        self.busy = page.family(families.BUSY).child()
        self.refused_requests = page.family(families.REFUSED)
        self.ready = page.family(families.READY)
        self.lanes = {name: page.family(declared) for name, declared in families.LANES.items()}
        self.refused_heads = page.family(families.REFUSED_HEADS)
        self.refused_callers = page.family(families.REFUSED_CALLERS)
        self.direct_bodies = page.family(families.DIRECT_BODIES).child()
        self._known: dict[tuple[str, str], VersionMeters] = {}
        self.unknown = self.named("", "")
        self._declare_gauges(memory)
        if store is not None:
            self._end_lost(store)

    def _settle(self) -> None:
        """Count what was kept, also of versions that are gone: none is ever forgotten."""
        for each in self._known.values():
            each.settled()

    def publish(self) -> None:
        """Count what was kept, and let the other workers see what is read only when asked for."""
        self._settle()
        if self._folder:
            self.page.publish()

    def expose(self) -> str:
        """The text form of all workers together; of others, as they last published."""
        self._settle()
        if not self._folder:
            return self.page.expose()
        return shared.merged(self._folder, self.page).expose()

    def _end_lost(self, store: metrics.Store) -> None:
        """What a process that died here had accepted and not ended has failed."""
        for labels in store.labels_of(families.ENDED.name):
            self.ended.child(*labels)
        self.unknown.outcomes[status.FAILED].value += self.in_flight

    def _declare_gauges(self, memory: Callable[[], Mapping[str, float]]) -> None:
        self.page.family(families.IN_FLIGHT).child().source = lambda: self.in_flight
        self.page.family(families.BUILD).child(castiron.__version__).value = 1
        for name in memory():
            gauge = self.page.family(families.POOL[name]).child()
            gauge.source = lambda name=name: memory()[name]

    @property
    def in_flight(self) -> float:
        """Requests accepted and not ended."""
        ended = sum(child.value for child in self.ended.children.values())
        return self.accepted.value - ended

    def note_caller(self, error: BaseException) -> None:
        """Count an error that says that the caller is not known or may not."""
        if isinstance(error, status.Refusal) and error.why:
            self.refused_callers.child(error.why).value += 1

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
