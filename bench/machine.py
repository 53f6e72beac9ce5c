"""What it was measured on: processor, caches' worth of speed, load. Printed with every table."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from bench import inputs, process
from zoo import fetch


def description() -> list[str]:
    """Lines for above a table; the peak is probed anew each time."""
    load = ", ".join(f"{value:.2f}" for value in os.getloadavg())
    probe = inputs.work_folder() / "probe.cast"
    process.build(fetch.path("alexa"), probe)
    peak = process.ask("peak", probe, 2.0)
    return [
        f"processor: {_processor()}, {len(os.sched_getaffinity(0))} CPUs usable",
        (
            f"peak of one core, float32: {peak['probe_gflops']:.0f} GFLOP/s in registers, "
            f"{peak['product_gflops']:.0f} in numpy's matrix product"
        ),
        f"load average: {load}; Python {platform.python_version()}",
    ]


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return platform.machine()
