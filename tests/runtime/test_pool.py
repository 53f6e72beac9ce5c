"""The pool: real memory, warm blocks, growth, limits, what it gives back and what it reports."""

from __future__ import annotations

import ctypes
import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from castiron import errors
from castiron.runtime import memory, pool

MB = 1 << 20
SIZES = st.one_of(st.integers(0, 5000), st.integers(5000, 3 * MB))
MOVES = st.lists(st.tuples(st.booleans(), SIZES, st.integers(0, 1000)), max_size=60)


def small(**options: int) -> pool.Pool:
    """A pool with slabs of 4 MB, so that a few blocks fill it."""
    return pool.Pool(**{"slab_bytes": 4 * MB, "start_bytes": 0, **options})


def resident_bytes(address: int, size_bytes: int) -> int:
    """How much of that range is present in memory."""
    pages = size_bytes // memory.PAGE_BYTES
    present = (ctypes.c_ubyte * pages)()
    libc = ctypes.CDLL(None)
    assert libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(size_bytes), present) == 0
    return sum(byte & 1 for byte in present) * memory.PAGE_BYTES


def is_mapped(address: int) -> bool:
    """Whether the page at that address exists."""
    page = (ctypes.c_ubyte * 1)()
    return not ctypes.CDLL(None).mincore(ctypes.c_void_p(address), ctypes.c_size_t(1), page)


def play(source: pool.Pool, moves: list[tuple[bool, int, int]]) -> list[pool.Block]:
    """Rent and give back as told, writing to both ends; return the blocks still rented."""
    rented: list[pool.Block] = []
    for rents, size, choice in moves:
        if rents or not rented:
            block = source.rent(size)
            if size:
                ctypes.memset(block.address, choice & 255, 1)
                ctypes.memset(block.address + size - 1, choice & 255, 1)
            rented.append(block)
        else:
            rented.pop(choice % len(rented)).give()
    return rented


@given(MOVES)
def test_rented_blocks_never_overlap_and_are_aligned(moves: list[tuple[bool, int, int]]) -> None:
    source = small()
    rented = play(source, moves)
    spans = sorted((block.address, block.address + block.granted_bytes) for block in rented)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
    assert all(block.address % 4096 == 0 for block in rented)
    assert all(block.size_bytes <= block.granted_bytes for block in rented)
    for block in rented:
        block.give()
    source.close()


@given(MOVES)
def test_the_report_adds_up_after_any_moves(moves: list[tuple[bool, int, int]]) -> None:
    source = small()
    rented = play(source, moves)
    usage = source.usage()
    assert usage.requested == sum(block.size_bytes for block in rented)
    assert usage.allocated == sum(block.granted_bytes for block in rented)
    assert usage.mapped == usage.allocated + usage.idle + usage.free
    assert usage.largest_free <= usage.free
    assert usage.allocated <= usage.high_water <= usage.mapped or not usage.mapped
    for block in rented:
        block.give()
    source.compact()
    after = source.usage()
    assert (after.requested, after.allocated, after.idle) == (0, 0, 0)
    assert after.free == after.mapped
    source.close()


def test_the_last_arena_is_rented_again_as_it_was() -> None:
    source = small()
    with source.rent(1_000_000) as block:
        first = block.address
        ctypes.memset(first, 7, 8)
    again = source.rent(900_000)
    assert again.address == first
    assert ctypes.string_at(first, 8) == b"\7" * 8
    assert again.size_bytes == 900_000


def test_pages_of_a_rented_block_are_present_and_those_of_its_tail_are_not() -> None:
    source = pool.Pool(slab_bytes=64 * MB, start_bytes=0)
    block = source.rent(17 * MB)
    assert resident_bytes(block.address, 17 * MB) == 17 * MB
    assert resident_bytes(block.address + 20 * MB, 12 * MB) == 0


def test_the_first_slab_is_touched_at_the_start() -> None:
    source = pool.Pool(slab_bytes=8 * MB, start_bytes=2 * MB)
    block = source.rent(4096)
    assert resident_bytes(block.address, 2 * MB) == 2 * MB


def test_slabs_begin_at_a_huge_page() -> None:
    source = small()
    block = source.rent(4 * MB)
    assert block.address % memory.HUGE_PAGE_BYTES == 0


def test_the_pool_grows_by_slabs_and_past_their_size() -> None:
    source = small()
    blocks = [source.rent(3 * MB) for _ in range(3)]
    assert source.usage().mapped == 12 * MB
    blocks.append(source.rent(20 * MB))
    assert source.usage().mapped == 12 * MB + 32 * MB
    for block in blocks:
        block.give()


