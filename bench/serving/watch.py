"""The CPU time and the memory of a server: of a process and of all that descend from it."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import NamedTuple

_PAGE = os.sysconf("SC_PAGE_SIZE")


class Sample(NamedTuple):
    """Memory counts pages that processes share once for each of them.

    ``delayed_s`` is how long its threads were ready to run while others had the CPU.
    """

    cpu_s: float
    delayed_s: float
    rss_bytes: int
    processes: int


def sample(leader: int) -> Sample:
    """What a process and its descendants have used so far. A process that has ended counts not."""
    cpu_s, delayed_s, rss_bytes, members = 0.0, 0.0, 0, [leader]
    for process in members:
        with contextlib.suppress(OSError):
            cpu_s += time.clock_gettime(_cpu_clock(process))
            rss_bytes += int(Path(f"/proc/{process}/statm").read_text().split()[1]) * _PAGE
            for thread in Path(f"/proc/{process}/task").iterdir():
                delayed_s += int((thread / "schedstat").read_text().split()[1]) / 1e9
                members += map(int, (thread / "children").read_text().split())
    return Sample(cpu_s, delayed_s, rss_bytes, len(members))


def _cpu_clock(process: int) -> int:
    """The clock of the CPU time of a process; exact, where ``/proc`` has hundredths of a second."""
    return ~process << 3 | 2
