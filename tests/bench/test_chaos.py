"""The parts of the chaos run: real control groups, readiness that lies, and seconds of each fault."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.chaos import __main__ as chaos
from bench.chaos import faults, limits, sharing, watching
from bench.chaos import server as servers
from castiron.machine import groups

MB = 1 << 20


def inside(wanted: limits.Wanted, code: str) -> subprocess.CompletedProcess[str]:
    """Run Python inside a group with these limits, where this machine has such groups."""
    try:
        with limits.group(wanted) as group:
            command = group.command([sys.executable, "-c", code])
            return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except limits.NotPossibleError as fault:
        pytest.skip(f"no control groups can be made here: {fault}")


def left_over() -> list[str]:
    """Groups of ours that are still there."""
    name = f"castiron-chaos-{os.getpid()}"
    controllers = ("cpu", "memory", "blkio", "io")
    return [
        folder for each in controllers for _, folder in groups.folders(each)
        if (Path(folder) / name).exists()
    ]  # fmt: skip


def test_a_quota_of_half_a_cpu_is_found_and_gives_one_thread() -> None:
    code = "from castiron.machine import cpus; b = cpus.cpu_budget(); print(b.cpus, b.exact, b)"
    told = inside(limits.Wanted(cpus=0.5), code).stdout
    assert told.startswith("1 0.5 1 CPU, limited by cgroup v")
    assert f"castiron-chaos-{os.getpid()}" in told
    assert left_over() == []


def test_a_memory_limit_is_found_and_pools_stay_below_it() -> None:
    code = (
        "from castiron import api, errors\n"
        "from castiron.machine import memory\n"
        "limit = memory.tightest()\n"
        "print(limit.name, limit.size_bytes >> 20)\n"
        "try:\n"
        "    api.device(1).pool.rent(1 << 28)\n"
        "except errors.ResourceError as fault:\n"
        "    print(fault)\n"
    )
    done = inside(limits.Wanted(memory_bytes=200 * MB), code)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first.startswith("cgroup v")
    assert first.endswith(" 200")
    assert "below the pool's limit of 157286400" in second


def test_what_fills_more_than_the_limit_is_killed_and_counted() -> None:
    try:
        with limits.group(limits.Wanted(memory_bytes=64 * MB)) as group:
            command = group.command([sys.executable, "-c", "bytearray(b'x') * (1 << 28)"])
            assert subprocess.run(command, timeout=60, check=False).returncode == -9
            assert group.num_killed() == 1
            assert group.peak_bytes() <= 64 * MB
    except limits.NotPossibleError as fault:
        pytest.skip(f"no control groups can be made here: {fault}")


def test_the_doctor_names_the_limits_that_it_is_under() -> None:
    code = "from castiron import cli; cli.main(['doctor', '--no-model'])"
    told = inside(limits.Wanted(cpus=0.5, memory_bytes=3500 * MB), code).stdout
    lines = told.splitlines()
    cpus = next(i for i, line in enumerate(lines) if line.startswith("! CPUs"))
    assert "-> 1 compute thread; the tightest is cgroup v" in lines[cpus + 1]
    memory = next(i for i, line in enumerate(lines) if " memory  " in line)
    assert "-> 1750 MB for models, 1750 MB for arenas, 438 MB for bodies" in lines[memory + 1]
    for line in (lines[cpus + 1], lines[memory + 1]):
        assert f"castiron-chaos-{os.getpid()})" in line


def test_limits_that_cannot_be_made_are_told_and_are_no_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(groups, "folders", lambda *_: iter(()))
    assert chaos.main(["--only", "cpu", "--no-sharing", "--seconds", "1"]) == 0
    assert "cpu: not possible here: no control groups for cpu" in capsys.readouterr().out


class _Liar:
    """A server that says ready and answers what it is told to."""

    num_workers = 2

    def __init__(self, infer: int) -> None:
        self.infer = infer

    def ask(self, method: str, path: str, *_: object) -> tuple[int, bytes]:
        """One request."""
        del path
        return (200, b'{"workers": {"ready": 2}}') if method == "GET" else (self.infer, b"")


@pytest.mark.parametrize("infer, is_lie", [(200, False), (503, True)])
def test_ready_without_an_answer_is_a_lie_unless_something_was_hit(
    infer: int, *, is_lie: bool
) -> None:
    watcher = watching.Watcher(_Liar(infer))  # type: ignore[arg-type]
    while len(watcher.looks) < 3:
        pass
    watcher.stop()
    assert (watcher.lies([]) > 0) == is_lie
    hits = [watching.Hit(look.begun_s, look.begun_s) for look in watcher.looks]
    assert watcher.lies(hits) == 0
    assert not watcher.has_noticed(0, 1e9, 2)
    assert watcher.has_noticed(0, 1e9, 3)
    first, last = watcher.looks[0].ended_s, watcher.looks[-1].ended_s
    assert watcher.was_blind(first, last + 0.4)
    assert not watcher.was_blind(last, last + 0.2)


@pytest.mark.xdist_group("workers")
def test_a_worker_that_is_killed_costs_what_was_in_flight(tmp_path: Path) -> None:
    outcome = faults.kill(tmp_path, 4)
    assert outcome.hits >= 1
    assert outcome.wrong == []
    assert outcome.accepted == outcome.ended > 500


@pytest.mark.slow
@pytest.mark.xdist_group("workers")
@pytest.mark.parametrize("fault", faults.FAULTS)
def test_every_fault_ends_as_it_must(fault: str, tmp_path: Path) -> None:
    try:
        outcome = faults.FAULTS[fault](tmp_path, 20)
    except limits.NotPossibleError as why:
        pytest.skip(f"not possible here: {why}")
    assert outcome.wrong == []


@pytest.mark.slow
@pytest.mark.xdist_group("workers")
def test_three_workers_hold_one_copy_of_100_mb_of_weights() -> None:
    shares = sharing.measured(num_workers=3, megabytes=100)
    assert len(shares) == 3
    assert 100 * 1024 <= sum(shares) <= 105 * 1024


def test_a_request_is_as_long_as_it_says() -> None:
    body, headers = servers.large_request(10)
    assert len(body) == int(headers["Inference-Header-Content-Length"]) + 160
