"""The command `castiron serve` itself over models that are built here, asked like ``live.Server``."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import castiron
from tests.server import live


class Server(live.Server):
    """Serves a folder of models until it is stopped."""

    def __init__(self, models: Path, cache: Path, *options: str) -> None:
        self._log = cache / "log"
        cache.mkdir(exist_ok=True)
        command = [sys.executable, "-m", "castiron", "serve", str(models), "--port", "0",
                   "--cache-dir", str(cache), "--threads", "1", *options]  # fmt: skip
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log)
        assert self.process.stdout is not None
        line = self.process.stdout.readline().decode()
        assert line.startswith("serving on http://127.0.0.1:"), (line, self.log())
        self.port = int(line.rsplit(":", 1)[1])


@contextlib.contextmanager
def serving(models: Path, cache: Path, *options: str) -> Iterator[Server]:
    """A server that has settled."""
    server = Server(models, cache, *options)
    try:
        server.wait_settled()
        yield server
    finally:
        if server.process.poll() is None:
            server.stop()
        assert server.process.stdout is not None
        server.process.stdout.close()


def put(models: Path, name: str, source: object, contract: str = "", code: str = "") -> None:
    """Version 1 of a model: compiled, with its contract and pipeline beside it."""
    folder = models / name / "1"
    folder.mkdir(parents=True)
    castiron.build(source, out=folder / "model.cast")
    for file, text in (("contract.toml", contract), ("pipeline.py", code)):
        if text:
            (folder / file).write_text(text)
