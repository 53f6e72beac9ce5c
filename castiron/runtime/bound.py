"""A run with memory of its own for inputs and outputs, for shapes that come again and again.

``Instance.run`` looks at every array it is given and makes arrays for its outputs, which for a
small model takes far longer than its kernels. Here all that depends on shapes alone is done once,
by ``Instance.bind``; what is left of a run is one native call. It converts and checks no values.
"""

from __future__ import annotations

import ctypes
import sys

from castiron.executable import abi, program
from castiron.runtime import memory, views
from castiron.tensor import dtype as dtypes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from castiron.runtime.call import Call
    from castiron.runtime.pool import Pool

    Kind = tuple[str, tuple[int, ...]]  # dtype and shape

MOST_BYTES = 64 << 10  # of inputs and outputs; above, copying them would cost what binding saves
_ALIGN_BYTES = 64


class BoundRun:
    """One run of fixed shapes, to be used again and again by one thread at a time.

    Fill ``inputs``, call ``run``, read ``outputs``: bytes by name, row-major in the signature's
    dtypes, each aligned to 64. Inputs keep what was written until it is overwritten, and a bool is
    a byte of 0 or 1. Outputs, whose extents are ``output_shapes``, are valid until the next run.
    ``size_bytes`` is the memory that stays taken between runs, views included, arena excluded.
    The instance must not be unmapped before the last run.
    """

    __slots__ = (
        "_address", "_call", "_function", "_pool", "_rented_bytes", "inputs", "output_shapes",
        "outputs", "size_bytes",
    )  # fmt: skip

    def __init__(
        self,
        function: Callable[[int], None],
        call: Call,
        pool: Pool,
        described: program.Program,
        shapes: Sequence[tuple[int, ...]],
    ) -> None:
        """``call`` is of the only stage of ``described``, ``shapes`` of its inputs, in order."""
        self._function = function
        self._address = call.context_address
        self._call = call  # and through it the binding, whose steps a run walks
        self._pool = pool
        self._rented_bytes = call.rented_bytes
        stage, slots = described.stages[0], described.slots
        kinds = kinds_of(described, described.inputs, shapes)
        kinds += kinds_of(described, stage.writes, call.binding.write_shapes)
        placed, self.size_bytes = _place(kinds)
        # A slot may be on both sides, with memory of its own on each.
        given = dict(zip(described.inputs, placed, strict=False))
        made = dict(zip(stage.writes, placed[len(given) :], strict=True))
        regions = [*(given[slot] for slot in stage.reads), *made.values()]
        for region, view in enumerate(regions, abi.REGION_FIRST_INPUT):
            call.bases[region] = view.address
        for words in (call.context, call.bases, call.binding.steps):
            self.size_bytes += ctypes.sizeof(words)
        self.inputs: dict[str, memoryview] = {slots[s].name: v.owner for s, v in given.items()}
        self.outputs: dict[str, memoryview] = {
            slots[slot].name: made[slot].owner for slot in described.outputs
        }
        self.output_shapes = {slots[slot].name: made[slot].shape for slot in described.outputs}

    def run(self) -> None:
        """Compute the outputs from what the inputs hold now, on this thread and the team's.

        Allocates nothing but the arena, where one is needed. Raises ResourceError when the pool
        has none to give.
        """
        if self._rented_bytes:
            self._run_in_arena()
        else:
            self._function(self._address)

    def _run_in_arena(self) -> None:
        call, pool = self._call, self._pool
        call.rent(pool)
        try:
            self._function(self._address)
        finally:
            call.give(pool)


def kinds_of(
    described: program.Program, slots: Iterable[int], shapes: Iterable[tuple[int, ...]]
) -> list[Kind]:
    """The dtypes of these slots, each with its shape."""
    return [(described.slots[slot].dtype, shape) for slot, shape in zip(slots, shapes, strict=True)]


def is_small(kinds: Iterable[Kind]) -> bool:
    """Whether tensors of these kinds have bytes (strings have none) and few enough to be bound."""
    total = 0
    for dtype, shape in kinds:
        if not dtypes.named(dtype).size_bytes:
            return False
        total += _bytes_of(dtype, shape)
    return total <= MOST_BYTES


def is_shape(shape: Iterable[int]) -> bool:
    """Whether an array could have this shape: no extent is negative, nor any product too large."""
    span = 1
    for extent in shape:
        if extent < 0:
            return False
        span *= extent or 1
    return span <= sys.maxsize


def _bytes_of(dtype: str, shape: Iterable[int]) -> int:
    size_bytes = dtypes.named(dtype).size_bytes
    for extent in shape:
        size_bytes *= extent
    return size_bytes


def _place(kinds: Iterable[Kind]) -> tuple[list[views.View], int]:
    """Zeroed tensors one behind the other in one piece of memory, and its size in bytes."""
    spans, end = [], 0
    for dtype, shape in kinds:
        size_bytes = _bytes_of(dtype, shape)
        spans.append((end, end + size_bytes, dtype, shape))
        end += memory.round_up(max(size_bytes, 1), _ALIGN_BYTES)
    room = bytearray(end + _ALIGN_BYTES)
    address = ctypes.addressof(ctypes.c_char.from_buffer(room))
    skipped = -address % _ALIGN_BYTES
    whole = memoryview(room)[skipped:]
    placed = [
        views.View(address + skipped + start, dtype, shape, whole[start:stop])
        for start, stop, dtype, shape in spans
    ]
    return placed, len(room)
