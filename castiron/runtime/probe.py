"""Measures this machine with an image's own code: the clock of profiles and the peak of a core."""

from __future__ import annotations

import ctypes
import time

from castiron.executable import abi
from castiron.runtime import team

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_UNITS = 200_000
_TRIES = 7
_LANES = {"avx512": 16, "avx2": 8, "baseline": 4, "aarch64": 4}


def ticks_per_us(code: Mapping[str, int]) -> float:
    """Ticks of the clock that profiles count in, in one microsecond."""
    return team.ticks_per_us(code)


def peak_gflops(code: Mapping[str, int], target: str) -> float:
    """float32 multiply-adds of one core, in 10^9 operations a second, best of some tries."""
    kernel = ctypes.CFUNCTYPE(
        None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p
    )(code[abi.PEAK_SYMBOL])
    # Start values that stay finite: x = x * 0.5 + start converges.
    lanes = (ctypes.c_float * 64)(*([1.0] * _LANES[target] + [0.5] * _LANES[target]))
    args = (ctypes.c_int64 * 1)(ctypes.addressof(lanes))
    flops = _UNITS * abi.PEAK_FLOPS_PER_LANE * _LANES[target]
    best_ns = 1 << 62
    for _ in range(_TRIES):
        lanes[0 : _LANES[target]] = [1.0] * _LANES[target]
        start = time.perf_counter_ns()
        kernel(ctypes.addressof(args), 0, _UNITS, None)
        best_ns = min(best_ns, time.perf_counter_ns() - start)
    return flops / best_ns
