"""The buddy allocator, against a model that knows only intervals."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from castiron.runtime import buddy

BOTTOM, TOP = 4, 10
# A number below 0.5 takes a block of an order, one above gives a taken block back.
MOVES = st.lists(st.tuples(st.booleans(), st.integers(0, 1000), st.integers(0, 1000)), max_size=120)


def whole() -> buddy.Buddy:
    """An untouched space of 2**TOP bytes."""
    return buddy.Buddy(BOTTOM, TOP)


def play(space: buddy.Buddy, moves: list[tuple[bool, int, int]]) -> list[tuple[int, int, int]]:
    """Take and give as told; return the blocks still taken: offset, order, touched."""
    taken: list[tuple[int, int, int]] = []
    for takes, choice, touch in moves:
        if takes:
            order = BOTTOM + choice % (TOP - BOTTOM + 1)
            found = space.take(order)
            if found is not None:
                taken.append((found[0], order, max(found[1], touch % ((1 << order) + 1))))
        elif taken:
            space.give(*taken.pop(choice % len(taken)))
    return taken


@given(MOVES)
def test_blocks_never_overlap_and_fill_the_space(moves: list[tuple[bool, int, int]]) -> None:
    space = whole()
    taken = play(space, moves)
    pieces = [(offset, 1 << order) for offset, order, _ in taken]
    pieces = sorted([*pieces, *space.free_blocks()])
    end = 0
    for offset, size in pieces:
        assert offset == end
        assert offset % size == 0
        end = offset + size
    assert end == 1 << TOP


@given(MOVES)
def test_sums_agree_after_any_moves(moves: list[tuple[bool, int, int]]) -> None:
    space = whole()
    taken = play(space, moves)
    free = [size for _, size in space.free_blocks()]
    assert space.free_bytes == sum(free) == (1 << TOP) - sum(1 << order for _, order, _ in taken)
    assert space.largest_free_bytes == max(free, default=0)
    assert 0 <= space.touched_bytes <= space.free_bytes


@given(MOVES)
def test_no_two_buddies_are_both_free(moves: list[tuple[bool, int, int]]) -> None:
    space = whole()
    play(space, moves)
    free = set(space.free_blocks())
    assert not any((offset ^ size, size) in free for offset, size in free)


@given(MOVES, st.randoms())
def test_all_blocks_given_back_merge_into_one(
    moves: list[tuple[bool, int, int]], order: random.Random
) -> None:
    space = whole()
    taken = play(space, moves)
    order.shuffle(taken)
    for block in taken:
        space.give(*block)
    assert space.is_whole
    assert list(space.free_blocks()) == [(0, 1 << TOP)]


@given(MOVES, st.integers(0, 1 << TOP))
def test_touched_bytes_are_neither_lost_nor_made(
    moves: list[tuple[bool, int, int]], start: int
) -> None:
    space = buddy.Buddy(BOTTOM, TOP, start)
    taken: list[tuple[int, int, int]] = []
    for takes, choice, _ in moves:
        if takes:
            order = BOTTOM + choice % (TOP - BOTTOM + 1)
            found = space.take(order)
            if found is not None:
                taken.append((found[0], order, found[1]))
        elif taken:
            space.give(*taken.pop(choice % len(taken)))
    assert space.touched_bytes + sum(touched for _, _, touched in taken) == start


def test_a_block_is_refused_only_when_none_fits() -> None:
    space = whole()
    assert space.take(TOP) == (0, 0)
    assert space.take(BOTTOM) is None
    space.give(0, TOP, 0)
    assert space.take(TOP + 1) is None
    assert space.take(BOTTOM - 1) is None


def test_touched_blocks_are_told_largest_first_and_only_once() -> None:
    space = buddy.Buddy(BOTTOM, TOP, 1 << TOP)
    space.take(BOTTOM + 1)
    sizes = [size for _, size in space.forget_touched(BOTTOM + 2)]
    assert sizes == sorted(sizes, reverse=True)
    assert min(sizes) >= 1 << (BOTTOM + 2)
    assert space.touched_bytes == (1 << TOP) - sum(sizes) - (1 << (BOTTOM + 1))
    assert not list(space.forget_touched(BOTTOM + 2))
