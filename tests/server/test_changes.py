"""Versions changed over the admin port and by ``castiron models``, while requests are answered."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

from tests.server import live


def models(admin: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "castiron", "models", *words, "--admin", admin]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_promote_and_rollback_by_the_command_line(tmp_path: Path) -> None:
    given = {"m/1/model.cast": "add_one", "m/2/model.cast": "add_one"}
    audit = tmp_path / "audit"
    with live.serving(tmp_path, given, admin_port=0, audit_log=str(audit)) as server:
        assert server.process.stdout is not None
        admin = server.process.stdout.readline().decode().split()[-1]
        assert "* m/2" in models(admin, "list").stdout
        assert "* m/1" in models(admin, "promote", "m", "--version", "1").stdout
        body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1] * 4}]}
        _, _, answer = server.ask("POST", "/v2/models/m/infer", body)
        assert json.loads(answer)["model_version"] == "1", answer
        assert "* m/2" in models(admin, "rollback", "m").stdout
        wrong = models(admin, "promote", "m", "--version", "7")
        assert wrong.returncode == 1
        assert "has no version 7" in wrong.stderr
        assert models(admin, "load").returncode == 1
    lines = [json.loads(line) for line in audit.read_text().splitlines()]
    assert {line["action"] for line in lines} == {"status", "promote", "rollback"}


def test_a_version_put_into_the_folder_is_found_by_itself(tmp_path: Path) -> None:
    with live.serving(tmp_path, {"m/1/model.cast": "add_one"}, watch_s=0.05) as server:
        made = tmp_path / "2"
        made.mkdir()
        (made / "model.onnx").write_text("add_one")
        made.rename(tmp_path / "models" / "m" / "2")
        end = time.monotonic() + 20
        while "2" not in server.get("/v2/models/m")["versions"]:
            assert time.monotonic() < end, server.log()
            time.sleep(0.05)
