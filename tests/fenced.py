"""Memory beside pages that nobody may touch, and a child process that may fault on them.

Whatever reads or writes one byte outside such a memory is stopped by the machine, where bytes of
a neighbour would have gone unnoticed. `survives` runs it in a child, so that the fault is a failed
test. tests/codegen/runner.py does this with every kernel, tests/poisoned.py with whole models.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import pickle
import signal
import traceback
import warnings
from collections.abc import Callable
from typing import Literal, NoReturn, TypeVar

import numpy as np

T = TypeVar("T")
Side = Literal["before", "behind"]
SIDES: tuple[Side, Side] = ("before", "behind")
PATTERNS = {"before": 0xA5, "behind": 0x3C}  # as float32 -2.9e-16 and 0.0115, as an index far away
_PROTECT = ctypes.CDLL(None, use_errno=True).mprotect
_PROTECT.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_NOBODY = 0  # PROT_NONE


class Memory:
    """`size_bytes` filled with a pattern, the fence on one side of them.

    On the other side lie guard bytes to be checked. Behind the last byte may be up to
    `align` - 1 guard bytes before the fence, so that the first one is aligned.
    """

    def __init__(self, size_bytes: int, side: Side, align: int = 1) -> None:
        page = mmap.PAGESIZE
        room = -(-max(size_bytes, 1) // page) * page + page  # at least one byte of guard
        self.size_bytes = size_bytes
        self.pattern = PATTERNS[side]
        self._map = mmap.mmap(-1, room + page, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        whole = np.frombuffer(self._map, np.uint8)
        fence = 0 if side == "before" else room
        if _PROTECT(whole.ctypes.data + fence, page, _NOBODY) != 0:
            raise OSError(ctypes.get_errno(), "a page could not be fenced")
        self._guarded = whole[page:] if side == "before" else whole[:room]
        self._first = 0 if side == "before" else (room - size_bytes) // align * align
        self._guarded[:] = self.pattern
        self.address: int = self._guarded.ctypes.data + self._first

    def view(self, dtype: str = "uint8") -> np.ndarray:
        """The bytes."""
        return self._guarded[self._first : self._first + self.size_bytes].view(dtype)

    def check(self, name: str) -> None:
        """Fail if somebody wrote on guard bytes."""
        before = self._guarded[: self._first]
        behind = self._guarded[self._first + self.size_bytes :]
        clean = (before == self.pattern).all() and (behind == self.pattern).all()
        assert clean, f"{name}: wrote outside"


def survives(work: Callable[[], T], what: str) -> T:
    """What the work returns, done in a child process; fails if that faults or raises.

    The child sees all that is there now; what it changes stays there, so the result says it.
    """
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        # Threads of numpy are waiting for work; the child gives them none.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        _answer(work, writing)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        answer = pipe.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        name = signal.Signals(os.WTERMSIG(status)).name
        raise AssertionError(f"{what}: read or wrote outside its operands ({name})")
    assert os.WEXITSTATUS(status) == 0, f"{what}: {answer.decode()}"
    result: T = pickle.loads(answer)
    return result


def _answer(work: Callable[[], object], writing: int) -> NoReturn:
    """The child's part: the result, pickled, or what went wrong, in words."""
    code = 1
    try:
        signal.signal(signal.SIGSEGV, signal.SIG_DFL)
        try:
            answer = pickle.dumps(work())
            code = 0
        except BaseException:  # noqa: BLE001  whatever it is, the parent is to fail
            answer = traceback.format_exc().encode()
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(answer)
    finally:
        os._exit(code)
