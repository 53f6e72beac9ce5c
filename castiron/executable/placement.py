"""Where each buffer of a run lies in its arena: greedy by size over lifetimes.

Largest buffer first, each into the lowest gap among the already placed buffers whose lifetimes
overlap its own (the "greedy by size" rule of Pisarchyk and Lee, 2020). Used while building for
static models and at run time once per binding of the symbolic dims. Imports nothing.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

ALIGN_BYTES = 64


def place(
    sizes_bytes: Sequence[int], first: Sequence[int], last: Sequence[int]
) -> tuple[list[int], int]:
    """Offsets of buffers alive from step ``first[i]`` to ``last[i]`` inclusive, and the total.

    Every offset is a multiple of 64. Two buffers share bytes only if their lifetimes are apart.
    """
    count = len(sizes_bytes)
    rounded = [-(-size // ALIGN_BYTES) * ALIGN_BYTES for size in sizes_bytes]
    order = sorted(range(count), key=lambda i: (-rounded[i], first[i], i))
    offsets = [0] * count
    placed: list[tuple[int, int, int, int]] = []  # offset, end, first, last; sorted by offset
    total = 0
    for i in order:
        size, begin, finish = rounded[i], first[i], last[i]
        if size == 0:
            continue
        offset = 0
        for low, high, start, stop in placed:
            if start > finish or stop < begin:
                continue
            if low - offset >= size:
                break
            offset = max(offset, high)
        offsets[i] = offset
        total = max(total, offset + size)
        _insert(placed, (offset, offset + size, begin, finish))
    return offsets, total


def _insert(placed: list[tuple[int, int, int, int]], item: tuple[int, int, int, int]) -> None:
    low, high = 0, len(placed)
    while low < high:
        middle = (low + high) // 2
        if placed[middle] < item:
            low = middle + 1
        else:
            high = middle
    placed.insert(low, item)
