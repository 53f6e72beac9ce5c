"""How many CPUs this process may use: affinity, container quotas, an explicit setting.

The host's core count says nothing inside a container. Looked at once, when the team is made; it
does not follow a quota that changes later. A quota is `cpu.max` of cgroup v2, and
`cpu.cfs_quota_us` over `cpu.cfs_period_us` of cgroup v1.
"""

from __future__ import annotations

import os

from castiron import errors
from castiron.machine import groups

_LIMITS = {groups.V2: "cgroup v2 cpu.max", groups.V1: "cgroup v1 quota"}


class Budget:
    """`cpus` threads may compute at once, because of `limit`, found at `where`.

    `limit` is "affinity", "cgroup v2 cpu.max", "cgroup v1 quota" or "setting". `exact` is the
    limit before it was rounded: half a core gives 0.5, and one thread.
    """

    __slots__ = ("cpus", "exact", "limit", "where")

    def __init__(self, exact: float, limit: str, where: str) -> None:
        self.exact = exact
        self.cpus = max(1, int(exact))
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
    found = limits(root)
    if setting is not None:
        found.append(Budget(setting, "setting", ""))
    # A quota below one CPU rules, also where one thread is all there would be without it.
    return min(found, key=lambda each: (each.cpus, min(each.exact, 1.0)))


def limits(root: str = "/") -> list[Budget]:
    """Every limit there is: the affinity, then each quota from the own group outwards."""
    found = [Budget(len(os.sched_getaffinity(0)), "affinity", "")]
    for version, folder in groups.folders("cpu", root):
        cpus = _quota_v2(folder) if version == groups.V2 else _quota_v1(folder)
        if cpus is not None:
            found.append(Budget(cpus, _LIMITS[version], folder))
    return found


def _quota_v2(folder: str) -> float | None:
    lines = groups.lines(f"{folder}/cpu.max")
    words = lines[0].split() if lines else []
    return _ratio(*words) if len(words) == 2 else None


def _quota_v1(folder: str) -> float | None:
    quota = groups.lines(f"{folder}/cpu.cfs_quota_us")
    period = groups.lines(f"{folder}/cpu.cfs_period_us")
    return _ratio(quota[0], period[0]) if quota and period else None


def _ratio(quota: str, period: str) -> float | None:
    """Return quota over period in CPUs; None for "max", for -1 and for what is no number."""
    try:
        quota_us, period_us = int(quota), int(period)
    except ValueError:
        return None
    return quota_us / period_us if quota_us > 0 and period_us > 0 else None
