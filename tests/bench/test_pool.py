"""The trace that the pool's benchmark plays, and that it is played to the end."""

from __future__ import annotations

from pathlib import Path

from bench import pool


def test_a_trace_depends_on_its_seed_alone() -> None:
    assert list(pool.record(3, 200)) == list(pool.record(3, 200))
    assert list(pool.record(3, 200)) != list(pool.record(4, 200))


def test_every_block_of_a_trace_is_rented_once_and_given_back_once() -> None:
    held: set[int] = set()
    for slot, size in pool.record(1, 500):
        if size < 0:
            held.remove(slot)
        else:
            assert slot not in held
            held.add(slot)
        assert len(held) <= 6
    assert not held


def test_a_trace_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "trace.csv"
    pool.write(pool.record(2, 100), path)
    assert pool.read(path) == list(pool.record(2, 100))


def test_each_allocator_plays_a_trace_with_every_byte_written() -> None:
    moves = list(pool.record(5, 60))
    for allocator in (pool.Pooled(), pool.Malloc(), pool.Mapped()):
        assert pool.play(moves, allocator, pool.fill) > 0
        assert pool.median_pair(moves, allocator) > 0
