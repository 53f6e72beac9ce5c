"""What profiles are set beside: the clock and the peak of this machine's core."""

from __future__ import annotations

import pathlib

import castiron
from castiron.compiler import target as targets
from castiron.executable import cpu
from castiron.runtime import probe
from tests import built


def test_the_peak_is_that_of_one_core_for_every_target_that_runs_here(
    tmp_path: pathlib.Path,
) -> None:
    found = {}
    for target in targets.ALL:
        if target.architecture == cpu.machine() and set(target.required_flags) <= cpu.flags():
            path = castiron.build(built.one_op("Abs", ("n",)), tmp_path / "m.cast", target.name)
            code = castiron.load(path, threads=1).code
            found[target.name] = probe.peak_gflops(code, target.name)
    assert all(1 < peak < 1000 for peak in found.values()), found
    if {"avx512", "baseline"} <= set(found):
        # Sixteen lanes with fused operations against four without.
        assert found["avx512"] > 2 * found["baseline"]


def test_the_clock_of_profiles_ticks_as_processors_do(tmp_path: pathlib.Path) -> None:
    path = castiron.build(built.one_op("Abs", ("n",)), tmp_path / "m.cast")
    ticks = probe.ticks_per_us(castiron.load(path, threads=1).code)
    assert 10 < ticks < 10_000
