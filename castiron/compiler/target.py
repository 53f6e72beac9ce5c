"""The machine compiled for: instruction set, registers, cache sizes.

Knows names and numbers only; LLVM is created from them in codegen. Every figure is fixed for
a target, never measured on the building host, so that one model and one target always give
the same bytes. codegen (tiles, assemble) and the executable's header continue from here.
"""

from __future__ import annotations

import pathlib
import platform
from dataclasses import dataclass

from castiron import errors

_V2_FLAGS = ("cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3")
_V3_FLAGS = (*_V2_FLAGS, "abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "xsave")
_V4_FLAGS = (*_V3_FLAGS, "avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl")


@dataclass(frozen=True, slots=True)
class Target:
    """One instruction set level, as the generators and LLVM need to know it.

    `cpu` and `features` are LLVM's words; `required_flags` are the words of /proc/cpuinfo that
    a host must show before code of this target may be mapped. Sizes of caches are of one core,
    chosen small enough to hold on every common processor of the level.
    """

    name: str
    triple: str
    cpu: str
    features: str
    vector_lanes_f32: int
    num_vector_registers: int
    has_fma: bool
    has_masked_ops: bool
    required_flags: tuple[str, ...]
    l1_bytes: int
    l2_bytes: int
    l3_bytes: int

    @property
    def architecture(self) -> str:
        """The first word of the triple: "x86_64" or "aarch64"."""
        return self.triple.partition("-")[0]

    @property
    def vector_bytes(self) -> int:
        """Width of one vector register in bytes."""
        return 4 * self.vector_lanes_f32


_LINUX_X86 = "x86_64-unknown-linux-gnu"

# prefer-256-bit is cleared explicitly: kernels are written for zmm registers, and a later LLVM
# may set it for the generic level.
_AVX512 = Target(
    name="avx512",
    triple=_LINUX_X86,
    cpu="x86-64-v4",
    features="-prefer-256-bit",
    vector_lanes_f32=16,
    num_vector_registers=32,
    has_fma=True,
    has_masked_ops=True,
    required_flags=_V4_FLAGS,
    l1_bytes=32 << 10,
    l2_bytes=1 << 20,
    l3_bytes=2 << 20,
)
_AVX2 = Target(
    name="avx2",
    triple=_LINUX_X86,
    cpu="x86-64-v3",
    features="",
    vector_lanes_f32=8,
    num_vector_registers=16,
    has_fma=True,
    has_masked_ops=True,
    required_flags=_V3_FLAGS,
    l1_bytes=32 << 10,
    l2_bytes=256 << 10,
    l3_bytes=2 << 20,
)
_BASELINE = Target(
    name="baseline",
    triple=_LINUX_X86,
    cpu="x86-64",
    features="",
    vector_lanes_f32=4,
    num_vector_registers=16,
    has_fma=False,
    has_masked_ops=False,
    required_flags=("sse2",),
    l1_bytes=32 << 10,
    l2_bytes=256 << 10,
    l3_bytes=1 << 20,
)
_AARCH64 = Target(
    name="aarch64",
    triple="aarch64-unknown-linux-gnu",
    cpu="generic",
    features="+neon",
    vector_lanes_f32=4,
    num_vector_registers=32,
    has_fma=True,
    has_masked_ops=False,
    required_flags=("asimd", "fp"),
    l1_bytes=32 << 10,
    l2_bytes=512 << 10,
    l3_bytes=1 << 20,
)

ALL = (_AVX512, _AVX2, _BASELINE, _AARCH64)


def named(name: str) -> Target:
    """The target of that name; BuildError listing the known names if there is none."""
    for target in ALL:
        if target.name == name:
            return target
    known = ", ".join(target.name for target in ALL)
    raise errors.BuildError(
        f"target: expected one of {known}; found {name!r}. "
        "Name one of these, or leave the target out to build for this machine."
    )


def host() -> Target:
    """The best target this machine can run."""
    cpuinfo = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    return best_for(platform.machine(), cpu_flags(cpuinfo))


def best_for(machine: str, flags: frozenset[str]) -> Target:
    """The first target of `machine` ("x86_64", "aarch64") whose required flags are all present.

    Raises BuildError for a machine that no target covers.
    """
    for target in ALL:
        if target.architecture == machine and flags.issuperset(target.required_flags):
            return target
    supported = ", ".join(sorted({target.architecture for target in ALL}))
    raise errors.BuildError(
        f"target: expected a processor of {supported} with its basic vectors; found {machine!r}. "
        "Name the target to build for another machine."
    )


def cpu_flags(cpuinfo: str) -> frozenset[str]:
    """The feature words of the first processor in the text of /proc/cpuinfo."""
    for line in cpuinfo.splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("flags", "Features"):
            return frozenset(value.split())
    return frozenset()
