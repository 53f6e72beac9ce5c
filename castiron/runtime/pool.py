"""The memory pool of a device: rents arenas, request buffers and pages out of its own slabs.

A slab is memory of its own, 2 MB aligned with huge pages advised, under a buddy allocator; in
front of them the last blocks are kept warm, so that the arena of the run before is rented again
in about a microsecond with its pages present. Activations inside an arena are placed by the
compiler's plan, never by this pool.
"""

from __future__ import annotations

import _thread

from castiron import errors
from castiron.runtime import buddy, memory

_BOTTOM = 12  # blocks are pages at least, so that theirs can be given back
_TRIM_ORDER = 16  # returning less than 64 KB at a time costs more than it gives
_SLAB_BYTES = 64 << 20
_START_BYTES = 2 << 20
_KEEP_FREE_BYTES = 32 << 20
_KEEP_WARM_BYTES = 256 << 20
_KEEP_WARM_BLOCKS = 8
_COMPACT_ABOVE = 0.15
_ROOMIER = 4  # a warm block may be 16 times as large as what is asked for
_WINDOW = 64  # rents after which what nobody wanted counts as idle


class Block:
    """Rented memory: `size_bytes` at `address`, which is a multiple of 4096.

    The room behind it up to `granted_bytes`, a power of two, belongs to the block too, but its
    pages may not be present. Contents are what the last user left. Ends with `give`, or as a
    context manager.
    """

    __slots__ = (
        "_is_rented",
        "_pool",
        "_slab",
        "_stamp",
        "_touched",
        "address",
        "order",
        "size_bytes",
    )

    def __init__(self, pool: Pool, slab: _Slab, address: int, order: int, touched: int) -> None:
        self._pool = pool
        self._slab = slab
        self._is_rented = False
        self._stamp = 0
        self._touched = touched
        self.address = address
        self.order = order
        self.size_bytes = 0

    @property
    def granted_bytes(self) -> int:
        """What the block takes out of the pool."""
        return 1 << self.order

    def give(self) -> None:
        """Give the block back; nothing may use its address afterwards."""
        self._pool.give_back(self)

    def __enter__(self) -> Block:
        return self

    def __exit__(self, *failure: object) -> None:
        self.give()


class Usage:
    """What a pool holds at one moment, in bytes.

    mapped = allocated + idle + free. `allocated` is granted to blocks in use, of which
    `requested` was asked for; `idle` is kept warm; `free` lies in the buddy allocators, and the
    largest free block has `largest_free`. `high_water` is the most ever allocated,
    `returned` what was given back to the system since the start.
    """

    __slots__ = (
        "allocated",
        "free",
        "high_water",
        "idle",
        "largest_free",
        "mapped",
        "requested",
        "returned",
    )

    allocated: int
    free: int
    high_water: int
    idle: int
    largest_free: int
    mapped: int
    requested: int
    returned: int

    @property
    def internal_waste(self) -> float:
        """Share of the allocated bytes that nobody asked for."""
        return 1 - self.requested / self.allocated if self.allocated else 0.0

    @property
    def external_fragmentation(self) -> float:
        """1 - largest free block / all free bytes; 0 when nothing is free."""
        return 1 - self.largest_free / self.free if self.free else 0.0


