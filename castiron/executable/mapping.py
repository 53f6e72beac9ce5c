"""Maps parts of a file into memory, at addresses that generated code may use.

``runtime/memory.py`` maps memory without a file by the same ``map_pages``. Through libc directly, because Python's mmap objects would own memory that threads outside the
interpreter touch. Nothing is ever writable and executable at once.
"""

from __future__ import annotations

import ctypes
import errno
import os

READ, WRITE, _EXEC = 1, 2, 4
SHARED, PRIVATE, ANONYMOUS = 1, 2, 0x20
_FAILED = ctypes.c_void_p(-1).value
_COPY_BYTES = 1 << 20

_LIBC = ctypes.CDLL(None, use_errno=True)
_mmap = _LIBC.mmap
_mmap.restype = ctypes.c_void_p
# Without argument types ctypes would cut addresses and offsets to 32 bits.
_mmap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int64,
)
_munmap = _LIBC.munmap
_munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_mprotect = _LIBC.mprotect
_mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def map_data(fd: int, offset: int, size: int) -> int:
    """The address of `size` bytes of the file at `offset` (page-aligned), read-only.

    The caller has checked that the file is that long. Raises OSError. Stays until `unmap`.
    """
    return map_pages(size, READ, PRIVATE, fd, offset)


def map_code(fd: int, offset: int, size: int) -> int:
    """Like `map_data`, executable; where the file system forbids that, an executable copy."""
    try:
        return map_pages(size, READ | _EXEC, PRIVATE, fd, offset)
    except PermissionError:
        return copy_code(fd, offset, size)


def copy_code(fd: int, offset: int, size: int) -> int:
    """The address of an executable private copy of `size` bytes of the file at `offset`.

    Written first, then made executable and read-only in one step, in which the kernel also
    makes instruction caches agree. Raises OSError.
    """
    address = map_pages(size, READ | WRITE, PRIVATE | ANONYMOUS, -1, 0)
    try:
        _fill(address, fd, offset, size)
        _make_executable(address, size)
    except BaseException:
        unmap(address, size)
        raise
    return address


def view(address: int, size: int) -> memoryview:
    """The mapped bytes at `address`; valid until they are unmapped."""
    return memoryview((ctypes.c_ubyte * size).from_address(address)).cast("B")


def unmap(address: int, size: int) -> None:
    """Give mapped memory back. No thread may use it any more."""
    if _munmap(address, size):
        raise _os_error("unmap memory")


def map_pages(size: int, protection: int, flags: int, fd: int, offset: int) -> int:
    """The address of new pages, by the rules of mmap(2). Raises OSError."""
    address = _mmap(None, size, protection, flags, fd, offset)
    if address is None or address == _FAILED:
        raise _os_error("map memory")
    return int(address)


def _make_executable(address: int, size: int) -> None:
    if _mprotect(address, size, READ | _EXEC):
        raise _os_error("make code executable")


def _fill(address: int, fd: int, offset: int, size: int) -> None:
    goal = view(address, size)
    done = 0
    while done < size:
        count = os.preadv(fd, [goal[done : done + _COPY_BYTES]], offset + done)
        if count == 0:
            raise OSError(errno.EIO, f"the file ended {size - done} bytes early")
        done += count


def _os_error(action: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"cannot {action}: {os.strerror(number)}")
