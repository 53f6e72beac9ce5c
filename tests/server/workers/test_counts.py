"""What workers tell about all of them: the supervisor's counts, and whether they are ready."""

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
            server.wait_replaced(victim)
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


def test_strict_readiness_holds_for_every_worker(tmp_path: Path) -> None:
    models = tmp_path / "models"
    models.mkdir()
    several.publish(several.build(tmp_path / "two.cast"), models, "m", 1)
    with several.serving(tmp_path, models, "--strict-readiness") as server:
        broken = models / "broken" / "1" / "model.cast"
        broken.parent.mkdir(parents=True)
        broken.write_bytes(b"no executable")
        assert server.admin("broken", "load")[0] == 503
        server.wait(lambda: server.ready()["workers"] == {"ready": 0, "expected": 2})
        for _ in range(8):  # whichever worker is asked
            code, told = server.ask("GET", "/v2/health/ready")
            assert (code, told["ready"]) == (503, False)
            assert told["versions"] == {"broken/1": "failed"}
        # Those who ask all the same are answered.
        assert server.ask("POST", "/v2/models/m/infer", several.BODY)[0] == 200
        assert server.admin("broken", "unload")[0] == 200
        server.wait_ready(2)
        assert {server.ask("GET", "/v2/health/ready")[0] for _ in range(8)} == {200}
