"""Minutes of constant load on one castiron, to see that it stays as it is.

What it can take is found by a short closed loop; then an open loop sends a share of that. Held to:
p99 of the whole run at most twice its p50, and no growth of memory or of CPU time per request.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench import edge, inputs, latency, table
from bench.behaviour import servers
from bench.serving import floor, record, requests, tables, traffic, watch

MADE = ("quick", "same")
MAX_SPREAD = 2.0
# Over the whole run, by a line through the minutes; less than this cannot be told from noise.
MAX_RSS_GROWTH, MAX_CPU_GROWTH = 0.02, 0.05
_CAPACITY_S = 5.0
_WARM_S = 5.0
_FLOOR_S = 30.0


@dataclass(frozen=True, slots=True)
class Plan:
    """``model`` is ``quick`` (JSON), ``same`` (600 KB as bytes), or one of the zoo (bytes)."""

    minutes: float = 10.0
    load: float = 0.7
    model: str = "quick"
    is_poisson: bool = False
    interval_s: float = 60.0
    """How much time a line of the table is about."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A stretch of the run."""

    summary: record.Summary
    rss_bytes: int
    cpu_us: float
    delayed_ms: float
    """How long others had the CPU that the server was ready to use: what they spoiled."""

    @property
    def spread(self) -> float:
        """p99 by p50."""
        return self.summary.p99_ms / self.summary.p50_ms


@dataclass(frozen=True, slots=True)
class Outcome:
    """The run by intervals, and as one."""

    rate: float
    capacity: float
    intervals: Sequence[Interval]
    whole: record.Summary
    num_late: int
    floors: Sequence[tuple[float, float]] = ()
    """p50 and p99 in milliseconds of the same runs without a server, before and after."""

    def growth(self, values: Sequence[float]) -> float:
        """How much a line through the values rises from first to last, as a share of their mean."""
        if len(values) < 2:
            return 0.0
        slope = float(np.polyfit(np.arange(len(values)), values, 1)[0])
        return slope * (len(values) - 1) / float(np.mean(values))

    @property
    def rss_growth(self) -> float:
        """Of resident memory over the whole run."""
        return self.growth([each.rss_bytes for each in self.intervals])

    @property
    def cpu_growth(self) -> float:
        """Of CPU time per request over the whole run."""
        return self.growth([each.cpu_us for each in self.intervals])

    def faults(self) -> list[str]:
        """What does not hold."""
        found = []
        spread = self.whole.p99_ms / self.whole.p50_ms
        if not spread <= MAX_SPREAD:
            found.append(f"p99 is {spread:.2f} times p50, at most {MAX_SPREAD} is right")
        if self.rss_growth > MAX_RSS_GROWTH:
            found.append(f"memory grew by {self.rss_growth:.1%}")
        if self.cpu_growth > MAX_CPU_GROWTH:
            found.append(f"CPU time per request grew by {self.cpu_growth:.1%}")
        if self.whole.ok < self.whole.sent:
            found.append(f"{self.whole.sent - self.whole.ok} requests were not answered well")
        return found


def run(plan: Plan) -> Outcome:
    """Start castiron, load it, end it."""
    cores = tables.Cores.chosen()
    with cores.as_client(), tempfile.TemporaryDirectory() as folder:
        served = _made if plan.model in MADE else _of_the_zoo
        with served(plan.model, Path(folder), cores) as (process, port, text):
            clients = traffic.Target("127.0.0.1", port, text, tables.CLIENTS)
            capacity, _ = traffic.closed_loop(clients, _CAPACITY_S)
            before = _floor(plan, capacity, cores)
            found = loaded(traffic.Target("127.0.0.1", port, text), process, plan, capacity)
            return dataclasses.replace(found, floors=[*before, *_floor(plan, capacity, cores)])


def _floor(plan: Plan, capacity: float, cores: tables.Cores) -> list[tuple[float, float]]:
    """What the machine does to such a rate while the server is idle."""
    if plan.model in MADE:
        return []
    return [floor.measured(plan.model, capacity * plan.load, _FLOOR_S, cores.server)]


_Served = tuple[int, int, bytes]
"""The server's process, its port, and the request that it is sent."""


