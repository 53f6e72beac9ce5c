"""Binding a stage: records with absolute kernels and offsets, within a bounded cache."""

from __future__ import annotations

import concurrent.futures

import pytest

from castiron import errors
from castiron.executable import abi, program
from castiron.runtime import binding

# Rows of the stage's dims table.
N, FOUR, BYTES, ZERO, ONE = range(5)


def stage_of_two_steps() -> program.NativeStage:
    """Reads slot 7 [n], writes slot 9 [n], with a buffer of 4 n bytes between two steps."""
    stage = program.NativeStage()
    stage.symbols = [0]
    stage.dims = [
        program.SYMBOL, 0, 0, program.CONST, 4, 0, program.MUL, N, FOUR,
        program.CONST, 0, 0, program.CONST, 1, 0,
    ]  # fmt: skip
    stage.reads, stage.writes, stage.write_dims = [7], [9], [[N]]
    stage.buffers = [BYTES, 0, 1]
    stage.num_steps = 2
    stage.steps = [
        1, N, ONE, 2, 1, program.IN_SLOT, 0, ZERO, program.IN_BUFFER, 0, ZERO, N,
        0, ONE, ZERO, 3, 0, program.IN_BUFFER, 0, BYTES, program.IN_WEIGHTS, 128, FOUR,
        program.IN_SLOT, 1, ZERO,
    ]  # fmt: skip
    stage.scratch = [FOUR]
    return stage


def test_a_step_record_is_what_the_walker_reads() -> None:
    bound = binding.bind(stage_of_two_steps(), (10,), [0x1000, 0x2000])
    first = abi.REGION_FIRST_INPUT
    assert list(bound.steps) == [
        0x2000, 11, 10, 1, 2, 1, first, 0, abi.REGION_ARENA, 0, 10,
        0x1000, 12, 1, 0, 3, 0, abi.REGION_ARENA, 40, abi.REGION_WEIGHTS, 132, first + 1, 0,
    ]  # fmt: skip
    assert bound.num_steps == 2
    assert bound.write_shapes == [(10,)]
    assert bound.arena_bytes == 64
    assert bound.scratch_bytes == 64


def test_what_was_placed_while_building_is_not_placed_again() -> None:
    stage = stage_of_two_steps()
    stage.placed = [192, 4096]
    bound = binding.bind(stage, (10,), [0, 0])
    assert bound.arena_bytes == 4096
    assert bound.steps[9] == 192


def test_a_broken_relation_is_told_with_both_sides() -> None:
    stage = stage_of_two_steps()
    stage.checks, stage.reasons = [N, FOUR], ["the rows must be four"]
    binding.bind(stage, (4,), [0, 0])
    with pytest.raises(errors.InputError, match=r"the rows must be four \(5 against 4\)"):
        binding.bind(stage, (5,), [0, 0])


def test_a_shape_that_was_seen_costs_a_lookup() -> None:
    cache, stage = binding.BindingCache(limit=2), stage_of_two_steps()
    first = cache.get(stage, (1,), [0, 0])
    assert cache.get(stage, (1,), [0, 0]) is first
    assert (cache.hits, cache.misses) == (1, 1)


def test_the_shape_used_longest_ago_is_forgotten_first() -> None:
    cache, stage = binding.BindingCache(limit=2), stage_of_two_steps()
    one, two = (cache.get(stage, (n,), [0, 0]) for n in (1, 2))
    assert cache.get(stage, (1,), [0, 0]) is one
    cache.get(stage, (3,), [0, 0])
    assert len(cache) == 2
    assert cache.get(stage, (1,), [0, 0]) is one
    assert cache.get(stage, (2,), [0, 0]) is not two


def test_threads_that_share_a_cache_stay_within_its_bounds() -> None:
    cache, stage = binding.BindingCache(limit=8), stage_of_two_steps()

    def use(start: int) -> None:
        for n in range(start, start + 2000):
            assert cache.get(stage, (n % 37,), [0, 0]).write_shapes == [(n % 37,)]

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(use, range(8)))
    # A thread that took an entry out just now puts it back after the others made room.
    assert len(cache) <= 8 + 8
