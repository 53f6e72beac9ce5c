"""The CPU budget, on trees of control groups laid out as kernels and containers show them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from castiron import errors
from castiron.runtime import budget

V2_MOUNT = "30 23 0:26 {shown} /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
V1_MOUNT = "31 25 0:27 {shown} /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"


@pytest.fixture(autouse=True)
def _eight_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)))  # noqa: ARG005


class Tree:
    """A fake root directory."""

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

    def found(self, setting: int | None = None) -> tuple[int, str]:
        """The budget of this tree."""
        found = budget.cpu_budget(setting, str(self.root))
        return found.cpus, found.limit


@pytest.fixture
def v2(tmp_path: Path) -> Tree:
    """A host with cgroup v2 alone; the process lies two groups deep."""
    return Tree(tmp_path, "0::/pod/box\n", V2_MOUNT.format(shown="/"))


@pytest.fixture
def v1(tmp_path: Path) -> Tree:
    """A host with cgroup v1; the process lies one group deep."""
    return Tree(tmp_path, "4:memory:/x\n3:cpu,cpuacct:/box\n", V1_MOUNT.format(shown="/"))


def test_without_limits_the_affinity_rules(v2: Tree) -> None:
    assert v2.found() == (8, "affinity")


def test_a_root_without_control_groups_is_no_error(tmp_path: Path) -> None:
    assert budget.cpu_budget(None, str(tmp_path)).cpus == 8


@pytest.mark.parametrize(
    "text, expected",
    [
        ("max 100000", (8, "affinity")),
        ("400000 100000", (4, "cgroup v2 cpu.max")),
        ("399999 100000", (3, "cgroup v2 cpu.max")),
        ("50000 100000", (1, "cgroup v2 cpu.max")),
        ("20000 10000", (2, "cgroup v2 cpu.max")),
        ("1600000 100000", (8, "affinity")),
        ("", (8, "affinity")),
        ("nonsense here", (8, "affinity")),
        ("100000 0", (8, "affinity")),
    ],
)
def test_cpu_max_is_quota_over_period_rounded_down(
    v2: Tree, text: str, expected: tuple[int, str]
) -> None:
    v2.write("sys/fs/cgroup/pod/box/cpu.max", text + "\n")
    assert v2.found() == expected


def test_a_limit_of_an_outer_group_counts(v2: Tree) -> None:
    v2.write("sys/fs/cgroup/pod/box/cpu.max", "600000 100000\n")
    v2.write("sys/fs/cgroup/pod/cpu.max", "300000 100000\n")
    v2.write("sys/fs/cgroup/cpu.max", "500000 100000\n")
    assert v2.found() == (3, "cgroup v2 cpu.max")
    assert budget.cpu_budget(None, str(v2.root)).where.endswith("/sys/fs/cgroup/pod")


def test_groups_beside_the_own_one_do_not_count(v2: Tree) -> None:
    v2.write("sys/fs/cgroup/other/cpu.max", "100000 100000\n")
    assert v2.found() == (8, "affinity")


def test_a_container_sees_its_group_at_the_mount(tmp_path: Path) -> None:
    tree = Tree(tmp_path, "0::/\n", V2_MOUNT.format(shown="/"))
    tree.write("sys/fs/cgroup/cpu.max", "250000 100000\n")
    assert tree.found() == (2, "cgroup v2 cpu.max")


def test_a_mount_of_a_sub_tree_is_followed_from_there(tmp_path: Path) -> None:
    tree = Tree(tmp_path, "3:cpu,cpuacct:/docker/abc/inner\n", V1_MOUNT.format(shown="/docker/abc"))
    tree.quota("inner", "200000")
    assert tree.found() == (2, "cgroup v1 quota")


def test_a_mount_that_hides_the_own_path_is_taken_as_the_group(tmp_path: Path) -> None:
    tree = Tree(tmp_path, "3:cpu,cpuacct:/docker/abc\n", V1_MOUNT.format(shown="/docker/abcdef"))
    tree.quota("", "200000")
    assert tree.found() == (2, "cgroup v1 quota")


@pytest.mark.parametrize(
    "quota, expected", [("-1", (8, "affinity")), ("350000", (3, "cgroup v1 quota"))]
)
def test_cgroup_v1_gives_quota_and_period_apart(
    v1: Tree, quota: str, expected: tuple[int, str]
) -> None:
    v1.quota("box", quota)
    assert v1.found() == expected


def test_both_versions_at_once_give_the_smaller(tmp_path: Path) -> None:
    mounts = V1_MOUNT.format(shown="/") + V2_MOUNT.format(shown="/").replace(
        "/sys/fs/cgroup", "/sys/fs/cgroup/unified"
    )
    tree = Tree(tmp_path, "3:cpu,cpuacct:/\n0::/\n", mounts)
    tree.quota("", "300000")
    tree.write("sys/fs/cgroup/unified/cpu.max", "200000 100000\n")
    assert tree.found() == (2, "cgroup v2 cpu.max")


def test_a_mount_point_with_a_space_is_found(tmp_path: Path) -> None:
    mounts = V2_MOUNT.format(shown="/").replace("/sys/fs/cgroup", "/sys/my\\040groups")
    tree = Tree(tmp_path, "0::/\n", mounts)
    tree.write("sys/my groups/cpu.max", "200000 100000\n")
    assert tree.found() == (2, "cgroup v2 cpu.max")


def test_a_setting_can_lower_but_not_raise(v2: Tree) -> None:
    assert v2.found(setting=2) == (2, "setting")
    assert v2.found(setting=16) == (8, "affinity")


@pytest.mark.parametrize("setting", [0, -3])
def test_a_setting_below_one_is_refused(setting: int) -> None:
    with pytest.raises(
        errors.ResourceError, match=f"at least 1 CPU as the setting, found {setting}"
    ):
        budget.cpu_budget(setting)


def test_the_budget_says_which_limit_ruled(v2: Tree) -> None:
    v2.write("sys/fs/cgroup/pod/cpu.max", "100000 100000\n")
    text = str(budget.cpu_budget(None, str(v2.root)))
    assert text.startswith("1 CPU, limited by cgroup v2 cpu.max (")
    assert str(budget.cpu_budget(4, str(v2.root.parent))) == "4 CPUs, limited by setting"


def test_this_machine_has_a_budget() -> None:
    assert 1 <= budget.cpu_budget().cpus <= 8
