"""The tables that README.md shows: castiron beside its peers on a tiny model, and on large tensors.

All servers are up, each with all its processes on one CPU; all but the measured one are stopped by
SIGSTOP meanwhile. They take turns, in another order each round, and what is compared are figures
of one round. wrk and the generator run on another CPU.
"""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench import edge, machine, table
from bench.behaviour import servers, ways
from bench.serving import record, requests, traffic, watch, wrk

CLIENTS = 32
# What the constant rate is, as a share of what a server answers in a closed loop.
LOAD = 0.7
_ROW = [1.0, 2.0, 3.0, 4.0]
_WARM_S = 1.0
OWN = "castiron"
# MLServer as it comes computes in a process of its own; without, it answers more on one CPU.
REFERENCES = {"MLServer": None, "MLServer, no workers": 0}


@dataclass(frozen=True, slots=True)
class Cores:
    """The CPU of the servers and that of the clients; they are never the same."""

    server: int
    client: int

    @classmethod
    def chosen(cls) -> Cores:
        """The first and the last that we may use. Raises `RuntimeError` where there is only one."""
        usable = sorted(os.sched_getaffinity(0))
        if len(usable) < 2:
            raise RuntimeError(
                "expected 2 CPUs, one for the server and one for the clients; found 1"
            )
        return cls(usable[0], usable[-1])

    @contextlib.contextmanager
    def as_client(self) -> Iterator[None]:
        """This process, and what it starts, on the CPU of the clients."""
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {self.client})
        try:
            yield
        finally:
            os.sched_setaffinity(0, before)


@dataclass(slots=True)
class Figures:
    """What one server did in each round."""

    closed: list[wrk.Result] = field(default_factory=list)
    cpu_us: list[float] = field(default_factory=list)
    """CPU time of the server for one request of the closed loop."""
    opened: list[tuple[float, record.Summary]] = field(default_factory=list)
    """The rate of the open loop, and what came of it."""
    opened_cpu_us: list[float] = field(default_factory=list)
    """CPU time of the server for one request of it; more, since it wakes up for each."""
    rss_bytes: int = 0

    @property
    def rate(self) -> float:
        """Answers a second in the closed loop, the middle of all rounds."""
        return statistics.median(each.rate for each in self.closed)


