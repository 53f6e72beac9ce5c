"""What the machine itself does to a constant rate: the same runs on the same CPU, without a server.

    python -m bench.serving.floor mobilenet_v2 --rate 100 --seconds 30

A run begins when it is meant to, or when the one before has ended; nothing is sent, read or merged.
No server can spread its latencies less than this while the machine is as it is.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import castiron
from bench import inputs, latency

_NUM_WARM = 50


def measured(model: str, rate: float, seconds: float, cpu: int) -> tuple[float, float]:
    """p50 and p99 in milliseconds, by a process of its own on this CPU."""
    command = [sys.executable, "-m", "bench.serving.floor", model, "--rate", f"{rate:.3f}",
               "--seconds", f"{seconds:g}", "--cpu", str(cpu)]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    p50_ms, p99_ms = map(float, done.stdout.split()[-2:])
    return p50_ms, p99_ms


def main(arguments: Sequence[str] | None = None) -> None:
    """Print p50 and p99 in milliseconds."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--rate", type=float, required=True, help="runs a second")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--cpu", type=int, help="the CPU to run on")
    chosen = parser.parse_args(arguments)
    if chosen.cpu is not None:
        os.sched_setaffinity(0, {chosen.cpu})
    took_ms = _runs(chosen.model, chosen.rate, chosen.seconds)
    print(*np.round(np.percentile(took_ms, [50, 99]), 3))


def _runs(model: str, rate: float, seconds: float) -> list[float]:
    """Milliseconds from when each run was meant to begin to its end."""
    given = inputs.usual(model)
    with tempfile.TemporaryDirectory() as folder:
        built = castiron.build(latency.source(model), Path(folder) / "model.cast")
        instance = castiron.load(built, threads=1)
        for _ in range(_NUM_WARM):
            instance.run(given)
        begun_s = time.monotonic()
        took_ms: list[float] = []
        for number in range(int(rate * seconds)):
            meant_s = begun_s + number / rate
            time.sleep(max(0.0, meant_s - time.monotonic()))
            instance.run(given)
            took_ms.append((time.monotonic() - meant_s) * 1e3)
    return took_ms


if __name__ == "__main__":
    main()
