"""A server process with security settings, and its addresses as it prints them."""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.server.security import issuer

X = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}


class Guarded:
    """A running server of two models, ``mine`` and ``yours``."""

    def __init__(
        self, folder: Path, settings: Mapping[str, Any], context: ssl.SSLContext | None
    ) -> None:
        self.context = context
        for name in ("mine", "yours"):
            path = folder / "models" / name / "1" / "model.cast"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("add_one")
        self.log = folder / "log"
        command = [sys.executable, "-m", "tests.server.numpy_server", folder / "models",
                   folder / "cache", json.dumps(settings)]  # fmt: skip
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*map(str, command)], stdout=subprocess.PIPE, stderr=log
            )
        assert self.process.stdout is not None
        self.ports: dict[str, int] = {}
        wanted = {"serving http"} | ({"admin"} if settings.get("admin_port", -1) >= 0 else set())
        wanted |= {"serving grpc"} if settings.get("grpc_port", -1) >= 0 else set()
        while self.ports.keys() != wanted:
            words = self.process.stdout.readline().decode().split(" on ")
            assert len(words) == 2, self.log.read_text()
            parts = urlsplit(words[1].strip())
            kind = "admin" if words[0] == "admin" else f"serving {parts.scheme.rstrip('s')}"
            self.ports[kind] = parts.port or 0

    @property
    def port(self) -> int:
        """Where data is asked for."""
        return self.ports["serving http"]

    def ask(
        self, method: str, path: str, token: str = "", body: Any = None, *,
        port: int = 0, headers: Mapping[str, str] | None = None,
    ) -> tuple[int, dict[str, str], bytes]:  # fmt: skip
        """One request on a connection of its own."""
        made: http.client.HTTPConnection
        if self.context is None:
            made = http.client.HTTPConnection("127.0.0.1", port or self.port, timeout=20)
        else:
            made = http.client.HTTPSConnection(
                "127.0.0.1", port or self.port, timeout=20, context=self.context
            )
        sent = dict(headers or {}) | ({"authorization": f"Bearer {token}"} if token else {})
        with contextlib.closing(made):
            made.request(method, path, None if body is None else json.dumps(body), sent)
            answer = made.getresponse()
            names = {name.lower(): value for name, value in answer.getheaders()}
            return answer.status, names, answer.read()

    def wait_ready(self) -> None:
        """Until both models are."""
        end = time.monotonic() + 20
        while time.monotonic() < end:
            if self.ask("GET", "/v2/health/ready")[0] == 200:
                return
            time.sleep(0.02)
        raise AssertionError(self.log.read_text())


@contextlib.contextmanager
def serving(
    folder: Path, context: ssl.SSLContext | None = None, **settings: Any
) -> Iterator[Guarded]:
    """A server while the block runs; its end must be clean."""
    server = Guarded(folder, settings, context)
    try:
        server.wait_ready()
        yield server
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(20) == 0, server.log.read_text()
    finally:
        if server.process.poll() is None:
            server.process.kill()
            server.process.wait(20)
        assert server.process.stdout is not None
        server.process.stdout.close()
    assert "Traceback" not in server.log.read_text()


def jwt_settings(folder: Path) -> dict[str, Any]:
    """Settings that ask for the issuer's tokens."""
    path = folder / "jwks.json"
    path.write_text(issuer.key_set())
    return {"jwks": str(path), "issuer": issuer.ISSUER, "audience": issuer.AUDIENCE}
