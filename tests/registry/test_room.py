"""Who makes room in memory: as few as will do, resting ones first, none in use or pinned."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from castiron.registry import room

ONE = st.tuples(st.integers(0, 100), st.booleans(), st.booleans())


def held(*sizes: int, is_resting: bool = False) -> list[room.Held]:
    return [room.Held(size, size, is_free=True, is_resting=is_resting) for size in sizes]


def test_the_smallest_single_one_that_is_enough_goes() -> None:
    assert room.victims(held(10, 30, 40, 90), 35, 180) == [30]


def test_resting_ones_go_before_those_that_answer() -> None:
    found = room.victims([*held(50), *held(20, is_resting=True)], 10, 70)
    assert found == [20]


def test_nobody_goes_when_there_is_room() -> None:
    assert room.victims(held(10, 20), 70, 100) == []


@given(st.lists(ONE, max_size=8), st.integers(0, 100), st.integers(0, 400))
def test_what_goes_is_free_and_enough_or_nothing_could_be(
    entries: list[tuple[int, bool, bool]], needed: int, budget: int
) -> None:
    kept = [room.Held(i, size, free, rests) for i, (size, free, rests) in enumerate(entries)]
    gone = room.victims(kept, needed, budget)
    left = sum(each.size_bytes for each in kept if gone is None or each.name not in gone)
    if gone is None:
        assert sum(each.size_bytes for each in kept if not each.is_free) + needed > budget
    else:
        assert left + needed <= budget or not gone
        assert all(kept[index].is_free for index in gone if isinstance(index, int))
