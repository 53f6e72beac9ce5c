"""What lowering gives: steps of a plan, each a kernel with its operands and run-time numbers.

A kernel family's ``lower(node, graph, target) -> Lowered`` turns one node into steps. Kernels take
every pointer and number from the argument block: operands first (one pointer each), then params.
``plan.py`` places the buffers, ``program.py`` writes steps, dims and offsets into the executable.
"""

from __future__ import annotations

import dataclasses
import hashlib

import numpy as np

from castiron.graph.graph import Extent


@dataclasses.dataclass(frozen=True, slots=True)
class Kernel:
    """One exported machine function ``void symbol(ptr args, i64 begin, i64 end, ptr scratch)``.

    ``text`` is a whole LLVM module that defines it. Equal symbols must have equal texts, so a
    symbol names everything that the text depends on; ``tag`` shortens long expressions.
    """

    symbol: str
    text: str


@dataclasses.dataclass(frozen=True, slots=True)
class Read:
    """A pointer to a value that the step reads, ``offset_bytes`` into it."""

    value: str
    offset_bytes: Extent = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Write:
    """A pointer to a value that the step writes, ``offset_bytes`` into it.

    A value may be written by several steps of one node (a concat's parts).
    """

    value: str
    offset_bytes: Extent = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Packed:
    """A pointer to constant data, already in the kernel's own layout, 64-byte aligned."""

    array: np.ndarray


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """One kernel call over ``units`` independent units of work, ``grain`` at a time.

    ``units`` is what threads share: the kernel is called for ranges ``[begin, end)`` of it and
    may not depend on how they are cut. ``grain`` 0 means one call for all units, never forked.
    ``scratch_bytes`` of private memory are given to each thread. ``flops`` and ``bytes_moved``
    feed the profile and the choice of grain. ``in_place`` lists (index of a Write, index of a
    Read) among the operands that may share memory: each element is read before the same
    position is written, by the same unit.
    """

    name: str
    kernel: Kernel
    operands: tuple[Read | Write | Packed, ...]
    params: tuple[Extent, ...]
    units: Extent
    grain: Extent = 1
    scratch_bytes: Extent = 0
    flops: Extent = 0
    bytes_moved: Extent = 0
    in_place: tuple[tuple[int, int], ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Alias:
    """``value`` is the same memory as ``of``: a view such as Reshape, which needs no step."""

    value: str
    of: str


@dataclasses.dataclass(frozen=True, slots=True)
class Buffer:
    """Arena memory that steps of one node pass to each other, under a value name of its own."""

    value: str
    size_bytes: Extent


@dataclasses.dataclass(frozen=True, slots=True)
class Lowered:
    """All that one node becomes."""

    steps: tuple[Step, ...] = ()
    aliases: tuple[Alias, ...] = ()
    buffers: tuple[Buffer, ...] = ()


def tag(text: str) -> str:
    """Eight hex digits that stand for a long description inside a kernel's symbol."""
    return hashlib.sha256(text.encode()).hexdigest()[:8]
