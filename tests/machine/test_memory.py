"""The memory limit, on trees of control groups and under real limits of this process."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from castiron.machine import memory
from tests.machine.trees import V2_MOUNT, Tree, nested

GB = 1 << 30


def found(tree: Tree) -> tuple[int, str, str]:
    """The tightest limit of a tree, and where it is below the root."""
    limit = memory.tightest(str(tree.root))
    return limit.size_bytes, limit.name, limit.where.removeprefix(str(tree.root))


@pytest.fixture
def v2(tmp_path: Path) -> Tree:
    """A machine of 16 GB with cgroup v2; the process lies two groups deep."""
    tree = Tree(tmp_path, "0::/pod/box\n", V2_MOUNT.format(shown="/"))
    tree.physical(16 << 20)
    return tree


def test_without_limits_it_is_what_the_machine_has(v2: Tree) -> None:
    assert found(v2) == (16 * GB, "physical memory", "")


def test_a_root_that_tells_nothing_is_no_error(tmp_path: Path) -> None:
    assert memory.tightest(str(tmp_path)).name == "physical memory"
    assert memory.tightest(str(tmp_path)).size_bytes > 1 << 20


@pytest.mark.parametrize(
    "file, text, expected",
    [
        ("memory.max", str(2 * GB), (2 * GB, "cgroup v2 memory.max", "/sys/fs/cgroup/pod")),
        ("memory.high", str(3 * GB), (3 * GB, "cgroup v2 memory.high", "/sys/fs/cgroup/pod")),
        ("memory.max", "max", (16 * GB, "physical memory", "")),
        ("memory.max", "", (16 * GB, "physical memory", "")),
        ("memory.max", "-1", (16 * GB, "physical memory", "")),
        ("memory.max", "²", (16 * GB, "physical memory", "")),
        ("memory.max", "plenty", (16 * GB, "physical memory", "")),
        ("memory.max", str(64 * GB), (16 * GB, "physical memory", "")),
    ],
)
def test_cgroup_v2_bounds_by_max_and_by_high(
    v2: Tree, file: str, text: str, expected: tuple[int, str, str]
) -> None:
    v2.write(f"sys/fs/cgroup/pod/{file}", text + "\n")
    assert found(v2) == expected


def test_the_largest_number_of_pages_is_how_cgroup_v1_writes_no_limit(tmp_path: Path) -> None:
    tree, _, groups = nested(tmp_path, 1, ["box"])
    tree.physical(1 << 20)
    tree.write(f"{groups[1]}/memory.limit_in_bytes", "9223372036854771712\n")
    assert found(tree) == (GB, "physical memory", "")
    tree.write(f"{groups[0]}/memory.limit_in_bytes", "104857600\n")
    assert found(tree) == (100 << 20, "cgroup v1 memory.limit_in_bytes", "/sys/fs/cgroup/memory")


@given(
    version=st.sampled_from([1, 2]),
    names=st.lists(st.sampled_from(["pod", "box", "a.slice", "x y"]), max_size=3),
    sizes=st.lists(st.one_of(st.none(), st.integers(1, 1 << 63)), min_size=4, max_size=4),
)
def test_the_tightest_of_any_nesting_rules(
    version: int, names: list[str], sizes: list[int | None]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        tree, _, groups = nested(Path(folder), version, names)
        tree.physical(8 << 20)
        file = "memory.max" if version == 2 else "memory.limit_in_bytes"
        used = dict(zip(groups, sizes, strict=False))
        for group, size in used.items():
            if size is not None:
                tree.write(f"{group}/{file}", f"{size}\n")
        limit = memory.tightest(folder)
    expected = min([8 * GB, *(size for size in used.values() if size is not None)])
    assert limit.size_bytes == expected
    assert limit.is_shared
    if limit.name != "physical memory":
        assert used[limit.where.removeprefix(f"{folder}/")] == expected


@pytest.mark.parametrize("flag, name", [("-v", "RLIMIT_AS"), ("-d", "RLIMIT_DATA")])
def test_what_ulimit_says_counts_for_each_process_alone(flag: str, name: str) -> None:
    code = (
        "from castiron.machine import memory; limit = memory.tightest(); "
        "print(limit.size_bytes, limit.name, limit.share_bytes(4))"
    )
    command = f"ulimit {flag} 400000; exec {sys.executable} -c '{code}'"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(400_000 << 10), name, str(400_000 << 10)]


def test_a_limit_of_a_group_is_shared_by_the_processes_of_a_server(v2: Tree) -> None:
    assert memory.tightest(str(v2.root)).share_bytes(4) == 4 * GB
