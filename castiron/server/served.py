"""What the server keeps for one version while it answers: its lane, limits, checks and meters.

Made before the version is admitted, from its Instance and the contract beside it or inside it; a
contract that does not fit the model keeps the version from being served. ``dispatch.py`` uses it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from castiron import errors
from castiron.contract import check, document, model, validate
from castiron.registry import supply
from castiron.registry import version as versions
from castiron.scheduler import batch, breaker, lane, request, retry, settings
from castiron.server import fixed, inference, meters, probe, quick, rows
from castiron.server import settings as server_settings
from castiron.telemetry import timeline as timelines

if TYPE_CHECKING:
    from castiron.server import application, lanes, template
    from castiron.server import body as bodies

log = logging.getLogger("castiron.server")

_US = 1_000
_MS = 1_000_000
_MOST_ROWS = 1 << 30
_DEVICE = "cpu"
_PROTOCOLS = ("http", "grpc")
_RELEASE = "switch"  # others need a memory, over restarts, of what answered


class Served:
    """One version that answers."""

    __slots__ = ("_shelf", "_validator", "application", "breaker", "classes", "contract", "default_class",
                 "default_timeout_ns", "instance", "interface", "labels", "lane", "lanes", "max_timeout_ns",
                 "meters", "num_asking", "quick", "rate", "retries", "rows", "version")  # fmt: skip

    def __init__(
        self,
        version: versions.Version,
        instance: supply.Instance,
        own: lanes.Lanes,
        counted: meters.VersionMeters,
        given: server_settings.Settings,
    ) -> None:
        self.version = version
        names = version.model, str(version.number), _DEVICE
        self.labels = {protocol: timelines.Labels(*names, protocol) for protocol in _PROTOCOLS}
        self.num_asking = 0  # requests that chose this version and have not ended
        self.instance = instance
        self.lanes = own
        self.meters = counted
        self.interface = inference.Interface.of(instance.signature)
        self.contract = contract = _contract(version, instance)
        self.application: application.Application | None = None
        self._validator = None if contract is None else validate.of_inputs(contract)
        self.rows = rows.Rows.of(instance.signature)
        self.lane = lane.Lane(settings.Lane())
        self._shelf = fixed.Shelf()
        self.quick = quick.Quick(int(given.inline_us * _US) if instance.is_native else 0)
        self.breaker = breaker.Breaker(settings.Breaker())
        self.retries = retry.Budget(settings.Retry())
        self._set_terms(given)

    def _set_terms(self, given: server_settings.Settings) -> None:
        priority = model.Priority() if self.contract is None else self.contract.priority
        self.classes = priority.classes
        self.default_class = priority.classes.index(priority.default)
        self.default_timeout_ns = int(given.request_timeout_s * 1e9)
        self.max_timeout_ns = int(max(given.request_timeout_s, given.max_timeout_s) * 1e9)
        per_second, burst = given.rate_per_s, given.rate_burst
        if self.contract is not None:
            limits, timeout = self.contract.limits, self.contract.timeout
            per_second = limits.rate_per_s or per_second
            burst = limits.burst or burst
            self.default_timeout_ns = int(timeout.default_ms * _MS)
            self.max_timeout_ns = int(timeout.maximum_ms * _MS)
        self.rate = settings.Rate(per_second, burst) if per_second else None

    async def open_lane(self, given: server_settings.Settings) -> None:
        """Find out whether requests may be merged, and let the lane take part."""
        limits = model.Limits() if self.contract is None else self.contract.limits
        batch_rows = limits.batch_rows or given.batch_rows
        may_merge = self.rows is not None and batch_rows > 1 and await self._has_free_rows()
        by_itself = 1 if may_merge or not self.instance.is_native else 2
        chosen = settings.Lane(
            max_requests=limits.queue_requests or given.queue_requests,
            max_rows=limits.queue_rows or _MOST_ROWS,
            max_bytes=limits.queue_bytes or given.max_buffered_bytes,
            max_batch_rows=batch_rows if self.rows is not None else 1,
            is_row_wise=may_merge and limits.batch_rows is not None,
            runs_oversize=limits.batch_rows is None,
            concurrency=limits.concurrency or by_itself,
            num_classes=len(self.classes),
            max_launch_ns=int(given.max_launch_ms * _MS),
            max_queue_ns=int(given.max_queue_ms * _MS),
        )
        self.lane = lane.Lane(chosen)
        self.lane.is_merging = may_merge
        self.lanes.add(self)

    async def _has_free_rows(self) -> bool:
        found = await probe.are_independent(self.instance, self.lanes.native)
        name = f"{self.version.model}/{self.version.number}"
        if found is None:
            log.info("%s: no inputs found to try its rows with; requests are not merged", name)
        elif not found:
            log.info("%s: its rows depend on each other; requests are not merged", name)
        return bool(found)

    def check(self, asked: inference.Inference) -> None:
        """InputError when values are not what the contract allows; one bad row fails alone."""
        if self._validator is None:
            return
        faults = self._validator.faults(asked.inputs)
        if faults:
            more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
            raise errors.InputError(f"{faults[0].message}{more}", faults[0].path)

    def bound(self, held: bodies.Body) -> None:
        """Let a request's body be no larger than the contract allows."""
        if self.contract is not None and self.contract.limits.body_bytes is not None:
            held.limit = min(held.limit, self.contract.limits.body_bytes)

    def priority(self, asked: inference.Inference) -> int:
        """The class of a request: 1 is the most important one in the protocol, 0 says nothing."""
        wanted = asked.priority
        if isinstance(wanted, str):
            if wanted not in self.classes:
                raise errors.InputError(
                    f"expected one of {list(self.classes)}, found {wanted[:80]!r}",
                    "parameters.priority",
                )
            return self.classes.index(wanted)
        return min(wanted, len(self.classes)) - 1 if wanted else self.default_class

    def short(self, asked: inference.Inference) -> quick.Size | None:
        """The size of a run so short that the loop makes it itself, now; None when it is not."""
        own = self.lane
        return None if own.held or own.is_closed else self.quick.short(asked.size_bytes)

    def run_inline(
        self, size: quick.Size, asked: inference.Inference, timeline: timelines.Timeline
    ) -> rows.Arrays:
        """Run on this thread; outputs are valid until the next run. Raises InputError."""
        known = asked.template
        if known is not None and not known.is_tried:
            self._fix(known, asked)
        own = None if known is None else known.fixed
        if own is None:
            num_rows = (self.rows and self.rows.count(asked.inputs)) or 1
            outputs, begun_ns, now = self.quick.run(size, self.instance.run, asked.inputs)
        else:
            num_rows = own.num_rows
            if asked.raw:
                outputs, begun_ns, now = self.quick.run(size, own.run_raw, asked.raw)
            else:
                outputs, begun_ns, now = self.quick.run(size, own.run, asked.inputs)
        counted = self.meters
        counted.count_batch(num_rows, now - begun_ns)
        counted.answered_rows += num_rows
        timeline.run(begun_ns, begun_ns, now)
        timeline.batch_id, timeline.batch_rows = counted.executions, num_rows
        return outputs

    def _fix(self, known: template.Template, asked: inference.Inference) -> None:
        """Give requests of this kind a run of their own, if they may have one."""
        known.is_tried = True
        num_rows = (self.rows and self.rows.count(asked.inputs)) or 1
        made = fixed.of(self.instance, self.interface, known, num_rows)
        if made is not None:
            self._shelf.put(known, made)

    def count_run(self, formed: batch.Batch, begun_ns: int, now: int, *, is_inline: bool) -> None:
        """A run went through."""
        parts = formed.parts
        time_ns = now - begun_ns
        self.meters.count_batch(formed.rows, time_ns)
        if not is_inline:
            self.quick.observe_lane(sum([part.request.size_bytes for part in parts]), time_ns)
        for part in parts:
            asked = part.request
            if not asked.outcome and part.begin == 0:
                self._note(asked.timeline, formed, begun_ns, now)

    def _note(
        self, timeline: timelines.Timeline, formed: batch.Batch, begun_ns: int, now: int
    ) -> None:
        """Where the time of a request went that was in this run."""
        launched_ns = formed.launched_ns
        timeline.run(launched_ns, begun_ns, now)
        timeline.batch_id, timeline.batch_rows = self.meters.executions, formed.rows

    def count_answer(self, asked: request.Request) -> None:
        """A request was answered by the lane."""
        self.meters.answered_rows += asked.rows


def _contract(version: versions.Version, instance: supply.Instance) -> model.Contract | None:
    """The contract beside the model, else the one inside it. Raises ContractError."""
    source = version.found.file
    path = None if source is None else document.beside(source)
    name = f"{version.model}/{version.number}"
    if path is not None:
        contract = document.load(path)
    elif text := instance.metadata.get(document.METADATA_KEY):
        contract = document.parse(text, f"the contract inside {name}")
    else:
        return None
    check.require(contract, instance.signature, str(path or name))
    if contract.release.rule != _RELEASE:
        problem = (
            f"release.rule: expected {_RELEASE!r}, found {contract.release.rule!r}; this server "
            "turns to a new version at once, and otherwise by `castiron models promote` or by the "
            "versions that models.toml names"
        )
        raise errors.ContractError(str(path or name), [problem])
    return contract
