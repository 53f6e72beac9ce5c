"""How much memory this process may fill: what the machine has, container limits, `ulimit`.

A process that goes beyond is killed without a word, so budgets are shares of what is found here.
Looked at once, at the start. Read are `memory.max` and `memory.high` of cgroup v2,
`memory.limit_in_bytes` of cgroup v1, RLIMIT_AS and RLIMIT_DATA.
"""

from __future__ import annotations

import os
import resource

from castiron.machine import groups

_FILES = {groups.V2: ("memory.max", "memory.high"), groups.V1: ("memory.limit_in_bytes",)}
# cgroup v1 writes the largest number of pages where nothing is limited.
_NO_LIMIT_BYTES = 1 << 62


class Limit:
    """At most `size_bytes`, because of `name`, found at `where`.

    `name` is "physical memory", the version and file of a control group, or "RLIMIT_AS" or
    "RLIMIT_DATA". `is_shared` tells that all processes of the group fill it together.
    """

    __slots__ = ("is_shared", "name", "size_bytes", "where")

    def __init__(self, size_bytes: int, name: str, where: str, *, is_shared: bool) -> None:
        self.size_bytes = size_bytes
        self.name = name
        self.where = where
        self.is_shared = is_shared

    def share_bytes(self, processes: int) -> int:
        """What each of so many processes of this command may fill."""
        return self.size_bytes // processes if self.is_shared else self.size_bytes


def tightest(root: str = "/") -> Limit:
    """The smallest of all limits; the first wins a tie."""
    return min(limits(root), key=_size)


def limits(root: str = "/") -> list[Limit]:
    """Every limit there is: of the machine, of each control group outwards, of this process.

    `root` is where `proc` and the mounts of the control groups are looked for. A file that
    cannot be read sets no limit.
    """
    found = [Limit(_physical_bytes(root), "physical memory", "", is_shared=True)]
    for version, folder in groups.folders("memory", root):
        for file in _FILES[version]:
            size_bytes = _bytes_in(f"{folder}/{file}")
            if size_bytes is not None:
                found.append(Limit(size_bytes, f"{version} {file}", folder, is_shared=True))
    for name in ("RLIMIT_AS", "RLIMIT_DATA"):
        size_bytes = resource.getrlimit(getattr(resource, name))[0]
        if 0 <= size_bytes < _NO_LIMIT_BYTES:
            found.append(Limit(size_bytes, name, "", is_shared=False))
    return found


def _physical_bytes(root: str) -> int:
    """What a container shows as its memory, where it shows its own; else the machine's pages."""
    for line in groups.lines(groups.join(root, "/proc/meminfo")):
        words = line.split()
        if words[:1] == ["MemTotal:"] and len(words) > 1 and words[1].isdecimal():
            return int(words[1]) << 10
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _bytes_in(path: str) -> int | None:
    """The number in a file; None for "max", for -1, for no limit and for what is no number."""
    lines = groups.lines(path)
    text = lines[0].strip() if lines else ""
    size_bytes = int(text) if text.isascii() and text.isdecimal() else 0
    return size_bytes if 0 < size_bytes < _NO_LIMIT_BYTES else None


def _size(limit: Limit) -> int:
    return limit.size_bytes
