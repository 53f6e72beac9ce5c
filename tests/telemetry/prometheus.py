"""A Prometheus for tests: Debian's, started on loopback over targets and rules, and asked.

``make telemetry`` installs it where it is missing.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

_START_S = 30.0


class Prometheus:
    """A running one."""

    def __init__(self, port: int) -> None:
        self._port = port

    def get(self, path: str, **parameters: str) -> Any:
        """The data of an answer of its API."""
        words = urllib.parse.urlencode(parameters)
        address = f"http://127.0.0.1:{self._port}/api/v1/{path}?{words}"
        with urllib.request.urlopen(address, timeout=10) as answer:
            return json.loads(answer.read())["data"]

    def query(self, expression: str) -> list[Any]:
        """The series that an expression gives now."""
        found: list[Any] = self.get("query", query=expression)["result"]
        return found

    def is_up(self) -> bool:
        """Whether it answers."""
        try:
            return bool(self.get("status/runtimeinfo"))
        except OSError:
            return False


def until(is_so: Callable[[], Any], patience_s: float = _START_S) -> Any:
    """What ``is_so`` gives once it is true; else the last that it gave."""
    end_s = time.monotonic() + patience_s
    while not (found := is_so()) and time.monotonic() < end_s:
        time.sleep(0.25)
    return found


@contextlib.contextmanager
def running(folder: Path, ports: Sequence[int], rules: Path) -> Iterator[Prometheus]:
    """Prometheus over these ports of castiron, asked each second."""
    binary = shutil.which("prometheus")
    assert binary, "Prometheus is not installed; `make telemetry` does it"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(rules)],
        "scrape_configs": [
            {
                "job_name": "castiron",
                "static_configs": [{"targets": [f"127.0.0.1:{each}" for each in ports]}],
            }
        ],
    }
    (folder / "prometheus.yml").write_text(json.dumps(config))
    command = [
        binary, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/tsdb",
        f"--web.listen-address=127.0.0.1:{port}",
    ]  # fmt: skip
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        made = Prometheus(port)
        assert until(made.is_up), (folder / "prometheus.log").read_text()
        yield made
    finally:
        process.terminate()
        process.wait(20)
