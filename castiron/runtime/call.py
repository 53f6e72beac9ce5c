"""The memory that one native call reads: base addresses of regions and the run's context.

Filled by ``instance.py`` for inputs that come and go, by ``bound.py`` once and for all. The words
are those of ``executable/abi.py``; the step records belong to the binding.
"""

from __future__ import annotations

import ctypes

from castiron.executable import abi
from castiron.runtime import views
from castiron.runtime.binding import Binding

TYPE_CHECKING = False
if TYPE_CHECKING:
    from castiron.runtime.pool import Block, Pool

_WORD = ctypes.c_int64


class Call:
    """Context and bases of a run of this binding, on at most ``threads`` threads.

    Kept and used again, since filling it anew would cost more than a small model's run. ``owners``
    keeps inputs alive while the call is under way; ``rented_bytes`` is what ``rent`` asks for.
    """

    __slots__ = (
        "bases", "binding", "block", "context", "context_address", "outputs", "owners",
        "rented_bytes",
    )  # fmt: skip

    def __init__(self, binding: Binding, weights: int, num_slots: int, threads: int) -> None:
        self.binding = binding
        self.bases = (_WORD * (abi.REGION_FIRST_INPUT + num_slots))(weights)
        self.context = (_WORD * abi.CTX_WORDS)()
        self.context[abi.CTX_BASES] = ctypes.addressof(self.bases)
        self.context[abi.CTX_STEPS] = binding.steps_address
        self.context[abi.CTX_NUM_STEPS] = binding.num_steps
        self.context[abi.CTX_THREADS] = threads
        self.context[abi.CTX_SCRATCH_STRIDE] = binding.scratch_bytes
        self.context_address = ctypes.addressof(self.context)
        self.rented_bytes = binding.arena_bytes + binding.scratch_bytes * threads
        self.block: Block | None = None
        self.outputs: list[views.View] = []
        self.owners: list[views.View | None] = []

    def rent(self, pool: Pool) -> None:
        """Rent arena and scratch for one run. Raises ResourceError, with nothing rented."""
        self.block = block = pool.rent(self.rented_bytes)
        self.bases[abi.REGION_ARENA] = block.address
        self.context[abi.CTX_SCRATCH] = block.address + self.binding.arena_bytes

    def give(self, pool: Pool) -> None:
        """Give back what was rented, if anything was."""
        if self.block is not None:
            pool.give_back(self.block)
            self.block = None

    def stop(self) -> None:
        """Let a run that is waiting or under way on a lane end before its next step."""
        self.context[abi.CTX_NUM_STEPS] = 0
