"""Fake roots: control groups laid out as kernels and containers show them."""

from __future__ import annotations

from pathlib import Path

V2_MOUNT = "30 23 0:26 {shown} /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
V1_MOUNT = "31 25 0:27 {shown} /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
V1_MEMORY_MOUNT = "32 25 0:28 {shown} /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"


class Tree:
    """A root directory that says in which groups the process is and where they are mounted."""

    def __init__(self, root: Path, group: str, mounts: str) -> None:
        self.root = root
        self.write("proc/self/cgroup", group)
        self.write("proc/self/mountinfo", "22 1 0:5 / /proc rw - proc proc rw\n" + mounts)

    def write(self, path: str, text: str) -> None:
        """Write a file below the root."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def quota(self, folder: str, quota: str, period: str = "100000") -> None:
        """Write the files of cgroup v1."""
        self.write(f"sys/fs/cgroup/cpu,cpuacct/{folder}/cpu.cfs_quota_us", quota + "\n")
        self.write(f"sys/fs/cgroup/cpu,cpuacct/{folder}/cpu.cfs_period_us", period + "\n")

    def physical(self, kilobytes: int) -> None:
        """Write what the machine has."""
        text = f"MemTotal:  {kilobytes} kB\nMemFree:  12 kB\n"
        self.write("proc/meminfo", text)


def nested(root: Path, version: int, names: list[str]) -> tuple[Tree, list[str], list[str]]:
    """A process so many groups deep; the groups for CPUs and for memory, outermost first."""
    path = "".join(f"/{name}" for name in names)
    if version == 2:
        tree = Tree(root, f"0::{path or '/'}\n", V2_MOUNT.format(shown="/"))
        tops = ["sys/fs/cgroup", "sys/fs/cgroup"]
    else:
        mounts = V1_MOUNT.format(shown="/") + V1_MEMORY_MOUNT.format(shown="/")
        tree = Tree(root, f"4:memory:{path or '/'}\n3:cpu,cpuacct:{path or '/'}\n0::/\n", mounts)
        tops = ["sys/fs/cgroup/cpu,cpuacct", "sys/fs/cgroup/memory"]
    every = ["".join(f"/{name}" for name in names[:depth]) for depth in range(len(names) + 1)]
    return tree, [tops[0] + each for each in every], [tops[1] + each for each in every]
