"""Buffers that live at the same time never share bytes, and the arena is close to the least."""

from __future__ import annotations

import hypothesis
import hypothesis.strategies as st

from castiron.executable import placement

_BUFFERS = st.lists(
    st.tuples(st.integers(0, 5000), st.integers(0, 20), st.integers(0, 8)), max_size=40
)


@hypothesis.given(_BUFFERS)
def test_living_buffers_never_overlap_and_all_lie_inside_the_total(
    buffers: list[tuple[int, int, int]],
) -> None:
    sizes = [size for size, _, _ in buffers]
    first = [begin for _, begin, _ in buffers]
    last = [begin + length for _, begin, length in buffers]
    offsets, total = placement.place(sizes, first, last)
    for i in range(len(buffers)):
        assert offsets[i] % placement.ALIGN_BYTES == 0
        assert offsets[i] + sizes[i] <= total or sizes[i] == 0
        for j in range(i):
            meet = first[i] <= last[j] and first[j] <= last[i]
            apart = offsets[i] + sizes[i] <= offsets[j] or offsets[j] + sizes[j] <= offsets[i]
            assert apart or not meet or not sizes[i] or not sizes[j]


@hypothesis.given(_BUFFERS)
def test_the_total_is_at_least_the_most_that_lives_at_one_step(
    buffers: list[tuple[int, int, int]],
) -> None:
    sizes = [-(-size // 64) * 64 for size, _, _ in buffers]
    last = [begin + length for _, begin, length in buffers]
    _, total = placement.place(sizes, [begin for _, begin, _ in buffers], last)
    live = [
        sum(s for s, (_, b, _), e in zip(sizes, buffers, last, strict=True) if b <= step <= e)
        for step in range(30)
    ]
    assert max(live) <= total <= sum(sizes)


def test_a_chain_of_equal_layers_needs_two_of_them() -> None:
    sizes, first = [1000] * 10, list(range(10))
    _, total = placement.place(sizes, first, [step + 1 for step in first])
    assert total == 2 * 1024
