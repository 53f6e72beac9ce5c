"""wrk, a closed-loop load tool in C, run and read; what it sends is written by ``requests.lua``.

It shows what a server can take. Its latencies hide waiting, since it asks again only after an
answer; those of `traffic.open_loop` do not.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_SCRIPT = Path(__file__).with_name("requests.lua")


class WrkError(Exception):
    """wrk is missing or has failed; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Result:
    """``rate`` counts good answers a second; ``num_failed`` all others, and lost connections."""

    rate: float
    p50_ms: float
    p99_ms: float
    num_failed: int


def run(port: int, request: Sequence[str], clients: int, seconds: float, cpu: int) -> Result:
    """Ask a server on loopback for a while, from one thread on one CPU. Raises `WrkError`.

    ``request`` is what ``requests.lua`` takes: a kind and its two arguments.
    """
    command = ["taskset", "--cpu-list", str(cpu), "wrk", "--threads", "1",
               "--connections", str(clients), "--duration", f"{max(1, round(seconds))}s",
               "--timeout", "30s", "--script", str(_SCRIPT), f"http://127.0.0.1:{port}",
               "--", *request]  # fmt: skip
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        said = (done.stderr + done.stdout).strip()[-300:]
        raise WrkError(f"wrk ended with {done.returncode}: {said} (`make serving` installs it)")
    return read(done.stdout)


def read(output: str) -> Result:
    """The last line of what wrk wrote."""
    found = json.loads(output.strip().splitlines()[-1])
    good = found["requests"] - found["not_ok"]
    failed = found["not_ok"] + found["broken"]
    return Result(good / found["seconds"], found["p50_ms"], found["p99_ms"], failed)
