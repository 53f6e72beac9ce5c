"""LLVM IR text for the words of a block of memory: their address, a load, a store, a count.

The run-time functions (`run`, `team`, `lane`) are printed from these; kernels are printed by the
loop language instead. Names are LLVM's, with their percent sign; an index counts i64 words.
"""

from __future__ import annotations


def address(name: str, base: str, index: int) -> str:
    """Return the instruction that puts the address of word `index` of `base` into `name`."""
    return f"  {name} = getelementptr i64, ptr {base}, i64 {index}"


def load(name: str, base: str, index: int, kind: str = "i64") -> str:
    """Return the instructions that load word `index` of `base` into `name`."""
    return f"{address(f'{name}.at', base, index)}\n  {name} = load {kind}, ptr {name}.at, align 8"


def store(value: str, base: str, index: int, label: str) -> str:
    """Return the instructions that store `value` (with its type) to word `index` of `base`."""
    return f"{address(f'%{label}.at', base, index)}\n  store {value}, ptr %{label}.at, align 8"


def count(team: str, index: int, label: str) -> str:
    """Return the instructions that add one to a counter which several threads share."""
    return (
        f"{address(f'%{label}.count', team, index)}\n"
        f"  %{label}.old = atomicrmw add ptr %{label}.count, i64 1 monotonic"
    )
