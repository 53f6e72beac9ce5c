"""Starts measured processes, one at a time, pinned to as many CPUs as they get threads.

Never two engines in one process: a pool that spins steals the other one's core for a while.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent
_TIMEOUT_S = 600

# A numerical library that starts threads of its own would measure something else.
_QUIET = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


class WorkerError(Exception):
    """A measured process failed; the message ends with what it wrote last."""


def ask(question: str, *arguments: object, threads: int = 1) -> dict[str, float]:
    """One answer of `bench.worker`. Raises `WorkerError`."""
    # By its path and not by -m: the machinery of -m would be part of the start time.
    return _answer(["-P", "bench/worker.py", question, *map(str, arguments)], threads)


def first_output_s(engine: str, file: Path, inputs: Path, threads: int = 1) -> float:
    """Seconds from starting the process to the first output."""
    begin = time.time()
    answer = ask("first", engine, file, inputs, threads, threads=threads)
    return answer["done_at_s"] - begin


def bare_start_s() -> float:
    """Seconds that `python -c pass` takes, for scale."""
    command = _pinned([sys.executable, "-c", "pass"], threads=1)
    begin = time.perf_counter()
    subprocess.run(command, check=True)
    return time.perf_counter() - begin


def build(source: Path, out: Path) -> float:
    """Compile a model in a process of its own; seconds that the compiler took."""
    out.parent.mkdir(parents=True, exist_ok=True)
    code = "import castiron, sys, time; t = time.perf_counter(); "
    code += "castiron.build(sys.argv[1], out=sys.argv[2]); "
    code += "print({'seconds': time.perf_counter() - t}.__repr__().replace(chr(39), chr(34)))"
    return _answer(["-c", code, str(source), str(out)], threads=None)["seconds"]


def _answer(arguments: list[str], threads: int | None) -> dict[str, float]:
    done = subprocess.run(
        _pinned([sys.executable, *arguments], threads),
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        cwd=_ROOT,
        env=os.environ | _QUIET | {"PYTHONPATH": str(_ROOT)},
        check=False,
    )
    if done.returncode != 0:
        last = done.stderr.strip()[-800:]
        raise WorkerError(f"{' '.join(arguments[:4])} ended with {done.returncode}: {last}")
    answer: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return answer


def _pinned(command: list[str], threads: int | None) -> list[str]:
    if threads is None:
        return command
    chosen = sorted(os.sched_getaffinity(0))[-threads:]
    return ["taskset", "--cpu-list", ",".join(map(str, chosen)), *command]
