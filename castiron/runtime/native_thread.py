"""Threads that enter generated code and stay in it: how they are started.

Raw threads of the interpreter, which nobody joins at exit: a worker asleep in a futex must
never hold the process back. They block signals (Python's main thread gets them all), carry a
name for `top -H` and `perf`, and may be placed on CPUs. Team and lane say what they run.
"""

from __future__ import annotations

import _thread
import ctypes
import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection

_PR_SET_NAME = 15
_SIG_BLOCK = 0
_SIGNAL_SET_BYTES = 128
_FAULTS = (4, 7, 8, 11)  # SIGILL, SIGBUS, SIGFPE, SIGSEGV: raised by the thread's own code
_POLL_S = 0.0005

_libc = ctypes.CDLL(None)
_niceness = 0


def give_way(niceness: int) -> None:
    """Let threads that are started from now on have less of a CPU that others want too.

    For a process whose other threads answer: with equal shares, they would wait for whole time
    slices of threads that only compute.
    """
    global _niceness  # noqa: PLW0603  a matter of the whole process, said once
    _niceness = niceness


def start(name: str, cpus: Collection[int] | None, enter: Callable[[], object]) -> None:
    """Start a thread that calls `enter` once; `cpus` restricts where it runs, None leaves it."""
    _thread.start_new_thread(_live, (name, cpus, enter))


def wait_until(is_true: Callable[[], bool], timeout_s: float) -> bool:
    """Return whether `is_true` became so within the time, looking twice a millisecond."""
    end = time.monotonic() + timeout_s
    while not is_true():
        if time.monotonic() >= end:
            return False
        time.sleep(_POLL_S)
    return True


def _live(name: str, cpus: Collection[int] | None, enter: Callable[[], object]) -> None:
    _libc.prctl(_PR_SET_NAME, name[:15].encode(), 0, 0, 0)
    _block_signals()
    if _niceness:
        os.setpriority(os.PRIO_PROCESS, _thread.get_native_id(), _niceness)
    if cpus:
        os.sched_setaffinity(0, cpus)
    enter()


def _block_signals() -> None:
    """Block every signal of this thread but the faults of its own code."""
    bits = (1 << 64) - 1
    for number in _FAULTS:
        bits &= ~(1 << (number - 1))
    mask = bits.to_bytes(8, "little") + bytes(_SIGNAL_SET_BYTES - 8)
    _libc.pthread_sigmask(_SIG_BLOCK, mask, None)
