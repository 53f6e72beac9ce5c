"""A random worker is killed or stopped every few seconds under load: what that costs, and how long."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

import pytest

from tests.server.workers import several

pytestmark = [pytest.mark.xdist_group("workers"), pytest.mark.slow, pytest.mark.timeout(600)]

_CLIENTS = 4


def chaos(tmp_path: Path, num_hits: int, pause_s: float) -> None:
    """Hit a worker so many times, one every ``pause_s``."""
    folder = tmp_path / "models"
    folder.mkdir()
    built = several.build(tmp_path / "built" / "two.cast")
    several.publish(built, folder, "m", 1)
    dice = random.Random(7)
    with several.serving(tmp_path, folder) as server:
        load = several.Load(server, "m", _CLIENTS, pause_s=0.002)
        hits, back = [], []
        for _ in range(num_hits):
            worker = dice.choice(server.workers())
            hit = time.monotonic()
            several.end(worker, dice.choice([signal.SIGKILL, signal.SIGSTOP]))
            server.wait(lambda gone=worker: gone not in server.workers())  # type: ignore[misc]
            server.wait_ready(2)
            hits.append(hit)
            back.append(time.monotonic() - hit)
            time.sleep(max(0.0, pause_s - back[-1]))
        load.stop()
        accepted, ended = (_total(server, name) for name in ("accepted", "requests"))
    several.tell(
        f"{num_hits} hits: {len(load.failures)} of {len(load.times)} requests lost; both workers "
        f"ready again after {sorted(back)[len(back) // 2]:.2f} s, {max(back):.2f} s at most; "
        f"accepted {accepted:.0f}, ended {ended:.0f}"
    )
    assert accepted == ended
    assert len(load.failures) <= _CLIENTS * num_hits
    for at, _ in load.failures:
        assert min(abs(at - hit) for hit in hits) < 2  # in flight when it was hit, or just after


def _total(server: several.Server, name: str) -> float:
    _, text = server.text("/metrics")
    start = {"accepted": "castiron_requests_accepted_total", "requests": "castiron_requests_total"}
    lines = [line for line in text.splitlines() if line.startswith(start[name])]
    return sum(float(line.split()[-1]) for line in lines)


def test_two_minutes_of_it(tmp_path: Path) -> None:
    chaos(tmp_path, num_hits=24, pause_s=5)
