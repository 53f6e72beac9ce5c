"""Metrics of several processes: put together while they write, after a kill, over a restart."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from castiron import errors
from castiron.telemetry import families, metrics, shared

_WRITER = """
import sys, time
from castiron.telemetry import families, metrics, shared
folder, index, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
page = metrics.Metrics(shared.Page(f"{folder}/worker-{index}.metrics"))
accepted = page.family(families.ACCEPTED).child()
ended, took = page.family(families.ENDED), page.family(families.LATENCY)
page.family(families.IN_FLIGHT).child().value = index + 1
page.family(families.READY).child("m", "1").value = float(index != 0)
print("open", flush=True)
while sys.stdin.readline():
    for turn in range(rounds):
        accepted.value += 1
        took.child("m", str(turn // 1000 % 40)).observe(0.5)
        ended.child("m", str(turn // 1000 % 40), "ok").value += 1
    print("done", flush=True)
"""


def _start(folder: Path, index: int, rounds: int) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", _WRITER, str(folder), str(index), str(rounds)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    _expect(process, "open")
    return process


def _expect(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == word + "\n"


def _go_on(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.kill()
    process.communicate()


def _value(page: metrics.Metrics, declared: metrics.Declared[metrics.Counter]) -> float:
    family = page.families.get(declared.name)
    return (
        0 if family is None else sum(child.samples()[-1][2] for child in family.children.values())
    )


def test_pages_read_while_four_processes_write_are_never_torn_and_end_exact(tmp_path: Path) -> None:
    rounds = 60_000
    writers = [_start(tmp_path, index, rounds) for index in range(4)]
    try:
        total = num_reads = 0
        while num_reads <= 3 and total < 100 * rounds:  # seldom, all is written before a look
            total += 4 * rounds
            num_reads += _reads_until(tmp_path, writers, total)
        assert num_reads > 3
        page = shared.merged(str(tmp_path))
        took = page.families[families.LATENCY.name].children.values()
        assert sum(child.samples()[-1][2] for child in took) == total
        assert sum(child.total for child in took if isinstance(child, metrics.Histogram)) == (
            0.5 * total
        )
        assert _value(page, families.ACCEPTED) == _value(page, families.ENDED) == total
    finally:
        for writer in writers:
            _end(writer)


def _reads_until(folder: Path, writers: list[subprocess.Popen[str]], total: int) -> int:
    """Let them write on until so many requests have ended; how often that was looked at."""
    for writer in writers:
        _go_on(writer)
    before, num_reads = 0.0, 0
    end_s = time.monotonic() + 60
    while before < total and time.monotonic() < end_s:
        page = shared.merged(str(folder))
        ended, accepted = _value(page, families.ENDED), _value(page, families.ACCEPTED)
        assert before <= ended <= accepted <= total
        assert all(child.value.is_integer() for child in _counters(page))
        before, num_reads = ended, num_reads + 1
    for writer in writers:
        _expect(writer, "done")
    return num_reads


def _counters(page: metrics.Metrics) -> list[metrics.Counter]:
    every = (child for family in page.families.values() for child in family.children.values())
    return [child for child in every if isinstance(child, metrics.Counter)]


def test_a_killed_process_keeps_its_counts_and_loses_its_gauges(tmp_path: Path) -> None:
    writers = [_start(tmp_path, index, 10) for index in range(2)]
    try:
        for writer in writers:
            _go_on(writer)
            _expect(writer, "done")
        alive = shared.merged(str(tmp_path))
        assert alive.families[families.IN_FLIGHT.name].children[()].samples()[0][2] == 3
        assert alive.families[families.READY.name].children["m", "1"].samples()[0][2] == 0
        writers[0].send_signal(signal.SIGKILL)
        writers[0].wait()
        after = shared.merged(str(tmp_path))
        assert _value(after, families.ACCEPTED) == 20
        assert after.families[families.IN_FLIGHT.name].children[()].samples()[0][2] == 2
        assert after.families[families.READY.name].children["m", "1"].samples()[0][2] == 1
    finally:
        for writer in writers:
            _end(writer)


def test_a_successor_goes_on_counting_where_the_dead_one_stopped(tmp_path: Path) -> None:
    path = str(tmp_path / "worker-0.metrics")
    first = shared.Page(path)
    page = metrics.Metrics(first)
    page.family(families.ACCEPTED).child().value += 5
    page.family(families.STAGE).child("m", "1", "queue").observe(0.01)
    page.family(families.WORKERS).child().value = 7
    first.close()
    page = metrics.Metrics(shared.Page(path))
    assert page.family(families.WORKERS).child().value == 0
    accepted = page.family(families.ACCEPTED).child()
    assert accepted.value == 5
    accepted.value += 1
    stage = page.family(families.STAGE).child("m", "1", "queue")
    assert stage.count == 1
    stage.observe(0.02)
    merged = shared.merged(str(tmp_path))
    assert _value(merged, families.ACCEPTED) == 6
    assert merged.families[families.STAGE.name].children["m", "1", "queue"].samples()[-1][2] == 2


def test_two_writers_of_one_file_are_refused(tmp_path: Path) -> None:
    kept = shared.Page(str(tmp_path / "a.metrics"))
    with pytest.raises(errors.CastironError, match="another process writes"):
        shared.Page(str(tmp_path / "a.metrics"))
    kept.close()


def test_children_without_room_are_counted_apart_and_still_count(tmp_path: Path) -> None:
    store = shared.Page(str(tmp_path / "a.metrics"))
    family = metrics.Metrics(store).family(families.STAGE)
    while not store.num_unshared:
        family.child("m", str(len(family.children)), "queue").observe(1)
    assert len(family.children) > 3000
    last = [*family.children.values()][-1]
    last.observe(1)
    assert last.count == 2
    store.close()


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 400), st.binary(min_size=1, max_size=40))
def test_no_damage_to_a_file_breaks_the_page_of_the_others(at: int, damage: bytes) -> None:
    folder = Path(f"/tmp/castiron-shared-{os.getpid()}")
    folder.mkdir(exist_ok=True)
    stores = [shared.Page(str(folder / f"{name}.metrics")) for name in ("good", "bad")]
    for store in stores:
        metrics.Metrics(store).family(families.ACCEPTED).child().value = 3
        store.close()
    with (folder / "bad.metrics").open("r+b") as file:
        file.seek(at)
        file.write(damage)
    try:
        page = shared.merged(str(folder))
        assert _value(page, families.ACCEPTED) in {3, 6}
    finally:
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()