@contextlib.contextmanager
def all_running(names: Sequence[str], cores: Cores) -> Iterator[dict[str, servers.Server]]:
    """The named servers, ready and stopped."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        up: dict[str, servers.Server] = {}
        for name in _with_variants(names):
            served = ("quick", "same") if name == OWN else ("quick",)
            setup = servers.Setup(
                served,
                cpu=cores.server,
                counts_rows=False,
                mlserver_workers=REFERENCES.get(name),
            )
            running = servers.running(_server_of(name), folder / name, setup)
            up[name] = stack.enter_context(running)
            stack.callback(signalled, up[name], signal.SIGCONT)
            signalled(up[name], signal.SIGSTOP)
        yield up


def _with_variants(names: Sequence[str]) -> list[str]:
    """The servers as they are measured: one of them in two ways."""
    found: list[str] = []
    for name in names:
        found += REFERENCES if name in REFERENCES else [name]
    return found


def _server_of(name: str) -> str:
    return name.partition(",")[0]


def signalled(server: servers.Server, number: signal.Signals) -> None:
    """Stop all processes of a server, or let them go on."""
    for process in server.group.processes():
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, number)


@contextlib.contextmanager
def alone(server: servers.Server) -> Iterator[int]:
    """The one server that goes on; its first process."""
    signalled(server, signal.SIGCONT)
    try:
        yield server.group.processes()[0]
    finally:
        signalled(server, signal.SIGSTOP)


def tiny(
    up: dict[str, servers.Server], cores: Cores, rounds: int, seconds: float
) -> dict[str, Figures]:
    """Every server on the tiny model: closed loop, then a constant rate of a share of that."""
    found = {name: Figures() for name in up}
    names = list(up)
    for number in range(rounds):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            with alone(up[name]) as process:
                _measure(up[name], process, found[name], cores, seconds)
            print(f"round {number + 1}, {name}: {found[name].closed[-1].rate:.0f} req/s; at "
                  f"{found[name].opened[-1][0]:.0f} a second: {found[name].opened[-1][1]}",
                  flush=True)  # fmt: skip
    return found


def _measure(
    server: servers.Server, process: int, found: Figures, cores: Cores, seconds: float
) -> None:
    rest = ways.Rest(server)
    path, body = rest.path("quick"), rest.body("quick", [_ROW])
    request = ("post", path, body.decode())
    wrk.run(server.http_port, request, CLIENTS, _WARM_S, cores.client)
    before = watch.sample(process)
    closed = wrk.run(server.http_port, request, CLIENTS, seconds, cores.client)
    used_s = watch.sample(process).cpu_s - before.cpu_s
    found.closed.append(closed)
    found.cpu_us.append(used_s / max(1.0, closed.rate * round(seconds)) * 1e6)
    rate = closed.rate * LOAD
    target = traffic.Target("127.0.0.1", server.http_port, requests.post(path, body))
    before = watch.sample(process)
    opened = traffic.open_loop(target, traffic.constant(rate, seconds)).summary()
    after = watch.sample(process)
    found.opened.append((rate, opened))
    found.opened_cpu_us.append((after.cpu_s - before.cpu_s) / opened.sent * 1e6)
    found.rss_bytes = after.rss_bytes


def tiny_rows(found: dict[str, Figures]) -> list[list[str]]:
    """One row for each server; a ratio is the middle of those of each round."""
    rows = []
    for name, own in found.items():
        ratios = [_ratio(own, found.get(reference)) for reference in REFERENCES]
        failed = sum(each.num_failed for each in own.closed)
        rows.append([
            name.replace(_server_of(name), f"{_server_of(name)} {_version(name)}", 1),
            f"{own.rate:.0f}",
            *ratios,
            f"{statistics.median(each.p50_ms for each in own.closed):.2f}",
            f"{statistics.median(each.p99_ms for each in own.closed):.2f}",
            f"{failed}",
            f"{statistics.median(own.cpu_us):.0f}",
            f"{own.rss_bytes / 1e6:.0f}",
        ])  # fmt: skip
    return rows


def _version(name: str) -> str:
    return servers.version(_server_of(name))


def _ratio(own: Figures, reference: Figures | None) -> str:
    if reference is None:
        return ""
    pairs = zip(own.closed, reference.closed, strict=True)
    return f"{statistics.median(a.rate / b.rate for a, b in pairs):.2f}x"


def open_rows(found: dict[str, Figures]) -> list[list[str]]:
    """One row for each server; figures are the middle of all rounds, counts their sum."""
    rows = []
    for name, own in found.items():
        all_of = [summary for _, summary in own.opened]
        shares = [
            [each.p50_ms, each.p90_ms, each.p99_ms, each.p999_ms, each.max_ms] for each in all_of
        ]
        middles = [statistics.median(values) for values in zip(*shares, strict=True)]
        rows.append([
            name,
            f"{statistics.median(rate for rate, _ in own.opened):.0f}",
            *(f"{value:.2f}" for value in middles),
            f"{sum(each.refused for each in all_of)}",
            f"{sum(each.num_failed for each in all_of)}",
            f"{statistics.median(own.opened_cpu_us):.0f}",
        ])  # fmt: skip
    return rows


def large_rows(
    server: servers.Server, cores: Cores, rounds: int, seconds: float
) -> list[list[str]]:
    """Castiron with 600 KB in and 600 KB out, as bytes, on a model that changes nothing."""
    rows = []
    request = ("binary", "same", f"1x{edge.LARGE}")
    with alone(server) as process:
        for clients in (1, 4, CLIENTS):
            results, cpu_us = [], []
            wrk.run(server.http_port, request, clients, _WARM_S, cores.client)
            for _ in range(rounds):
                before = watch.sample(process).cpu_s
                results.append(wrk.run(server.http_port, request, clients, seconds, cores.client))
                used_s = watch.sample(process).cpu_s - before
                cpu_us.append(used_s / (results[-1].rate * round(seconds)) * 1e6)
            middle = statistics.median(cpu_us)
            rows.append([
                f"{clients} client{'s' if clients > 1 else ''}",
                f"{statistics.median(each.rate for each in results):.0f}",
                f"{statistics.median(each.p50_ms for each in results):.2f}",
                f"{statistics.median(each.p99_ms for each in results):.2f}",
                f"{sum(each.num_failed for each in results)}",
                f"{middle:.0f}",
                f"{1e6 / middle:.0f}",
            ])  # fmt: skip
    return rows


def report(names: Sequence[str], rounds: int, seconds: float) -> str:
    """All tables with their heading lines."""
    cores = Cores.chosen()
    lines = machine.description()
    with cores.as_client(), all_running(names, cores) as up:
        found = tiny(up, cores, rounds, seconds)
        large = large_rows(up[OWN], cores, rounds, seconds) if OWN in up else []
    lines += [
        "everything of a server on one CPU, wrk and the generator on another; one server at a time",
        f"{rounds} rounds of {seconds:.0f} s for each server, in turns; middle values of all rounds",
        (
            "MLServer as it comes, and computing in the process that serves; BentoML without its log "
            "of accesses; LitServe and BentoML answer shorter bodies of their own"
        ),
    ]
    ratios = [f"to {name}" for name in REFERENCES]
    head = ["", "req/s", *ratios, "p50 ms", "p99 ms", "failed", "CPU us/req", "RSS MB"]
    parts = [f"Tiny model, JSON, {CLIENTS} clients of wrk:", table.markdown(head, tiny_rows(found))]
    head = ["", "req/s", "p50 ms", "p90", "p99", "p99.9", "max", "refused", "failed", "CPU us/req"]
    parts += [
        (
            f"The same at a constant rate, {LOAD:.0%} of each one's own, latency from the moment "
            "at which a request was meant to leave:"
        ),
        table.markdown(head, open_rows(found)),
    ]
    if large:
        head = ["", "req/s", "p50 ms", "p99 ms", "failed", "CPU us/req", "req/s of CPU time"]
        parts += [
            "600 KB in and 600 KB out as bytes, a model that changes nothing, castiron:",
            table.markdown(head, large),
        ]
    return table.with_heading(lines, "\n\n".join(parts))
