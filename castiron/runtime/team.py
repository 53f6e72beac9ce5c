"""The compute threads of one process, shared by all its models.

A Team owns the team block and the threads that live in `castiron_worker`; a run borrows it
inside `castiron_run` (see `executable/abi.py`). It does not decide how many threads a run uses,
that is word CTX_THREADS of each run, and it runs nothing by itself.
"""

from __future__ import annotations

import _thread
import atexit
import ctypes
import os
import time

from castiron import errors
from castiron.executable import abi
from castiron.runtime import memory, native_thread

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

_WORKER = "castiron_worker"
_STOP = "castiron_team_stop"
_TICKS = "castiron_ticks"
_CALIBRATION_NS = 60_000
_EXIT_TIMEOUT_S = 0.5
_SPIN_US = 30.0
_MOST_PLACED = 16  # moving more threads takes longer than it gains, and spare CPUs abound
_WORD = abi.WORD_BYTES


class Team:
    """`threads` compute threads: the caller of `castiron_run` and `threads - 1` workers.

    `code` maps the names of the run-time functions to addresses in an image that stays mapped
    for ever. `spin_us` bounds each wait inside a run; it is 0 when there are more threads than
    CPUs. `cpus` places the workers; without it a small team keeps them off the CPU of the
    thread that forks. `address` is for CTX_TEAM. After `os.fork` the child has no
    workers: there `address` is 0 and `threads` 1.
    """

    __slots__ = ("_block", "_stop", "address", "threads")

    def __init__(
        self,
        code: Mapping[str, int],
        threads: int,
        spin_us: float = _SPIN_US,
        cpus: Collection[int] | None = None,
    ) -> None:
        if not 1 <= threads <= abi.MAX_THREADS:
            raise errors.ResourceError(
                f"expected 1 to {abi.MAX_THREADS} threads in a team, found {threads}"
            )
        self._block = memory.map_private(memory.round_up(abi.TEAM_WORDS * _WORD, memory.PAGE_BYTES))
        self._stop = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(code[_STOP])
        self.address = self._block
        self.threads = threads
        self._word(abi.TEAM_SIZE).value = threads
        allowed = os.sched_getaffinity(0)
        if threads <= len(allowed):
            self._word(abi.TEAM_SPIN_TICKS).value = int(spin_us * ticks_per_us(code))
            self._word(abi.TEAM_PLACES).value = cpus is None and threads <= _MOST_PLACED
        for cpu in allowed:
            if cpu < abi.TEAM_CPUS_WORDS * 64:
                self._word(abi.TEAM_CPUS + cpu // 64).value |= _bit(cpu % 64)
        self._start_workers(code[_WORKER], cpus)
        atexit.register(self.stop)
        os.register_at_fork(after_in_child=self._forget)

    def stop(self, timeout_s: float = _EXIT_TIMEOUT_S) -> bool:
        """Let the workers leave; return whether all did in time. Later runs go on alone."""
        if not self.address:
            return True
        self.address = 0
        self._stop(self._block)
        workers = self.threads - 1
        atexit.unregister(self.stop)
        left = self._word(abi.TEAM_LEFT)
        return native_thread.wait_until(lambda: left.value == workers, timeout_s)

    def counts(self) -> dict[str, int]:
        """Return the team's counters since its start, by name."""
        words = {
            "forks": abi.TEAM_FORKS,
            "refused": abi.TEAM_REFUSED,
            "worker_sleeps": abi.TEAM_SLEEPS,
            "join_sleeps": abi.TEAM_JOIN_SLEEPS,
            "wakes": abi.TEAM_WAKES,
        }
        return {name: self._word(index).value for name, index in words.items()}

    def _word(self, index: int) -> ctypes.c_int64:
        return ctypes.c_int64.from_address(self._block + index * _WORD)

    def _start_workers(self, worker: int, cpus: Collection[int] | None) -> None:
        enter = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(worker)
        block = self._block
        for index in range(1, self.threads):
            native_thread.start(f"castiron-{index}", cpus, _entry(enter, block, index))

    def _forget(self) -> None:
        self.address = 0
        self.threads = 1


def _bit(index: int) -> int:
    """Return 2**index as the signed word that has this bit."""
    return 1 << index if index < 63 else -(1 << 63)


def ticks_per_us(code: Mapping[str, int]) -> float:
    """Return how many ticks of the generated code's clock pass in a microsecond.

    Measured three times for 60 us each; the median, since any of them may be interrupted.
    """
    ticks: Callable[[], int] = ctypes.PYFUNCTYPE(ctypes.c_int64)(code[_TICKS])
    return sorted(_measure_rate(ticks) for _ in range(3))[1]


def _measure_rate(ticks: Callable[[], int]) -> float:
    start_ns = time.perf_counter_ns()
    start = ticks()
    while time.perf_counter_ns() - start_ns < _CALIBRATION_NS:
        pass
    passed = ticks() - start
    return passed * 1000 / (time.perf_counter_ns() - start_ns)


def _entry(enter: Callable[[int, int], None], block: int, index: int) -> Callable[[], None]:
    return lambda: enter(block, index)


class Shared:
    """The one team of a process: made at the first call, then given to every model."""

    __slots__ = ("_lock", "_team")

    def __init__(self) -> None:
        self._lock = _thread.allocate_lock()
        self._team: Team | None = None

    def team(self, code: Mapping[str, int], threads: int) -> Team:
        """Return the process's team; `threads` counts for the first caller and after a fork."""
        with self._lock:
            if self._team is None or not self._team.address:
                self._team = Team(code, threads)
            return self._team
