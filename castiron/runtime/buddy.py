"""A buddy allocator over offsets: power-of-two blocks, exact merging, no memory of its own.

After Knowlton, "A fast storage allocator", CACM 8 (1965). A block of order k has 2**k bytes and
lies at a multiple of its size; its buddy is the other half of the block it was split from. The
pool puts one over each slab. Each free block remembers how many of its bytes were touched, so
that the pool knows what it may give back to the system.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator


class Buddy:
    """Free space of 2**`top` bytes, handed out in blocks of order `bottom` or more."""

    __slots__ = ("_bottom", "_free", "_orders", "_top", "free_bytes", "touched_bytes")

    def __init__(self, bottom: int, top: int, touched: int = 0) -> None:
        self._bottom = bottom
        self._top = top
        # For each order, the free blocks: offset -> bytes touched. Bit k of _orders is set
        # while _free[k] is not empty.
        self._free: list[dict[int, int]] = [{} for _ in range(top + 1)]
        self._free[top][0] = touched
        self._orders = 1 << top
        self.free_bytes = 1 << top
        self.touched_bytes = touched

    @property
    def largest_free_bytes(self) -> int:
        """Size of the largest block that could be taken."""
        return 1 << (self._orders.bit_length() - 1) if self._orders else 0

    @property
    def is_whole(self) -> bool:
        """Whether nothing is taken: all blocks have merged into one."""
        return self.free_bytes == 1 << self._top

    def take(self, order: int) -> tuple[int, int] | None:
        """Return offset and touched bytes of a block of that order, None if there is no room."""
        fitting = self._orders >> order
        if not fitting or order < self._bottom:
            return None
        found = order + (fitting & -fitting).bit_length() - 1
        offset, touched = self._pop(found)
        self.free_bytes -= 1 << order
        while found > order:
            found -= 1
            half = 1 << found
            low = min(touched, half)
            self._push(found, offset + half, touched - low)
            touched = low
        self.touched_bytes -= touched
        return offset, touched

    def give(self, offset: int, order: int, touched: int) -> None:
        """Take a block back and merge it with its buddy as far as that is free."""
        self.free_bytes += 1 << order
        self.touched_bytes += touched
        while order < self._top:
            size = 1 << order
            other = self._free[order].pop(offset ^ size, None)
            if other is None:
                break
            if not self._free[order]:
                self._orders &= ~size
            offset &= ~size
            touched += other
            order += 1
        self._push(order, offset, touched)

    def forget_touched(self, least_order: int) -> Iterator[tuple[int, int]]:
        """Yield (offset, size) of free touched blocks, largest first, counting them untouched.

        Each is counted when it is yielded, so the caller may stop when it has enough.
        """
        for order in range(self._top, least_order - 1, -1):
            blocks = self._free[order]
            for offset, touched in list(blocks.items()):
                if touched:
                    blocks[offset] = 0
                    self.touched_bytes -= touched
                    yield offset, 1 << order

    def free_blocks(self) -> Iterator[tuple[int, int]]:
        """Yield (offset, size) of every free block."""
        for order, blocks in enumerate(self._free):
            for offset in blocks:
                yield offset, 1 << order

    def _pop(self, order: int) -> tuple[int, int]:
        blocks = self._free[order]
        found = blocks.popitem()
        if not blocks:
            self._orders &= ~(1 << order)
        return found

    def _push(self, order: int, offset: int, touched: int) -> None:
        self._free[order][offset] = touched
        self._orders |= 1 << order