def test_free_pages_above_the_cap_go_back_to_the_system() -> None:
    source = small(keep_free_bytes=4 * MB, keep_warm_bytes=0)
    blocks = [source.rent(4 * MB) for _ in range(4)]
    addresses = [block.address for block in blocks]
    for block in blocks:
        block.give()
    source.compact()
    usage = source.usage()
    assert usage.returned >= 8 * MB
    assert usage.mapped <= 8 * MB
    assert sum(is_mapped(address) for address in addresses) == usage.mapped // (4 * MB)


def test_pages_inside_the_only_slab_are_discarded_above_the_cap() -> None:
    source = pool.Pool(slab_bytes=16 * MB, start_bytes=0, keep_free_bytes=0)
    kept = source.rent(4096)
    block = source.rent(8 * MB)
    address = block.address
    assert resident_bytes(address, 8 * MB) == 8 * MB
    block.give()
    assert source.compact() == 8 * MB
    assert resident_bytes(address, 8 * MB) == 0
    assert resident_bytes(kept.address, 4096) == 4096


def test_a_random_size_every_time_needs_no_more_than_a_few() -> None:
    source = small()
    generator = random.Random(3)
    sizes = [generator.randrange(600_000, 1_500_000) for _ in range(1000)]
    for size in sizes[:10]:
        source.rent(size).give()
    early = source.usage()
    for size in sizes[10:]:
        source.rent(size).give()
    late = source.usage()
    assert (late.mapped, late.high_water) == (early.mapped, early.high_water)


def test_an_outlier_is_not_kept_for_ever() -> None:
    source = small(keep_free_bytes=0)
    with source.rent(40 * MB) as block:
        address = block.address
    for _ in range(300):
        source.rent(100_000).give()
    assert resident_bytes(address, 40 * MB) < 1 * MB


def test_idle_holdings_are_merged_when_free_space_is_in_pieces() -> None:
    source = pool.Pool(slab_bytes=4 * MB, start_bytes=0)
    blocks = [source.rent(MB // 2) for _ in range(6)]
    for block in blocks:
        block.give()
    assert source.usage().idle == 3 * MB
    large = source.rent(4 * MB)
    assert source.usage().mapped == 4 * MB
    assert source.usage().idle == 0
    large.give()


def test_compacting_brings_fragmentation_to_nothing_when_all_is_idle() -> None:
    source = small()
    blocks = [source.rent(100_000) for _ in range(8)]
    for block in blocks:
        block.give()
    assert source.usage().external_fragmentation > 0.15
    source.compact()
    assert source.usage().external_fragmentation == 0


def test_waste_is_the_share_nobody_asked_for() -> None:
    source = small()
    assert source.usage().internal_waste == 0
    source.rent(96 * 1024)
    assert source.usage().internal_waste == pytest.approx(0.25)


def test_a_limit_refuses_and_is_kept_by_what_was_given_back() -> None:
    source = small(limit_bytes=8 * MB)
    blocks = [source.rent(4 * MB), source.rent(4 * MB)]
    with pytest.raises(errors.ResourceError, match="below the pool's limit of 8388608"):
        source.rent(4096)
    blocks.pop().give()
    source.rent(4 * MB)


def test_what_nobody_uses_makes_room_below_the_limit() -> None:
    source = small(limit_bytes=16 * MB)
    blocks = [source.rent(4 * MB) for _ in range(3)]
    for block in blocks:
        block.give()
    source.rent(16 * MB).give()
    assert source.usage().mapped == 16 * MB


def test_a_size_the_system_cannot_give_is_refused_by_name() -> None:
    source = small()
    with pytest.raises(errors.ResourceError, match=r"expected the system to give \d+ bytes"):
        source.rent(1 << 50)


def test_a_block_given_back_twice_is_refused() -> None:
    source = small()
    block = source.rent(100)
    block.give()
    with pytest.raises(errors.ResourceError, match="given back before"):
        block.give()
    source.compact()
    with pytest.raises(errors.ResourceError, match="given back before"):
        block.give()


def test_a_pool_in_use_does_not_close() -> None:
    source = small()
    block = source.rent(100)
    with pytest.raises(errors.ResourceError, match="4096 bytes rented"):
        source.close()
    block.give()
    source.close()
    assert source.usage().mapped == 0
