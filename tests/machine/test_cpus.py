"""The CPU budget, on trees of control groups laid out as kernels and containers show them."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from castiron import errors
from castiron.machine import cpus
from tests.machine.trees import V1_MOUNT, V2_MOUNT, Tree, nested


@pytest.fixture(autouse=True)
def _eight_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)))  # noqa: ARG005


def found(tree: Tree, setting: int | None = None) -> tuple[int, str]:
    """The budget of a tree."""
    budget = cpus.cpu_budget(setting, str(tree.root))
    return budget.cpus, budget.limit


@pytest.fixture
def v2(tmp_path: Path) -> Tree:
    """A host with cgroup v2 alone; the process lies two groups deep."""
    return Tree(tmp_path, "0::/pod/box\n", V2_MOUNT.format(shown="/"))


@pytest.fixture
def v1(tmp_path: Path) -> Tree:
    """A host with cgroup v1; the process lies one group deep."""
    return Tree(tmp_path, "4:memory:/x\n3:cpu,cpuacct:/box\n", V1_MOUNT.format(shown="/"))


def test_without_limits_the_affinity_rules(v2: Tree) -> None:
    assert found(v2) == (8, "affinity")


def test_a_root_without_control_groups_is_no_error(tmp_path: Path) -> None:
    assert cpus.cpu_budget(None, str(tmp_path)).cpus == 8


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
    assert found(v2) == expected


def test_a_limit_of_an_outer_group_counts(v2: Tree) -> None:
    v2.write("sys/fs/cgroup/pod/box/cpu.max", "600000 100000\n")
    v2.write("sys/fs/cgroup/pod/cpu.max", "300000 100000\n")
    v2.write("sys/fs/cgroup/cpu.max", "500000 100000\n")
    assert found(v2) == (3, "cgroup v2 cpu.max")
    assert cpus.cpu_budget(None, str(v2.root)).where.endswith("/sys/fs/cgroup/pod")


def test_groups_beside_the_own_one_do_not_count(v2: Tree) -> None:
    v2.write("sys/fs/cgroup/other/cpu.max", "100000 100000\n")
    assert found(v2) == (8, "affinity")


def test_a_container_sees_its_group_at_the_mount(tmp_path: Path) -> None:
    tree = Tree(tmp_path, "0::/\n", V2_MOUNT.format(shown="/"))
    tree.write("sys/fs/cgroup/cpu.max", "250000 100000\n")
    assert found(tree) == (2, "cgroup v2 cpu.max")


def test_a_mount_of_a_sub_tree_is_followed_from_there(tmp_path: Path) -> None:
    tree = Tree(tmp_path, "3:cpu,cpuacct:/docker/abc/inner\n", V1_MOUNT.format(shown="/docker/abc"))
    tree.quota("inner", "200000")
    assert found(tree) == (2, "cgroup v1 quota")


def test_a_mount_that_hides_the_own_path_is_taken_as_the_group(tmp_path: Path) -> None:
    tree = Tree(tmp_path, "3:cpu,cpuacct:/docker/abc\n", V1_MOUNT.format(shown="/docker/abcdef"))
    tree.quota("", "200000")
    assert found(tree) == (2, "cgroup v1 quota")


@pytest.mark.parametrize(
    "quota, expected", [("-1", (8, "affinity")), ("350000", (3, "cgroup v1 quota"))]
)
def test_cgroup_v1_gives_quota_and_period_apart(
    v1: Tree, quota: str, expected: tuple[int, str]
) -> None:
    v1.quota("box", quota)
    assert found(v1) == expected


def test_both_versions_at_once_give_the_smaller(tmp_path: Path) -> None:
    mounts = V1_MOUNT.format(shown="/") + V2_MOUNT.format(shown="/").replace(
        "/sys/fs/cgroup", "/sys/fs/cgroup/unified"
    )
    tree = Tree(tmp_path, "3:cpu,cpuacct:/\n0::/\n", mounts)
    tree.quota("", "300000")
    tree.write("sys/fs/cgroup/unified/cpu.max", "200000 100000\n")
    assert found(tree) == (2, "cgroup v2 cpu.max")


def test_a_mount_point_with_a_space_is_found(tmp_path: Path) -> None:
    mounts = V2_MOUNT.format(shown="/").replace("/sys/fs/cgroup", "/sys/my\\040groups")
    tree = Tree(tmp_path, "0::/\n", mounts)
    tree.write("sys/my groups/cpu.max", "200000 100000\n")
    assert found(tree) == (2, "cgroup v2 cpu.max")


def test_a_setting_can_lower_but_not_raise(v2: Tree) -> None:
    assert found(v2, setting=2) == (2, "setting")
    assert found(v2, setting=16) == (8, "affinity")


@pytest.mark.parametrize("setting", [0, -3])
def test_a_setting_below_one_is_refused(setting: int) -> None:
    with pytest.raises(
        errors.ResourceError, match=f"at least 1 CPU as the setting, found {setting}"
    ):
        cpus.cpu_budget(setting)


def test_the_budget_says_which_limit_ruled(v2: Tree) -> None:
    v2.write("sys/fs/cgroup/pod/cpu.max", "100000 100000\n")
    text = str(cpus.cpu_budget(None, str(v2.root)))
    assert text.startswith("1 CPU, limited by cgroup v2 cpu.max (")
    assert str(cpus.cpu_budget(4, str(v2.root.parent))) == "4 CPUs, limited by setting"


def test_a_quota_below_one_cpu_is_named_and_told_exactly(v2: Tree) -> None:
    v2.write("sys/fs/cgroup/pod/cpu.max", "50000 100000\n")
    v2.write("sys/fs/cgroup/pod/box/cpu.max", "150000 100000\n")
    budget = cpus.cpu_budget(None, str(v2.root))
    assert (budget.cpus, budget.exact, budget.where[-4:]) == (1, 0.5, "/pod")


_QUOTAS = st.one_of(st.none(), st.just(-1), st.integers(1, 1_000_000))


@given(
    version=st.sampled_from([1, 2]),
    names=st.lists(st.sampled_from(["pod", "box", "a.slice", "x y"]), max_size=3),
    quotas=st.lists(_QUOTAS, min_size=4, max_size=4),
)
def test_the_tightest_of_any_nesting_rules_and_never_more_threads_than_it(
    version: int, names: list[str], quotas: list[int | None]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        tree, groups, _ = nested(Path(folder), version, names)
        used = dict(zip(groups, quotas, strict=False))
        for group, quota in used.items():
            if quota is not None and version == 2:
                tree.write(f"{group}/cpu.max", f"{quota if quota > 0 else 'max'} 100000\n")
            elif quota is not None:
                tree.quota(group.removeprefix("sys/fs/cgroup/cpu,cpuacct"), str(quota))
        budget = cpus.cpu_budget(None, folder)
    limits = [quota / 100_000 for quota in used.values() if quota is not None and quota > 0]
    assert budget.cpus == max(1, int(min([8, *limits])))
    assert budget.cpus <= max(1, budget.exact)
    if budget.limit != "affinity":
        assert int(budget.exact) == int(min(limits))


def test_this_machine_has_a_budget() -> None:
    assert 1 <= cpus.cpu_budget().cpus <= 8
