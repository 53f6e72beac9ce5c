"""The faults: what is done to a server under load, and what came of it.

Each begins a server of its own, hits it until its time is over, and gives one `Outcome`. A fault
that this machine cannot make raises `limits.NotPossibleError`.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from bench.chaos import limits, watching
from bench.chaos import server as servers
from bench.serving import record, traffic

CONNECTIONS = 16
_RATE = 200.0
_SLOW_RATE = 50.0
_PAUSE_S = 2.5
_RECOVERY_S = 2.0
_DELIVERY_S = 0.05  # until a signal has reached another processor
_LATEST_S = 10.0  # 2 s on a machine that has the time
_WIDE_MB = 32
_DISK_BYTES_PER_S = 8 << 20
_LITTLE_MEMORY = 1 << 30
_HALF_A_CPU = 0.5
_UNDER_4_GB = 3500 << 20
_LARGE_ROWS = 2_500_000  # 40 MB of four values each
_LARGE_JSON_ROWS = 190_000  # 3.8 MB, near the most that is read
_NUM_GREEDY = 6


@dataclass(slots=True)
class Outcome:
    """What came of one fault. ``wrong`` says in words what must not be."""

    fault: str
    hits: int = 0
    sent: int = 0
    lost: int = 0
    refused: int = 0
    p99_ms: float = 0.0
    hit_at: list[watching.Hit] = field(default_factory=list)
    back_s: list[float] = field(default_factory=list)
    lies: int = 0
    accepted: int = 0
    ended: int = 0
    remarks: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def must(self, is_so: bool, otherwise: str) -> None:
        """Something that has to hold."""
        if not is_so:
            self.wrong.append(otherwise)


def kill(folder: Path, seconds: float) -> Outcome:
    """SIGKILL of a random worker, again and again."""
    return _signalled("worker killed", signal.SIGKILL, folder, seconds)


def stop(folder: Path, seconds: float) -> Outcome:
    """SIGSTOP of a random worker, again and again."""
    return _signalled("worker stopped", signal.SIGSTOP, folder, seconds)


def slow_disk(folder: Path, seconds: float) -> Outcome:
    """Versions of a large model are loaded from a disk that gives 8 MB a second."""
    outcome = Outcome("slow disk, a version loads")
    source = servers.wide(folder, _WIDE_MB)
    wanted = limits.Wanted(disk_bytes_per_s=_DISK_BYTES_PER_S, folder=folder)
    with limits.group(wanted) as group, servers.serving(folder, 2, group) as server:
        servers.publish(source, server.models, "wide", 1)
        with _watched(server, outcome, seconds, _RATE) as (end, _):
            number = 0
            while number == 0 or time.monotonic() < end:
                number += 1
                if number > 1:
                    servers.publish(source, server.models, "wide", number)
                limits.forget(server.models / "wide" / str(number) / "model.cast")
                begun = time.monotonic()
                status, told = server.ask(
                    "POST", "/v1/models/wide/load", b"{}", port=server.admin_port
                )
                outcome.must(status == 200, f"load answered {status} {told[:200]!r}")
                outcome.back_s.append(time.monotonic() - begun)
        outcome.hits = number
    outcome.must(outcome.lost + outcome.refused == 0, "requests of another model failed")
    slowest = _WIDE_MB * (1 << 20) / _DISK_BYTES_PER_S / 2
    outcome.must(max(outcome.back_s) > slowest, "the disk was not slow: nothing was shown")
    return outcome


def little_memory(folder: Path, seconds: float) -> Outcome:
    """Bodies of 40 MB from several clients at once, within 1 GB for two workers."""
    outcome = Outcome("1 GB of memory, greedy clients")
    with (
        limits.group(limits.Wanted(memory_bytes=_LITTLE_MEMORY)) as group,
        servers.serving(folder, 2, group) as server,
    ):
        _be_greedy(server, group, outcome, seconds)
        restarts = server.total("castiron_worker_restarts_total")
    outcome.must(not restarts, f"{restarts:.0f} workers were replaced")
    return outcome


def little_of_all(folder: Path, seconds: float) -> Outcome:
    """The same within half a CPU and 3.5 GB, for a server as it starts by default."""
    outcome = Outcome("half a CPU and 3.5 GB, greedy clients, one process")
    wanted = limits.Wanted(cpus=_HALF_A_CPU, memory_bytes=_UNDER_4_GB)
    with limits.group(wanted) as group, servers.serving(folder, 1, group) as server:
        _be_greedy(server, group, outcome, seconds)
        threads = computing_threads(server.workers()[0])
        told = server.log.read_text()
    outcome.remarks.append(f"threads that compute: {threads}")
    outcome.must(threads <= 1, f"more threads than the quota: {threads}")
    outcome.must(all(str(each) in told for each in group.folders.values()),
                 "the log does not name the limits")  # fmt: skip
    return outcome


def _be_greedy(
    server: servers.Server, group: limits.Group, outcome: Outcome, seconds: float
) -> None:
    """Clients with large bodies, binary and JSON, beside the load: none gets the server killed."""
    requests = [servers.large_request(_LARGE_ROWS), servers.large_json(_LARGE_JSON_ROWS)]
    answers: list[int] = []
    with _watched(server, outcome, seconds, _SLOW_RATE) as (end, _):

        def ask(body: bytes, headers: dict[str, str]) -> None:
            while time.monotonic() < end:
                with contextlib.suppress(OSError):
                    path = "/v2/models/quick/infer"
                    answers.append(server.ask("POST", path, body, headers)[0])

        clients = [
            threading.Thread(target=ask, args=requests[index % 2]) for index in range(_NUM_GREEDY)
        ]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
    outcome.hits = len(answers)
    killed, peak_bytes, served = group.num_killed(), group.peak_bytes(), answers.count(200)
    outcome.remarks.append(
        f"{served} of {len(answers)} large requests served, the others refused; "
        f"at most {peak_bytes >> 20} MB at once; killed for memory: {killed}"
    )
    outcome.must(not killed, f"{killed} processes were killed for memory")
    outcome.must(served > 0, "no large request was served")
    outcome.must(set(answers) <= {200, 503}, f"answered {sorted(set(answers))}")
    outcome.must(outcome.lost == 0, "requests were lost")


def little_cpu(folder: Path, seconds: float) -> Outcome:
    """Half a CPU for two workers and their supervisor."""
    outcome = Outcome("half a CPU")
    with (
        limits.group(limits.Wanted(cpus=_HALF_A_CPU)) as group,
        servers.serving(folder, 2, group) as server,
    ):
        with _watched(server, outcome, seconds, _SLOW_RATE) as (end, _):
            outcome.hits = 1
            while time.monotonic() < end:
                time.sleep(0.1)
        threads = [computing_threads(pid) for pid in server.workers()]
        restarts = server.total("castiron_worker_restarts_total")
    outcome.remarks.append(f"threads that compute, by worker: {threads}")
    outcome.must(max(threads) <= 1, f"more threads than the quota: {threads}")
    outcome.must(not restarts, f"{restarts:.0f} workers were replaced, though only slow")
    outcome.must(outcome.lost == 0, "requests were lost")
    return outcome


FAULTS: dict[str, Callable[[Path, float], Outcome]] = {
    "kill": kill,
    "stop": stop,
    "disk": slow_disk,
    "memory": little_memory,
    "cpu": little_cpu,
    "box": little_of_all,
}


def computing_threads(pid: int) -> int:
    """The native threads of a process that run models: its lane, and its team's workers."""
    names = [each.read_text().strip() for each in Path(f"/proc/{pid}/task").glob("*/comm")]
    return sum(name.startswith("castiron-") for name in names)


