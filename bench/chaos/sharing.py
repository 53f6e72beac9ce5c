"""What a large model costs when several workers serve it: one copy of its weights."""

from __future__ import annotations

import tempfile
from pathlib import Path

from bench.chaos import server as servers

_TOLERANCE = 1.05


def told(num_workers: int, megabytes: int) -> tuple[str, bool]:
    """A line with the memory of the model's file over all workers; whether it is one copy."""
    shares = measured(num_workers, megabytes)
    each = ", ".join(f"{kilobytes / 1024:.0f}" for kilobytes in shares)
    line = (
        f"{num_workers} workers serve a model of {megabytes} MB: its file takes "
        f"{sum(shares) / 1024:.0f} MB of memory, by worker {each}"
    )
    return line, sum(shares) <= _TOLERANCE * megabytes * 1024


def measured(num_workers: int, megabytes: int) -> list[int]:
    """Proportional kB of the model's file in each worker, after each has read all of it."""
    with tempfile.TemporaryDirectory(prefix="castiron-sharing-") as name:
        folder = Path(name)
        source = servers.wide(folder, megabytes)
        file = servers.publish(source, folder / "models", "wide", 1)
        with servers.serving(folder, num_workers) as server:
            server.wait(lambda: _have_all_read(server, file, megabytes))
            return [_kilobytes(pid, file, "Pss:") for pid in server.workers()]


def _have_all_read(server: servers.Server, file: Path, megabytes: int) -> bool:
    """Ask once more, which any worker may answer; whether all have the weights now."""
    status, told_back = server.ask("POST", "/v2/models/wide/infer", servers.BODY)
    assert status == 200, told_back
    resident = [_kilobytes(pid, file, "Rss:") for pid in server.workers()]
    return min(resident) >= megabytes * 1024


def _kilobytes(pid: int, file: Path, word: str) -> int:
    """The sum over the mappings of a file in a process."""
    total, is_inside = 0, False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        words = line.split()
        if "-" in words[0]:
            is_inside = line.endswith(str(file))
        elif is_inside and words[0] == word:
            total += int(words[1])
    return total
