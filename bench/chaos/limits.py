"""A control group of its own for a server: a share of a CPU, a bound of memory, a slow disk.

It lies below the group that this process is in, so that a limit around us is never left. Version 1
and version 2 are written, whichever is mounted with the controller; making one takes rights.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from castiron.machine import groups

_PERIOD_US = 100_000
_REMOVE_S = 5.0


class NotPossibleError(Exception):
    """This machine does not let us limit that; the message says why."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """0 leaves something as it is. ``disk_bytes_per_s`` bounds reads from the disk of a folder."""

    cpus: float = 0.0
    memory_bytes: int = 0
    disk_bytes_per_s: int = 0
    folder: Path = Path()

    def lines(self, version: str) -> dict[str, list[tuple[str, str]]]:
        """What to write into which file, by controller."""
        found: dict[str, list[tuple[str, str]]] = {}
        is_v2, quota_us = version == groups.V2, int(self.cpus * _PERIOD_US)
        if self.cpus and is_v2:
            found["cpu"] = [("cpu.max", f"{quota_us} {_PERIOD_US}")]
        elif self.cpus:
            found["cpu"] = [("cpu.cfs_period_us", str(_PERIOD_US)),
                            ("cpu.cfs_quota_us", str(quota_us))]  # fmt: skip
        if self.memory_bytes:
            name = "memory.max" if is_v2 else "memory.limit_in_bytes"
            found["memory"] = [(name, str(self.memory_bytes))]
        if self.disk_bytes_per_s and is_v2:
            found["io"] = [("io.max", f"{disk_of(self.folder)} rbps={self.disk_bytes_per_s}")]
        elif self.disk_bytes_per_s:
            line = f"{disk_of(self.folder)} {self.disk_bytes_per_s}"
            found["blkio"] = [("blkio.throttle.read_bps_device", line)]
        return found


class Group:
    """Folders of one group; a command is put into it before it starts."""

    def __init__(self, folders: dict[str, Path], version: str) -> None:
        self.folders = folders
        self.version = version

    def command(self, words: Sequence[str]) -> list[str]:
        """The command that runs these words inside the group, as the same process."""
        enter = "".join(f"echo $$ > '{folder}/cgroup.procs' && " for folder in self._distinct())
        return ["sh", "-c", f'{enter}exec "$@"', "sh", *words]

    def peak_bytes(self) -> int:
        """The most memory that it had at once, pages of files included; 0: the kernel knows not."""
        name = "memory.peak" if self.version == groups.V2 else "memory.max_usage_in_bytes"
        return int("".join(groups.lines(f"{self.folders['memory']}/{name}")[:1]) or 0)

    def num_killed(self) -> int:
        """Processes that were killed because memory ran out."""
        name = "memory.events" if self.version == groups.V2 else "memory.oom_control"
        for line in groups.lines(f"{self.folders['memory']}/{name}"):
            if line.startswith("oom_kill "):
                return int(line.split()[1])
        raise NotPossibleError("the kernel does not count what it kills")

    def remove(self) -> None:
        """All its processes have ended, or are about to. Raises OSError when one goes on."""
        end = time.monotonic() + _REMOVE_S
        left = self._distinct()
        while left:
            try:
                left[0].rmdir()
                left.pop(0)
            except OSError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.05)

    def _distinct(self) -> list[Path]:
        return list(dict.fromkeys(self.folders.values()))


@contextlib.contextmanager
def group(wanted: Wanted) -> Iterator[Group]:
    """A group with these limits, gone at the end. Raises NotPossibleError."""
    version = _version(wanted)
    made = Group({}, version)
    try:
        for controller, lines in wanted.lines(version).items():
            made.folders[controller] = folder = _made(controller)
            for name, line in lines:
                _write(folder / name, line)
        yield made
    finally:
        made.remove()


def disk_of(folder: Path) -> str:
    """The number of the disk that a folder lies on, as control groups want it."""
    device = folder.stat().st_dev
    place = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}")
    if not place.exists():
        raise NotPossibleError(f"{folder} does not lie on a disk of its own")
    if (place / "partition").exists():
        return (place.resolve().parent / "dev").read_text().strip()
    return f"{os.major(device)}:{os.minor(device)}"


def forget(file: Path) -> None:
    """Let the next reader of a file read the disk."""
    handle = os.open(file, os.O_RDONLY)
    try:
        os.fsync(handle)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(handle)


def _version(wanted: Wanted) -> str:
    """The first in which every controller that is wanted is mounted."""
    for version in (groups.V1, groups.V2):
        controllers = wanted.lines(version)
        if all(_own(controller, version) is not None for controller in controllers):
            return version
    raise NotPossibleError(f"no control groups for {', '.join(wanted.lines(groups.V2))} here")


def _own(controller: str, version: str) -> Path | None:
    """The folder of the group that this process is in, if it can limit what lies below."""
    for found, folder in groups.folders(controller):
        if found != version:
            continue
        listed = " ".join(groups.lines(f"{folder}/cgroup.subtree_control")).split()
        return Path(folder) if version == groups.V1 or controller in listed else None
    return None


def _made(controller: str) -> Path:
    own = _own(controller, groups.V1) or _own(controller, groups.V2)
    assert own is not None
    folder = own / f"castiron-chaos-{os.getpid()}"
    try:
        folder.mkdir(exist_ok=True)
    except OSError as fault:
        raise NotPossibleError(f"{folder}: {fault.strerror}") from None
    return folder


def _write(file: Path, line: str) -> None:
    try:
        file.write_text(f"{line}\n")
    except OSError as fault:
        raise NotPossibleError(f"{file}: {fault.strerror}") from None
