"""How many CPUs this process may use: affinity, container quotas, an explicit setting.

The host's core count says nothing inside a container. Looked at once, when the team is made; it
does not follow a quota that changes later. Control groups are read as the kernel documents them:
`cpu.max` of cgroup v2, `cpu.cfs_quota_us` over `cpu.cfs_period_us` of cgroup v1.
"""

from __future__ import annotations

import os

from castiron import errors

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_V2 = "cgroup v2 cpu.max"
_V1 = "cgroup v1 quota"


class Budget:
    """`cpus` threads may compute at once, because of `limit`, found at `where`.

    `limit` is "affinity", "cgroup v2 cpu.max", "cgroup v1 quota" or "setting".
    """

    __slots__ = ("cpus", "limit", "where")

    def __init__(self, cpus: int, limit: str, where: str) -> None:
        self.cpus = cpus
        self.limit = limit
        self.where = where

    def __str__(self) -> str:
        return f"{self.cpus} CPU{'s' if self.cpus > 1 else ''}, limited by {self.limit}" + (
            f" ({self.where})" if self.where else ""
        )


def cpu_budget(setting: int | None = None, root: str = "/") -> Budget:
    """Return the smallest of all limits, rounded down, at least 1; the first wins a tie.

    `setting` is the user's own limit. `root` is where `proc` and the mounts of the control
    groups are looked for. A file that cannot be read sets no limit. Raises ResourceError for a
    setting below 1.
    """
    if setting is not None and setting < 1:
        raise errors.ResourceError(
            f"expected at least 1 CPU as the setting, found {setting}; leave it out to use all"
        )
    limits: list[tuple[float, str, str]] = [(len(os.sched_getaffinity(0)), "affinity", "")]
    limits += _group_limits(root)
    if setting is not None:
        limits.append((setting, "setting", ""))
    cpus, limit, where = min(limits, key=lambda found: max(1, int(found[0])))
    return Budget(max(1, int(cpus)), limit, where)


def _group_limits(root: str) -> Iterator[tuple[float, str, str]]:
    """Yield every quota on the way from this process's control group to the root of each tree."""
    groups = _groups(_lines(_join(root, "/proc/self/cgroup")))
    for line in _lines(_join(root, "/proc/self/mountinfo")):
        before, _, after = line.partition(" - ")
        fields = before.split(" ")
        kind, _, options = after.partition(" ")
        if kind == "cgroup2":
            controller, limit, quota = "", _V2, _quota_v2
        elif kind == "cgroup" and "cpu" in options.split(" ")[-1].split(","):
            controller, limit, quota = "cpu", _V1, _quota_v1
        else:
            continue
        if len(fields) < 5 or controller not in groups:
            continue
        top = _join(root, _unescaped(fields[4]))
        below = _below(groups[controller], _unescaped(fields[3]))
        yield from _walk(top, below, quota, limit)


def _walk(
    top: str, below: str, quota: Callable[[str], float | None], limit: str
) -> Iterator[tuple[float, str, str]]:
    names = [name for name in below.split("/") if name]
    for depth in range(len(names), -1, -1):
        folder = "/".join([top, *names[:depth]])
        cpus = quota(folder)
        if cpus is not None:
            yield cpus, limit, folder


def _quota_v2(folder: str) -> float | None:
    lines = _lines(f"{folder}/cpu.max")
    words = lines[0].split() if lines else []
    return _ratio(*words) if len(words) == 2 else None


def _quota_v1(folder: str) -> float | None:
    quota = _lines(f"{folder}/cpu.cfs_quota_us")
    period = _lines(f"{folder}/cpu.cfs_period_us")
    return _ratio(quota[0], period[0]) if quota and period else None


def _ratio(quota: str, period: str) -> float | None:
    """Return quota over period in CPUs; None for "max", for -1 and for what is no number."""
    try:
        quota_us, period_us = int(quota), int(period)
    except ValueError:
        return None
    return quota_us / period_us if quota_us > 0 and period_us > 0 else None


def _groups(lines: list[str]) -> dict[str, str]:
    """Return the path of this process in each tree, by controller; "" is cgroup v2's tree."""
    groups = {}
    for line in lines:
        parts = line.split(":", 2)
        if len(parts) == 3:
            for controller in parts[1].split(","):
                groups[controller] = parts[2]
    return groups


def _below(path: str, mounted: str) -> str:
    """Return `path` as seen under a mount that shows only the sub-tree `mounted`.

    Inside a container the two may have nothing in common; then the mount is its own group.
    """
    if mounted == "/":
        return path
    return path.removeprefix(mounted) if f"{path}/".startswith(f"{mounted}/") else ""


def _unescaped(field: str) -> str:
    return field.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")


def _join(root: str, path: str) -> str:
    return root.rstrip("/") + path.rstrip("/")


def _lines(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().splitlines()
    except OSError:
        return []
