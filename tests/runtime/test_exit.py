"""How a process ends while native threads live: the right exit status, in time, every time.

Each case is a process of its own, run several times at once, since what goes wrong here goes wrong by
chance: a worker that reads memory which the interpreter has taken away, or a thread joined
before it was told to stop.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from castiron.runtime import memory

ROOT = Path(__file__).parents[2]
REPEATS = 5

# `busy` is a run of two seconds on both threads; its context lies in memory that is never freed.
START = """
import ctypes, os, signal, sys, time
from castiron.runtime import lane, memory, team
from tests.runtime import native

code = native.compile_code()
crew = team.Team(code, 2)
made = lane.Lane(code)
space = memory.map_private(1 << 16)
step = native.Step(code["fill"], 8, 1, [(0, 0), (0, 0), (0, 0)], [1, int(5e8)])
run = native.Run([space], [step] * 4, team=crew.address, threads=2)

def submit():
    run.address()
    at = space + 4096
    moved = {}
    for words in run.kept:
        data = words.tobytes()
        ctypes.memmove(at, data, len(data))
        moved[words.buffer_info()[0]] = at
        at += 1024
    context = (ctypes.c_int64 * 9).from_address(at - 1024)
    for index in (0, 1):
        context[index] = moved[context[index]]
    made.submit(at - 1024, int)
    time.sleep(0.05)

def submit_owned():
    units = 1 << 18  # memory that the C library returns to the system when it is freed
    words = [native.Words(units) for _ in range(3)]
    fill = native.Step(code["fill"], units, 4, [(0, 0), (1, 0), (2, 0)], [1, 10_000])
    bases = [each.address for each in words]
    owned = native.Run(bases, [fill] * 20, team=crew.address, threads=2)
    made.submit(owned.address(), lambda: (owned, words))
    time.sleep(0.05)
"""

CASES = {
    "returns, all asleep": ("", 0),
    "returns, mid-run": ("submit()", 0),
    "returns, mid-run, on memory of Python objects": ("submit_owned()", 0),
    "raises, mid-run, on memory of Python objects": ("submit_owned(); raise ValueError", 1),
    "exits with a status, mid-run": ("submit(); sys.exit(7)", 7),
    "raises, mid-run": ("submit(); raise ValueError", 1),
    "dies by SIGTERM, mid-run": ("submit(); os.kill(os.getpid(), signal.SIGTERM)", -15),
    "handles SIGTERM, mid-run": (
        "signal.signal(15, lambda *_: sys.exit(5)); submit(); os.kill(os.getpid(), 15); time.sleep(5)",
        5,
    ),
    "stops first": ("assert made.stop(5) and crew.stop(5); sys.exit(3)", 3),
}


@pytest.mark.parametrize("case", CASES)
def test_a_process_ends_with_its_own_status_and_soon(case: str, tmp_path: Path) -> None:
    ending, status = CASES[case]
    script = tmp_path / "script.py"
    script.write_text(f"{START}\n{ending}\n")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    start = time.monotonic()
    processes = [
        subprocess.Popen([sys.executable, str(script)], env=environment, stderr=subprocess.PIPE)
        for _ in range(REPEATS)
    ]
    told = [process.communicate(timeout=60)[1].decode() for process in processes]
    assert [process.returncode for process in processes] == [status] * REPEATS, told
    assert time.monotonic() - start < 60


def test_a_fault_in_a_kernel_kills_by_its_signal(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    crash = 'made.submit(native.Run([], [native.Step(code["crash"], 1, 0)]).address(), int)'
    script.write_text(f"{START}\n{crash}\nmade.drain(10)\n")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.run([sys.executable, str(script)], env=environment, check=False)
    assert process.returncode == -signal.SIGSEGV


def test_the_load_path_of_the_runtime_imports_nothing_heavy() -> None:
    names = "lane team pool crash memory native_thread buddy"
    heavy = "numpy json re dataclasses enum typing llvmlite onnx threading pathlib collections"
    lines = [f"from castiron.runtime import {name}" for name in names.split()]
    lines += ["import sys", f"print([n for n in {heavy.split()} if n in sys.modules])"]
    process = subprocess.run(
        [sys.executable, "-S", "-c", "\n".join(lines)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert process.stdout == "[]\n"


def test_memory_of_a_wide_alignment_is_cut_to_size() -> None:
    size = memory.HUGE_PAGE_BYTES
    address = memory.map_private(size, size)
    assert address % size == 0
    memory.touch(address, size)
    memory.discard(address, size)
    memory.unmap(address, size)
    spans = [line.split(" ")[0] for line in Path("/proc/self/maps").read_text().splitlines()]
    bounds = [tuple(int(end, 16) for end in span.split("-")) for span in spans]
    assert not any(low <= address < high for low, high in bounds)
