"""A native stage bound to values of its symbols: step records, arena size, output shapes.

Binding evaluates the stage's dims, places its buffers and writes the step records that
``castiron_run`` walks. It costs about a millisecond for a few hundred steps and is kept in a
bounded cache, so a shape seen before costs one lookup. ``instance.py`` continues.
"""

from __future__ import annotations

import ctypes

from castiron import errors
from castiron.executable import abi, placement, program

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

_REGION_OF_SLOT = abi.REGION_FIRST_INPUT


class Binding:
    """What one run of the stage needs, for one set of symbol values.

    ``idle_calls`` belongs to the instance: call memory of earlier runs, to be used again.
    """

    __slots__ = (
        "arena_bytes", "idle_calls", "num_steps", "scratch_bytes", "steps", "steps_address",
        "write_shapes",
    )  # fmt: skip

    def __init__(
        self,
        steps: ctypes.Array[ctypes.c_int64],
        num_steps: int,
        sizes: tuple[int, int],
        shapes: list[tuple[int, ...]],
    ) -> None:
        self.steps = steps
        self.steps_address = ctypes.addressof(steps)
        self.num_steps = num_steps
        self.arena_bytes, self.scratch_bytes = sizes
        self.write_shapes = shapes
        self.idle_calls: list[Any] = []


def bind(stage: program.NativeStage, symbols: Sequence[int], kernels: Sequence[int]) -> Binding:
    """Bind the stage; ``kernels`` are absolute addresses, ``symbols`` in the stage's order.

    Raises InputError when the symbol values break a relation that the model relies on.
    """
    values = program.evaluate(stage.dims, symbols)
    _check(stage, values)
    if stage.placed:
        offsets, arena_bytes = stage.placed[:-1], stage.placed[-1]
    else:
        sizes = [values[row] for row in stage.buffers[0::3]]
        offsets, arena_bytes = placement.place(sizes, stage.buffers[1::3], stage.buffers[2::3])
    records = _records(stage, values, offsets, kernels)
    scratch = max((values[row] for row in stage.scratch), default=0)
    scratch = -(-scratch // placement.ALIGN_BYTES) * placement.ALIGN_BYTES
    shapes = [tuple(values[row] for row in rows) for rows in stage.write_dims]
    return Binding(records, stage.num_steps, (arena_bytes, scratch), shapes)


def _check(stage: program.NativeStage, values: list[int]) -> None:
    for at, reason in enumerate(stage.reasons):
        left, right = values[stage.checks[2 * at]], values[stage.checks[2 * at + 1]]
        if left != right:
            raise errors.InputError(
                f"the input shapes do not fit together: {reason} ({left} against {right})",
                "inputs",
            )


def _records(
    stage: program.NativeStage,
    values: list[int],
    offsets: Sequence[int],
    kernels: Sequence[int],
) -> ctypes.Array[ctypes.c_int64]:
    words: list[int] = []
    steps, at = stage.steps, 0
    for _ in range(stage.num_steps):
        kernel, units, grain, num_operands, num_params = steps[at : at + 5]
        at += 5
        length = abi.STEP_HEADER_WORDS + abi.OPERAND_WORDS * num_operands + num_params
        record = [kernels[kernel], length, values[units], values[grain], num_operands, num_params]
        for _operand in range(num_operands):
            kind, reference, row = steps[at : at + 3]
            at += 3
            if kind == program.IN_BUFFER:
                record += (abi.REGION_ARENA, offsets[reference] + values[row])
            elif kind == program.IN_SLOT:
                record += (_REGION_OF_SLOT + reference, values[row])
            else:
                record += (abi.REGION_WEIGHTS, reference + values[row])
        record += [values[row] for row in steps[at : at + num_params]]
        at += num_params
        words.extend(record)
    return (ctypes.c_int64 * len(words))(*words)


class BindingCache:
    """The most recently used bindings of one stage, at most ``limit`` of them."""

    __slots__ = ("_kept", "_limit", "hits", "misses")

    def __init__(self, limit: int = 64) -> None:
        self._kept: dict[tuple[int, ...], Binding] = {}
        self._limit = limit
        self.hits = 0
        self.misses = 0

    def get(
        self, stage: program.NativeStage, symbols: tuple[int, ...], kernels: Sequence[int]
    ) -> Binding:
        """The binding for these symbol values, made now if it is not kept."""
        found = self._kept.pop(symbols, None)
        if found is None:
            self.misses += 1
            found = bind(stage, symbols, kernels)
            for forgotten in make_room(self._kept, self._limit - 1):
                # A call knows its binding: without this cut the pair would wait for a collection.
                forgotten.idle_calls.clear()
        else:
            self.hits += 1
        self._kept[symbols] = found
        return found

    def __len__(self) -> int:
        return len(self._kept)

    def largest_bytes(self, threads: int) -> int:
        """Arena and scratch of the largest binding kept, for that many threads."""
        sizes = [each.arena_bytes + each.scratch_bytes * threads for each in self._kept.values()]
        return max(sizes, default=0)


def make_room(kept: dict[Any, Any], most: int) -> list[Any]:
    """Forget the oldest entries until at most ``most`` are left, and give their values.

    Other threads may do the same at the same time.
    """
    oldest = list(kept)[: max(len(kept) - most, 0)]
    return [value for key in oldest if (value := kept.pop(key, None)) is not None]
