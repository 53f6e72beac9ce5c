"""The processor's words: read from the first processor, whatever the rest."""

from __future__ import annotations

import pathlib
import platform

from castiron.compiler import target as targets
from castiron.executable import cpu


def test_cpu_flags_are_those_of_the_first_processor(tmp_path: pathlib.Path) -> None:
    listing = tmp_path / "cpuinfo"
    body = "processor\t: {}\nbugs\t\t: x\nflags\t\t: fpu {}\n\n"
    listing.write_text("".join(body.format(i, f"only{i}") for i in range(300)))
    assert cpu.flags(str(listing)) == {"fpu", "only0"}
    listing.write_text("processor : 0\nFeatures : fp asimd\n")
    assert cpu.flags(str(listing)) == {"fp", "asimd"}
    listing.write_text("")
    assert cpu.flags(str(listing)) == frozenset()


def test_this_machine_agrees_with_the_compiler_about_itself() -> None:
    assert cpu.machine() == platform.machine() == targets.host().architecture
    assert cpu.flags().issuperset(targets.host().required_flags)
