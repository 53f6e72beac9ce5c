"""Memory from the system, by address: map, advise, discard, unmap.

Native threads read and write it, so no Python object owns any of it: an address stays valid
until `unmap`, also while the interpreter is taken down. The pool, the team, the lane and the
crash block are built on it.
"""

from __future__ import annotations

import ctypes
import os

from castiron.executable import mapping

PAGE_BYTES: int = os.sysconf("SC_PAGE_SIZE")
HUGE_PAGE_BYTES = 2 << 20

_MADV_DONTNEED = 4
_MADV_HUGEPAGE = 14
_MADV_POPULATE_WRITE = 23

_libc = ctypes.CDLL(None, use_errno=True)
_madvise = _libc.madvise
_madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def round_up(size: int, step: int) -> int:
    """Return the smallest multiple of `step`, a power of two, that is at least `size`."""
    return (size + step - 1) & -step


def map_private(size_bytes: int, align_bytes: int = PAGE_BYTES) -> int:
    """Return the address of new zeroed memory, aligned; both sizes are multiples of a page.

    Raises MemoryError when the system refuses.
    """
    if align_bytes <= PAGE_BYTES:
        return _map(size_bytes, mapping.PRIVATE | mapping.ANONYMOUS, -1)
    wide = _map(size_bytes + align_bytes, mapping.PRIVATE | mapping.ANONYMOUS, -1)
    address = round_up(wide, align_bytes)
    before = address - wide
    if before:
        unmap(wide, before)
    unmap(address + size_bytes, align_bytes - before)
    return address


def map_shared(fd: int, size_bytes: int) -> int:
    """Return the address at which the first bytes of the file `fd` are mapped, shared."""
    return _map(size_bytes, mapping.SHARED, fd)


def unmap(address: int, size_bytes: int) -> None:
    """Give the pages back to the system; the addresses become invalid."""
    mapping.unmap(address, size_bytes)


def advise_huge(address: int, size_bytes: int) -> bool:
    """Ask for huge pages; False where the system has none to give."""
    return not _madvise(address, size_bytes, _MADV_HUGEPAGE)


def touch(address: int, size_bytes: int) -> None:
    """Make every page present, so that no later access faults. Keeps what the memory holds."""
    if not _madvise(address, size_bytes, _MADV_POPULATE_WRITE):
        return
    for page in range(address, address + size_bytes, PAGE_BYTES):
        byte = ctypes.c_char.from_address(page)
        byte.value = byte.value


def discard(address: int, size_bytes: int) -> None:
    """Return the pages to the system and keep the addresses; they read as zero afterwards."""
    if _madvise(address, size_bytes, _MADV_DONTNEED):
        code = ctypes.get_errno()
        raise OSError(code, f"madvise of {size_bytes} bytes: {os.strerror(code)}")


def _map(size_bytes: int, flags: int, fd: int) -> int:
    try:
        return mapping.map_pages(size_bytes, mapping.READ | mapping.WRITE, flags, fd, 0)
    except OSError as fault:
        raise MemoryError(f"the system refused {size_bytes} bytes: {fault.strerror}") from None
