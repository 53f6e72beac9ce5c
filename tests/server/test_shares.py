"""What a server takes of machines of many sizes: never more than there is, nor what was not asked."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from castiron.machine import cpus, memory
from castiron.server import settings, shares

GB = 1 << 30
HALF = cpus.Budget(0.5, "cgroup v2 cpu.max", "/x")


def _limit(size_bytes: int, *, is_shared: bool = True) -> memory.Limit:
    return memory.Limit(size_bytes, "cgroup v2 memory.max", "/x", is_shared=is_shared)


def test_a_large_machine_leaves_the_defaults() -> None:
    budget = cpus.Budget(16, "affinity", "")
    found = shares.fitted(settings.Settings(), budget, _limit(64 * GB))
    assert found == settings.Settings(memory_budget_bytes=32 * GB)


def test_half_a_core_and_under_4_gb_lower_them() -> None:
    found = shares.fitted(settings.Settings(), HALF, _limit(7 * GB // 2))
    assert found.step_processes == 1
    assert found.memory_budget_bytes == 7 * GB // 4
    assert found.max_buffered_bytes == 7 * GB // 16
    assert found.step_memory_bytes == 7 * GB // 16


def test_what_was_given_stays() -> None:
    chosen = settings.Settings(
        step_processes=5, max_buffered_bytes=3 * GB, memory_budget_bytes=9 * GB
    )
    found = shares.fitted(chosen, HALF, _limit(GB))
    assert found.step_processes == 5
    assert found.max_buffered_bytes == 3 * GB
    assert found.memory_budget_bytes == 9 * GB


def test_a_negative_budget_means_no_limit() -> None:
    chosen = settings.Settings(memory_budget_bytes=-1)
    assert shares.fitted(chosen, HALF, _limit(GB)).memory_budget_bytes == 0


@given(
    size_bytes=st.integers(1 << 20, 1 << 45),
    num_cpus=st.floats(0.01, 300),
    workers=st.integers(1, 64),
    is_shared=st.booleans(),
)
def test_what_may_get_a_process_killed_fits_for_all_workers_together(
    size_bytes: int, num_cpus: float, workers: int, *, is_shared: bool
) -> None:
    limit = _limit(size_bytes, is_shared=is_shared)
    budget = cpus.Budget(num_cpus, "affinity", "")
    found = shares.fitted(settings.Settings(workers=workers), budget, limit)
    steps_bytes = found.step_processes * found.step_memory_bytes
    own_bytes = shares.arenas_bytes(limit, workers) + found.max_buffered_bytes + steps_bytes
    assert own_bytes * (workers if is_shared else 1) <= 0.75 * size_bytes + 4 * workers
    assert found.step_processes <= max(1, num_cpus)
    assert 0 < found.memory_budget_bytes <= size_bytes
