"""What it was measured on: processor, caches' worth of speed, load. Printed with every table."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from bench import process


def description() -> list[str]:
    """Lines for above a table; the peak is probed anew each time."""
    load = ", ".join(f"{value:.2f}" for value in os.getloadavg())
    probe = process.ask("peak", 2.0)["gflops"]
    return [
        f"processor: {_processor()}, {len(os.sched_getaffinity(0))} CPUs usable",
        f"peak probe: {probe:.0f} GFLOP/s on one core (float32 matrix product of numpy)",
        f"load average: {load}; Python {platform.python_version()}",
    ]


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return platform.machine()
