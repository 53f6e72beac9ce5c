"""Targets: chosen by what the processor shows, the same on every machine of one level."""

from __future__ import annotations

import pytest

from castiron import errors
from castiron.compiler import target as targets


def test_each_level_is_chosen_when_its_flags_are_there() -> None:
    avx512, avx2, baseline, aarch64 = targets.ALL
    every = frozenset(avx512.required_flags) | {"sse2", "amx_tile"}
    assert targets.best_for("x86_64", every) is avx512
    assert targets.best_for("x86_64", every - {"avx512vl"}) is avx2
    assert targets.best_for("x86_64", every - {"fma"}) is baseline
    assert targets.best_for("aarch64", frozenset({"fp", "asimd", "sve"})) is aarch64


def test_a_machine_no_target_covers_is_refused() -> None:
    with pytest.raises(errors.BuildError, match=r"processor of aarch64, x86_64 .*'riscv64'"):
        targets.best_for("riscv64", frozenset())


def test_targets_are_found_by_name() -> None:
    assert [targets.named(target.name) for target in targets.ALL] == list(targets.ALL)
    with pytest.raises(errors.BuildError, match="avx512, avx2, baseline, aarch64; found 'sse9'"):
        targets.named("sse9")


def test_the_host_has_a_target() -> None:
    assert targets.host() in targets.ALL


def test_flags_are_read_on_both_architectures() -> None:
    x86 = "processor\t: 0\nflags\t\t: fpu avx2\n\nprocessor\t: 1\nflags\t\t: fpu\n"
    assert targets.cpu_flags(x86) == {"fpu", "avx2"}
    assert targets.cpu_flags("Features\t: fp asimd\n") == {"fp", "asimd"}
    assert targets.cpu_flags("nothing here") == frozenset()


def test_names_and_flags_fit_the_header_of_an_executable() -> None:
    for target in targets.ALL:
        assert len(target.name) <= 16
        assert len(" ".join(target.required_flags)) <= 256
        assert target.vector_bytes == target.vector_lanes_f32 * 4
