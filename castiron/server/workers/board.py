"""The board: memory shared by the supervisor and its workers, on which each worker says it lives.

One line of words for each worker, written by it alone and read by all, so no lock is needed. A
beat is the time on the clock that all processes of a machine share.
"""

from __future__ import annotations

import mmap
import os
import time

STARTING, READY, UNREADY, STOPPING = range(4)
_WORDS = 8  # a cache line: process, beat, state, and room
_PROCESS, _BEAT, _STATE = range(3)
FRESH_NS = 1_000_000_000


class Board:
    """All lines; ``fd`` is handed to workers."""

    __slots__ = ("_words", "fd", "num_workers")

    def __init__(self, fd: int, num_workers: int) -> None:
        self.fd = fd
        self.num_workers = num_workers
        self._words = memoryview(mmap.mmap(fd, num_workers * _WORDS * 8)).cast("q")

    @classmethod
    def create(cls, num_workers: int) -> Board:
        """A new one, all lines empty."""
        fd = os.memfd_create("castiron-board", os.MFD_CLOEXEC)
        os.ftruncate(fd, num_workers * _WORDS * 8)
        return cls(fd, num_workers)

    def clear(self, worker: int) -> None:
        """For a worker that is about to start in the place of another."""
        for word in (_BEAT, _PROCESS, _STATE):
            self._words[worker * _WORDS + word] = 0

    def beat(self, worker: int, state: int) -> None:
        """This worker lives, and this is how; ends what was granted with ``wait_for``."""
        at = worker * _WORDS
        self._words[at + _PROCESS] = os.getpid()
        self._words[at + _STATE] = state
        self._words[at + _BEAT] = time.monotonic_ns()

    def wait_for(self, worker: int, time_ns: int) -> None:
        """This worker will be silent for so long, which is as if it had beaten then."""
        self._words[worker * _WORDS + _BEAT] = time.monotonic_ns() + time_ns

    def beat_ns(self, worker: int) -> int:
        """When it last said so, or will be expected to; 0: not yet."""
        return self._words[worker * _WORDS + _BEAT]

    def state(self, worker: int) -> int:
        """How it was then."""
        return self._words[worker * _WORDS + _STATE]

    def num_ready(self, now_ns: int) -> int:
        """Workers that are ready and said so a moment ago."""
        return sum(
            self.state(worker) == READY and now_ns - self.beat_ns(worker) < FRESH_NS
            for worker in range(self.num_workers)
        )