def _signalled(name: str, number: signal.Signals, folder: Path, seconds: float) -> Outcome:
    outcome, dice = Outcome(name), random.Random(7)
    with servers.serving(folder) as server:
        with _watched(server, outcome, seconds, _RATE) as (end, watcher):
            time.sleep(0.3)
            while not outcome.hit_at or time.monotonic() < end - _PAUSE_S:
                worker = dice.choice(server.workers())
                begun = time.monotonic()
                os.kill(worker, number)
                outcome.hit_at.append(watching.Hit(begun, time.monotonic() + _DELIVERY_S))
                server.wait(lambda gone=worker: gone not in server.workers())  # type: ignore[misc]
                server.wait_ready()
                outcome.back_s.append(time.monotonic() - begun)
                back = begun + outcome.back_s[-1]
                noticed = watcher.has_noticed(begun, back, server.num_workers)
                outcome.must(
                    noticed or watcher.was_blind(begun, back),
                    "readiness did not tell that a worker was missing",
                )
                time.sleep(max(0.0, begun + _PAUSE_S - time.monotonic()))
        outcome.hits = len(outcome.hit_at)
    outcome.must(max(outcome.back_s) < _LATEST_S, f"only back after {max(outcome.back_s):.1f} s")
    outcome.must(outcome.lost <= CONNECTIONS * outcome.hits, "more lost than was in flight")
    return outcome


@contextlib.contextmanager
def _watched(
    server: servers.Server, outcome: Outcome, seconds: float, rate: float
) -> Iterator[tuple[float, watching.Watcher]]:
    """A load of so many seconds, and looks at readiness; gives when it ends."""
    watcher = watching.Watcher(server)
    found: list[record.Record] = []
    target = traffic.Target("127.0.0.1", server.port, servers.REQUEST, CONNECTIONS)
    times = traffic.constant(rate, seconds)
    load = threading.Thread(target=lambda: found.append(traffic.open_loop(target, times)))
    begun = time.monotonic()
    load.start()
    try:
        yield begun + seconds, watcher
    finally:
        load.join()
        watcher.stop()
    _count(outcome, found[0], begun)
    outcome.lies = watcher.lies(outcome.hit_at)
    outcome.must(outcome.lies == 0, f"ready was said {outcome.lies} times and not kept")
    outcome.accepted, outcome.ended = server.accounts()
    outcome.must(outcome.accepted == outcome.ended, "outcomes do not sum to accepted requests")


def _count(outcome: Outcome, seen: record.Record, begun: float) -> None:
    """What became of the load; what was lost must have been so from a hit on until just after all
    were back.
    """
    summary = seen.summary()
    outcome.sent, outcome.refused = summary.sent, summary.refused
    outcome.lost, outcome.p99_ms = summary.num_failed, summary.p99_ms
    if summary.failed:
        told = ", ".join(f"{count} x {what}" for what, count in sorted(summary.failed.items()))
        outcome.remarks.append(f"lost: {told}")
    latest_s = 0.0
    for at, took, status in zip(seen.intended_s, seen.took_s, seen.statuses, strict=True):
        if outcome.hit_at and status < 100:
            lost = begun + at + took
            spans = zip(outcome.hit_at, outcome.back_s, strict=True)
            since_s = min(
                max(hit.begun_s - lost, lost - hit.begun_s - back_s) for hit, back_s in spans
            )
            latest_s = max(latest_s, since_s)
    outcome.must(latest_s < _RECOVERY_S, f"one was lost {latest_s:.1f} s after all were back")
