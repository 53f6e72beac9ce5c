"""``castiron doctor``: what it says of real and of made-up machines."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from castiron import cli
from castiron.cli import doctor_limits, doctor_trial, findings
from tests.machine import trees

GB = 1 << 30


@pytest.fixture
def box(tmp_path: Path) -> trees.Tree:
    """A container of half a core and 3.5 GB, two groups deep, on a machine with AVX2."""
    tree, cpu, memory = trees.nested(tmp_path, 2, ["pod", "box"])
    tree.physical(64 << 20)
    tree.write(f"{cpu[1]}/cpu.max", "50000 100000\n")
    tree.write(f"{cpu[2]}/cpu.max", "max 100000\n")
    tree.write(f"{memory[1]}/memory.max", f"{8 * GB}\n")
    tree.write(f"{memory[2]}/memory.max", f"{7 * GB // 2}\n")
    flags = "fpu sse2 cx16 lahf_lm popcnt pni sse4_1 sse4_2 ssse3 abm avx avx2 bmi1 bmi2 f16c fma"
    info = f"processor : 0\nmodel name : Made Up 3000\nflags : {flags} movbe xsave\n"
    tree.write("proc/cpuinfo", info)
    tree.write("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n")
    clock = "sys/devices/system/clocksource/clocksource0/current_clocksource"
    tree.write(clock, "hpet\n")
    tree.write("proc/sys/kernel/perf_event_paranoid", "3\n")
    return tree


def doctor(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """The exit status and what was printed."""
    status = cli.main(["doctor", "--no-model", *words])
    return status, capsys.readouterr().out


def test_a_container_is_told_its_limits_by_name_and_file(
    box: trees.Tree, capsys: pytest.CaptureFixture[str]
) -> None:
    status, told = doctor(capsys, "--root", str(box.root))
    pod = f"{box.root}/sys/fs/cgroup/pod"
    assert status == 0
    assert "Made Up 3000" in told
    assert f"cgroup v2 cpu.max 0.5 ({pod})" in told
    assert f"-> 1 compute thread; the tightest is cgroup v2 cpu.max ({pod})" in told
    assert f"cgroup v2 memory.max 8192 MB ({pod})" in told
    assert (
        "-> 1792 MB for models, 1792 MB for arenas, 448 MB for bodies; "
        f"the tightest is cgroup v2 memory.max ({pod}/box)"
    ) in told
    assert "! huge pages" in told
    assert "! clock" in told
    assert told.splitlines()[-1].startswith("all will work, ")


def test_the_processor_gives_the_target(box: trees.Tree) -> None:
    found = doctor_limits.processor(str(box.root))
    assert found.follows == "code is made for avx2; files made for avx2, baseline run"
    box.write("proc/cpuinfo", "flags : fpu sse2\n")
    assert doctor_limits.processor(str(box.root)).state == "note"
    box.write("proc/cpuinfo", "flags : fpu\n")
    assert doctor_limits.processor(str(box.root)).is_broken


def test_more_workers_than_cpus_are_advised_against(box: trees.Tree) -> None:
    found = doctor_limits.cpu_limits(str(box.root), workers=4)
    assert "1 compute thread by each of 4 workers" in found.follows
    assert found.todo.startswith("take no more than 1 workers")


def test_memory_in_which_no_server_fits_is_broken(box: trees.Tree) -> None:
    box.write("sys/fs/cgroup/pod/box/memory.max", f"{100 << 20}\n")
    assert doctor_limits.memory_limits(str(box.root), 1).is_broken
    box.write("sys/fs/cgroup/pod/box/memory.max", f"{400 << 20}\n")
    assert doctor_limits.memory_limits(str(box.root), 1).state == "note"
    assert doctor_limits.memory_limits(str(box.root), 4).is_broken


@pytest.mark.parametrize("most, state", [("8", "broken"), ("40", "note"), ("max", "good")])
def test_a_bound_of_processes_is_found(box: trees.Tree, most: str, state: str) -> None:
    box.write("sys/fs/cgroup/pod/pids.max", f"{most}\n")
    assert doctor_limits.processes(str(box.root)).state == state


def test_few_open_files_are_told_with_the_command_that_helps() -> None:
    code = "from castiron.cli import doctor_limits as d; f = d.open_files(); print(f.state, f.todo)"
    for most, state in ((40, "broken"), (500, "note")):
        command = f"ulimit -n {most}; exec {sys.executable} -c '{code}'"
        done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True)
        assert done.stdout.startswith(f"{state} ulimit -n ")


def test_a_root_that_tells_nothing_is_no_error(tmp_path: Path) -> None:
    names = [each.name for each in doctor_limits.findings(str(tmp_path))]
    assert names[:3] == ["processor", "CPUs", "memory"]


@contextlib.contextmanager
def taken() -> Iterator[int]:
    """A port that somebody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def test_a_port_that_is_taken_ends_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    with taken() as port:
        status, told = doctor(capsys, "--port", str(port))
    assert status == 1
    assert f"X port {port} " in told
    assert "do: choose another" in told
    assert told.splitlines()[-1] == f"will not work: port {port}"


def test_packages_that_are_missing_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.metadata.version

    def version(name: str) -> str:
        if name in missing:
            raise importlib.metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    missing = {"uvloop"}
    assert doctor_trial.packages().state == "note"
    missing = {"llvmlite"}
    assert doctor_trial.packages().todo == "pip install llvmlite"
    assert doctor_trial.packages().is_broken


def test_a_cache_that_cannot_be_written_is_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("CASTIRON_CACHE", str(tmp_path / "file"))
    found = doctor_trial.folders()
    assert found.is_broken
    assert "CASTIRON_CACHE" in found.todo


def test_as_json_it_holds_the_numbers(box: trees.Tree, capsys: pytest.CaptureFixture[str]) -> None:
    status, told = doctor(capsys, "--json", "--root", str(box.root), "--workers", "2")
    found = json.loads(told)
    assert status == 0
    assert found["works"] is True
    by_name = {each["name"]: each for each in found["findings"]}
    assert by_name["CPUs"]["values"]["threads"] == 1
    assert by_name["CPUs"]["values"]["exact"] == 0.5
    assert by_name["memory"]["values"]["size_bytes"] == 7 * GB // 2
    assert by_name["memory"]["values"]["bodies_bytes"] == 7 * GB // 32
    assert by_name["processor"]["values"]["target"] == "avx2"
    assert by_name["packages"]["values"]["versions"]["numpy"]


def test_a_model_is_built_and_run(monkeypatch: pytest.MonkeyPatch) -> None:
    found = doctor_trial.model()
    assert found.state == "good", found
    assert found.values["build_s"] > 0
    monkeypatch.setattr(doctor_trial, "_MODEL", "AAAA")
    broken = doctor_trial.model()
    assert broken.is_broken
    assert broken.follows == "castiron build does not work here"


def test_this_machine_will_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor"]) == 0
    told = capsys.readouterr().out
    for name in ("processor", "CPUs", "memory", "open files", "packages", "a port", "a model"):
        assert f"  {name}  " in told.replace("!", " ")
    assert f"affinity {len(os.sched_getaffinity(0))}" in told


def test_the_last_line_counts() -> None:
    good = findings.Finding("a", "b", "c")
    note = findings.Finding("long name", "b", "c", "d")
    assert findings.text([good]) == "  a  b\n     -> c\nall will work"
    assert findings.text([good, note]).endswith("\nall will work, 1 could be better (!)")


def test_no_workers_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "--workers", "0"]) == 1
    assert "expected at least 1, found 0" in capsys.readouterr().err
