"""The audit log: lines in order, on disk, wherever the operator moves the file."""

from __future__ import annotations

import asyncio
import json
import os
import stat
from pathlib import Path

import pytest

from castiron import errors
from castiron.server.security import audit


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]]


def test_lines_are_appended_in_order_and_nobody_else_reads_them(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    path.touch(0o600)
    path.write_text('{"earlier": 1}\n')

    async def run() -> None:
        log = audit.Audit(str(path))
        await asyncio.gather(*(log.write(number=number) for number in range(50)))
        log.close()

    asyncio.run(run())
    found = lines(path)
    assert found[0] == {"earlier": 1}
    assert [line["number"] for line in found[1:]] == list(range(50))
    whens = [str(line["when"]) for line in found[1:]]
    assert whens == sorted(whens)
    assert whens[0].endswith("+00:00")
    made = tmp_path / "made"
    audit.Audit(str(made)).close()
    assert stat.S_IMODE(made.stat().st_mode) == 0o600


def test_a_line_cannot_be_broken_or_forged_from_outside(tmp_path: Path) -> None:
    path = tmp_path / "audit"

    async def run() -> None:
        log = audit.Audit(str(path))
        await log.write(model='a\n{"forged": 1}\x00\u2028', other="\ud800", long="x" * 10_000)
        log.close()

    asyncio.run(run())
    [line] = lines(path)
    assert line["model"] == 'a\n{"forged": 1}\x00\u2028'
    assert line["other"] == "?"
    assert len(str(line["long"])) == 500
    assert path.read_bytes().count(b"\n") == 1


def test_a_file_that_is_moved_away_is_followed_by_a_new_one(tmp_path: Path) -> None:
    path, moved = tmp_path / "audit", tmp_path / "audit.1"

    async def run() -> None:
        log = audit.Audit(str(path))
        await log.write(number=1)
        path.rename(moved)
        await log.write(number=2)
        path.unlink()
        await log.write(number=3)
        log.close()

    asyncio.run(run())
    assert [line["number"] for line in lines(moved)] == [1]
    assert [line["number"] for line in lines(path)] == [3]


def test_each_line_is_synced_before_write_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    path = tmp_path / "audit"
    real = os.fsync

    def fsync(file: int) -> None:
        synced.append(path.stat().st_size)
        real(file)

    monkeypatch.setattr(os, "fsync", fsync)

    async def run() -> None:
        log = audit.Audit(str(path))
        for _ in range(3):
            await log.write(number=1)
            assert synced[-1] == path.stat().st_size
        log.close()

    asyncio.run(run())
    assert len(synced) == 3


def test_what_cannot_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(errors.CastironError, match=r"--audit-log .*: cannot be appended to"):
        audit.Audit(str(tmp_path))

    async def run() -> None:
        log = audit.Audit("/dev/full")
        with pytest.raises(OSError):
            await log.write(number=1)
        log.close()

    asyncio.run(run())


def test_of_many_refusals_some_are_written_and_the_rest_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "audit"

    async def run() -> None:
        log = audit.Audit(str(path))
        loop = asyncio.get_running_loop()
        now_s = 1000.5
        monkeypatch.setattr(loop, "time", lambda: now_s)
        for _ in range(100):
            await log.write_refusal(outcome="refused")
        now_s += 1
        await log.write_refusal(outcome="refused")
        log.close()

    asyncio.run(run())
    found = lines(path)
    assert len(found) == 20 + 1
    untold = sum(int(str(line.get("refusals_not_written", 0))) for line in found)
    assert len(found) + untold == 101
