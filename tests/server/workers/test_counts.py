"""What the supervisor counts is on the page of every worker."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.server.workers import several

pytestmark = pytest.mark.xdist_group("workers")


def test_replacements_and_changes_are_on_the_page_of_every_worker(tmp_path: Path) -> None:
    models = tmp_path / "models"
    models.mkdir()
    built = several.build(tmp_path / "two.cast")
    several.publish(built, models, "m", 1)
    with several.serving(tmp_path, models) as server:
        restarts = 'castiron_worker_restarts_total{reason="SIGKILL"} '
        assert "castiron_workers 2" in server.text("/metrics")[1]
        assert restarts not in server.text("/metrics")[1]
        for count in (1, 2):
            victim = server.workers()[0]
            several.end(victim, signal.SIGKILL)
            server.wait(lambda victim=victim: victim not in server.workers())  # type: ignore[misc]
            server.wait_ready(2)
            server.wait(lambda count=count: f"{restarts}{count}" in server.text("/metrics")[1])  # type: ignore[misc]
        several.publish(built, models, "m", 2)
        assert server.admin("m", "load")[0] == 200
        swaps = 'castiron_swap_seconds_count{model="m"} 1'
        server.wait(lambda: swaps in server.text("/metrics")[1])
        # Whichever worker answers, it tells of all.
        for _ in range(8):
            page = server.text("/metrics")[1]
            assert f"{restarts}2" in page
            assert "castiron_workers 2" in page
            assert swaps in page