class Pool:
    """Slabs of at least `slab_bytes` each, made when needed, at most `limit_bytes` in all.

    `start_bytes` of the first are touched at once, the rest as it is rented. Warm blocks above
    `keep_warm_bytes` are merged at once; free pages above `keep_free_bytes` return to the system
    when nobody wanted them for some rents, or by `compact`. May be used from
    several threads. Sizes are powers of two except the limits.
    """

    __slots__ = (
        "_allocated",
        "_high_water",
        "_keep_free_bytes",
        "_keep_warm_bytes",
        "_least_free",
        "_limit_bytes",
        "_lock",
        "_rents",
        "_requested",
        "_returned",
        "_slab_bytes",
        "_slabs",
        "_tidy_at",
        "_warm",
        "_warm_bytes",
    )

    def __init__(
        self,
        slab_bytes: int = _SLAB_BYTES,
        start_bytes: int = _START_BYTES,
        keep_free_bytes: int = _KEEP_FREE_BYTES,
        keep_warm_bytes: int = _KEEP_WARM_BYTES,
        limit_bytes: int | None = None,
    ) -> None:
        self._slab_bytes = slab_bytes
        self._keep_free_bytes = keep_free_bytes
        self._keep_warm_bytes = keep_warm_bytes
        self._limit_bytes = limit_bytes
        self._lock = _thread.allocate_lock()
        self._warm: list[Block] = []  # oldest first
        self._warm_bytes = self._allocated = self._requested = 0
        self._high_water = self._returned = self._rents = self._least_free = 0
        self._tidy_at = _WINDOW
        self._slabs: list[_Slab] = []
        if start_bytes:
            self._slabs.append(_Slab(max(slab_bytes, memory.HUGE_PAGE_BYTES), start_bytes))

    def rent(self, size_bytes: int) -> Block:
        """Return a block of at least that size, its pages present, contents unspecified.

        Raises ResourceError when the limit or the system forbids it.
        """
        order = (size_bytes - 1).bit_length() if size_bytes > 1 << _BOTTOM else _BOTTOM
        with self._lock:
            self._rents += 1
            block = self._take_warm(order) or self._take(order)
            if size_bytes > block._touched:
                self._touch(block, size_bytes)
            block.size_bytes = size_bytes
            block._is_rented = True
            self._requested += size_bytes
            self._allocated += 1 << block.order
            self._high_water = max(self._high_water, self._allocated)
            return block

    def give_back(self, block: Block) -> None:
        """Take a block back and keep it warm; nothing may use its address afterwards."""
        with self._lock:
            if not block._is_rented:
                raise errors.ResourceError(
                    f"expected a rented block, found the one at {block.address:#x} given back "
                    "before; give each block back once"
                )
            block._is_rented = False
            self._requested -= block.size_bytes
            self._allocated -= 1 << block.order
            self._warm_bytes += 1 << block.order
            block._stamp = self._rents
            self._warm.append(block)
            while len(self._warm) > _KEEP_WARM_BLOCKS or (
                self._warm_bytes > self._keep_warm_bytes and len(self._warm) > 1
            ):
                self._cool(1)
            if self._rents >= self._tidy_at:
                self._tidy()

    def compact(self) -> int:
        """Merge every idle block and return pages above the cap; return the bytes given back."""
        with self._lock:
            before = self._returned
            self._cool(len(self._warm))
            self._trim(self._touched_free() - self._keep_free_bytes)
            return self._returned - before

    def usage(self) -> Usage:
        """Return what is held now."""
        with self._lock:
            usage = Usage()
            usage.mapped = sum(slab.size_bytes for slab in self._slabs)
            usage.free = sum(slab.space.free_bytes for slab in self._slabs)
            usage.largest_free = max(
                (slab.space.largest_free_bytes for slab in self._slabs), default=0
            )
            usage.allocated = self._allocated
            usage.requested = self._requested
            usage.idle = self._warm_bytes
            usage.high_water = self._high_water
            usage.returned = self._returned
            return usage

    def close(self) -> None:
        """Unmap everything. Raises ResourceError while blocks are rented."""
        with self._lock:
            if self._allocated:
                raise errors.ResourceError(
                    f"expected every block to be given back before the pool closes, found "
                    f"{self._allocated} bytes rented; give them back first"
                )
            self._cool(len(self._warm))
            for slab in self._slabs:
                slab.unmap()
            self._slabs.clear()

    def _take_warm(self, order: int) -> Block | None:
        """The latest warm block of this order, or the smallest that is not far larger.

        Runs of many sizes, one after another, then live in the memory of the largest.
        """
        warm, found = self._warm, -1
        for index in range(len(warm) - 1, -1, -1):
            size = warm[index].order
            if size == order:
                found = index
                break
            if order < size <= order + _ROOMIER and (found < 0 or size < warm[found].order):
                found = index
        if found < 0:
            return None
        block = warm.pop(found)
        self._warm_bytes -= 1 << block.order
        return block

    def _take(self, order: int) -> Block:
        """Return a new block from the slabs, having merged idle ones where that helps."""
        # What is warm but too small merges with its neighbours first: the new block then lies where
        # pages are present already, and a run that outgrows the last needs only the difference.
        self._cool(len(self._warm))
        block = self._take_free(order) or self._grow(order)
        self._least_free = min(self._least_free, self._touched_free())
        return block

    def _take_free(self, order: int) -> Block | None:
        for slab in self._slabs:
            found = slab.space.take(order)
            if found is not None:
                return Block(self, slab, slab.address + found[0], order, found[1])
        return None

    def _grow(self, order: int) -> Block:
        size = max(self._slab_bytes, 1 << order, memory.HUGE_PAGE_BYTES)
        mapped = sum(slab.size_bytes for slab in self._slabs)
        if self._limit_bytes is not None and mapped + size > self._limit_bytes:
            size = max(1 << order, memory.HUGE_PAGE_BYTES)
            self._unmap_unused()
            mapped = sum(slab.size_bytes for slab in self._slabs)
        if self._limit_bytes is not None and mapped + size > self._limit_bytes:
            raise errors.ResourceError(
                f"expected room for {1 << order} bytes below the pool's limit of "
                f"{self._limit_bytes}, found {mapped} mapped and {self._allocated} rented; "
                "raise the limit or lower the number of concurrent runs"
            )
        try:
            slab = _Slab(size, 0)
        except MemoryError as error:
            raise errors.ResourceError(
                f"expected the system to give {size} bytes for a slab: {error}; "
                "lower the number of concurrent runs or the size of their inputs"
            ) from error
        self._slabs.append(slab)
        block = self._take_free(order)
        assert block is not None, "a new slab has room for the block it was made for"
        return block

    def _unmap_unused(self) -> None:
        """Make room below the limit: no slab that nobody uses stays."""
        for slab in [each for each in self._slabs if each.space.is_whole]:
            self._unmap(slab)

    def _unmap(self, slab: _Slab) -> None:
        self._returned += slab.space.touched_bytes
        self._slabs.remove(slab)
        slab.unmap()

    def _touch(self, block: Block, size_bytes: int) -> None:
        size = memory.round_up(size_bytes, memory.PAGE_BYTES)
        memory.touch(block.address, size)
        block._touched = size

    def _tidy(self) -> None:
        """Once in a while: merge what idles, return the free pages that nobody wanted since.

        Pages that were free all the time are the excess; those that come and go with the
        traffic are not returned, since they would have to be fetched again at once.
        """
        if self._fragmentation() > _COMPACT_ABOVE:
            self._cool(self._num_idle())
        self._trim(self._least_free - self._keep_free_bytes)
        self._least_free = self._touched_free()
        self._tidy_at = self._rents + _WINDOW

    def _num_idle(self) -> int:
        """Count the warm blocks that were not wanted for long; they are the oldest."""
        before = self._rents - _WINDOW
        return sum(block._stamp <= before for block in self._warm)

    def _cool(self, count: int) -> None:
        """Merge the `count` oldest warm blocks into the free space of their slabs."""
        for block in self._warm[:count]:
            self._warm_bytes -= 1 << block.order
            offset = block.address - block._slab.address
            block._slab.space.give(offset, block.order, block._touched)
        del self._warm[:count]

    def _fragmentation(self) -> float:
        free = sum(slab.space.free_bytes for slab in self._slabs)
        largest = max((slab.space.largest_free_bytes for slab in self._slabs), default=0)
        return 1 - largest / free if free else 0.0

    def _touched_free(self) -> int:
        return sum(slab.space.touched_bytes for slab in self._slabs)

    def _trim(self, excess: int) -> None:
        """Return that many bytes of free pages to the system, whole slabs first."""
        for slab in sorted(self._slabs, key=_slab_size, reverse=True):
            if excess > 0 and slab.space.is_whole and len(self._slabs) > 1:
                excess -= slab.space.touched_bytes
                self._unmap(slab)
        for slab in self._slabs:
            if excess > 0:
                excess -= self._discard(slab, excess)

    def _discard(self, slab: _Slab, at_least: int) -> int:
        """Return that many touched bytes of the slab, or all it has; largest blocks first."""
        before = slab.space.touched_bytes
        for offset, size in slab.space.forget_touched(_TRIM_ORDER):
            memory.discard(slab.address + offset, size)
            if before - slab.space.touched_bytes >= at_least:
                break
        given = before - slab.space.touched_bytes
        self._returned += given
        return given


class _Slab:
    """Memory of a power-of-two size, and which of it is free."""

    __slots__ = ("address", "size_bytes", "space")

    def __init__(self, size_bytes: int, touched_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.address = memory.map_private(size_bytes, memory.HUGE_PAGE_BYTES)
        memory.advise_huge(self.address, size_bytes)
        touched = min(touched_bytes, size_bytes)
        if touched:
            memory.touch(self.address, touched)
        self.space = buddy.Buddy(_BOTTOM, size_bytes.bit_length() - 1, touched)

    def unmap(self) -> None:
        memory.unmap(self.address, self.size_bytes)


def _slab_size(slab: _Slab) -> int:
    return slab.size_bytes
