"""A server as a group of processes: started apart, its CPU time and memory read, ended by ids."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_STOP_S = 10.0


class Group:
    """A command and all processes that it starts; output goes to a file."""

    def __init__(
        self, command: Sequence[str], log: Path, extra: Mapping[str, str], folder: Path
    ) -> None:
        with log.open("wb") as out:
            self._leader = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=folder,
                env={**os.environ, **extra}, start_new_session=True,
            )  # fmt: skip
        self._log = log
        self._seen = {self._leader.pid}

    @property
    def is_alive(self) -> bool:
        """Whether the first process runs."""
        return self._leader.poll() is None

    def log(self) -> str:
        """What it wrote last."""
        return self._log.read_text(errors="replace")[-2000:]

    def cpu_s(self) -> float:
        """CPU time of all its processes so far."""
        return sum(ticks for _, ticks in self._members()) * _TICK_S

    def processes(self) -> list[int]:
        """The ids of all its processes that are not yet over."""
        return [process for process, _ in self._members()]

    @property
    def first(self) -> int:
        """The id of the first process."""
        return self._leader.pid

    @property
    def status(self) -> int | None:
        """The exit status of the first process, once it has ended; negative for a signal."""
        return self._leader.poll()

    def cpu_of(self, pid: int) -> float:
        """CPU time of one of its processes so far, 0 if it is over."""
        return next((ticks for each, ticks in self._members() if each == pid), 0) * _TICK_S

    def resident_kb(self) -> int:
        """Resident memory of all its processes now, what they share counted in each."""
        return sum(_rss_kb(pid) for pid in self.processes())

    def terminate(self) -> None:
        """Ask the first process to end."""
        self._leader.terminate()

    def stop(self) -> None:
        """Ask the first process to end; whatever is left after a while is killed, one by one."""
        self._members()
        if self.is_alive:
            self._leader.terminate()
        end = time.monotonic() + _STOP_S
        while time.monotonic() < end and list(self._members()):
            self._leader.poll()
            time.sleep(0.1)
        for process, _ in self._members():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self._leader.wait(_STOP_S)

    def _members(self) -> list[tuple[int, int]]:
        """Process id and CPU ticks of each process of the group that is not yet over.

        Those that descend from the first process, or are in its group; once seen, a process stays
        a member, since its parent may end before it.
        """
        alive = dict(_processes())
        self._seen &= alive.keys()
        self._seen |= {pid for pid, each in alive.items() if each.group == self._leader.pid}
        while found := {
            pid
            for pid, each in alive.items()
            if each.parent in self._seen and pid not in self._seen
        }:
            self._seen |= found
        return [(pid, alive[pid].ticks) for pid in sorted(self._seen)]


def _rss_kb(pid: int) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Rss:"):
                return int(line.split()[1])
    return 0


class _Process(NamedTuple):
    parent: int
    group: int
    ticks: int


def _processes() -> Iterator[tuple[int, _Process]]:
    """Every process of the machine that is not yet over."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            if fields[0] != "Z":
                ticks = int(fields[11]) + int(fields[12])
                yield int(entry.name), _Process(int(fields[1]), int(fields[3]), ticks)


def free_port() -> int:
    """A port on loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