@contextlib.contextmanager
def _made(model: str, folder: Path, cores: tables.Cores) -> Iterator[_Served]:
    is_large = model == "same"
    text = requests.infer(model, (1, edge.LARGE if is_large else 4), is_binary=is_large)
    setup = servers.Setup((model,), cpu=cores.server)
    with servers.running(tables.OWN, folder, setup) as server:
        yield server.group.processes()[0], server.http_port, text


@contextlib.contextmanager
def _of_the_zoo(model: str, folder: Path, cores: tables.Cores) -> Iterator[_Served]:
    del cores  # ``edge.served`` takes the first as well
    version = folder / "models" / model / "1"
    version.mkdir(parents=True)
    shutil.copyfile(latency.source(model), version / "model.onnx")
    text = requests.of_arrays(model, inputs.usual(model))
    with edge.served(folder) as (process, port):
        yield process, port, text


def loaded(
    target: traffic.Target, process: int, plan: Plan, capacity: float, warm_s: float = _WARM_S
) -> Outcome:
    """Load a server, whose first process is given, with a share of what it can take."""
    rate, times = capacity * plan.load, traffic.poisson if plan.is_poisson else traffic.constant
    traffic.open_loop(target, times(rate, warm_s))
    samples: list[tuple[float, watch.Sample]] = []

    def look(now_s: float) -> None:
        samples.append((now_s, watch.sample(process)))

    found = traffic.open_loop(target, times(rate, plan.minutes * 60), look, plan.interval_s)
    intervals = []
    for (first_s, before), (last_s, after) in itertools.pairwise(samples):
        summary = found.summary(first_s, last_s)
        if summary.sent:
            cpu_us = (after.cpu_s - before.cpu_s) / summary.sent * 1e6
            delayed_ms = (after.delayed_s - before.delayed_s) * 1e3
            intervals.append(Interval(summary, after.rss_bytes, cpu_us, delayed_ms))
    return Outcome(rate, capacity, intervals, found.summary(), found.num_late)


def report(outcome: Outcome, plan: Plan) -> str:
    """The table by intervals, and what grew."""
    rows = [
        [
            f"{number * plan.interval_s / 60:.3g}",
            f"{each.summary.ok}",
            f"{each.summary.refused}",
            f"{each.summary.num_failed}",
            f"{each.summary.p50_ms:.3f}",
            f"{each.summary.p99_ms:.3f}",
            f"{each.spread:.2f}",
            f"{each.summary.max_ms:.1f}",
            f"{each.rss_bytes / 1e6:.1f}",
            f"{each.cpu_us:.1f}",
            f"{each.delayed_ms:.0f}",
        ]
        for number, each in enumerate(outcome.intervals, 1)
    ]
    head = ["minute", "ok", "refused", "failed", "p50 ms", "p99 ms", "p99/p50", "max ms", "RSS MB",
            "CPU us/req", "held up ms"]  # fmt: skip
    kind = "Poisson arrivals" if plan.is_poisson else "a constant rate"
    lines = [
        (
            f"model {plan.model}: {outcome.capacity:.0f} req/s in a closed loop of "
            f"{tables.CLIENTS}; then {kind} of {outcome.rate:.0f} req/s, {plan.load:.0%} of that"
        ),
        f"whole run: {outcome.whole}",
        (
            f"p99/p50 {outcome.whole.p99_ms / outcome.whole.p50_ms:.2f}; over the run memory grew "
            f"by {outcome.rss_growth:+.2%}, CPU time per request by {outcome.cpu_growth:+.2%}"
        ),
        (
            f"{outcome.num_late} of {outcome.whole.sent} requests left late by the generator's "
            f"fault; load average {os.getloadavg()[0]:.2f}; held up: ready to run while others ran"
        ),
        *[
            f"the same runs without a server, {when}: p50 {p50_ms:.3f} ms, p99 {p99_ms:.3f}, "
            f"p99/p50 {p99_ms / p50_ms:.2f}"
            for when, (p50_ms, p99_ms) in zip(("before", "after"), outcome.floors, strict=False)
        ],
    ]
    return table.with_heading(lines, table.markdown(head, rows))
