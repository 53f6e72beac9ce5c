"""The crash block: memory shared with the supervisor that tells what a dead process was doing.

A serving process claims a slot for each model it loads and hands `step_address` to its runs
(CTX_CRASH); generated code stores the step index there, and no signal handler is needed. After
the death the supervisor reads which model was inside which step. The kernel's name is found by
step index in the executable's report.
"""

from __future__ import annotations

import ctypes
import os

from castiron import errors
from castiron.executable import abi
from castiron.runtime import memory

_DIGEST_BYTES = 32
_DEFAULT_SLOTS = 64


class Trace:
    """One loaded model as the block tells it: `step` is None outside a run."""

    __slots__ = ("digest", "image", "model", "step")

    def __init__(self, model: str, digest: bytes, image: int, step: int | None) -> None:
        self.model = model
        self.digest = digest
        self.image = image
        self.step = step


class Slot:
    """The writer's side of one model. `step_address` is for CTX_CRASH."""

    __slots__ = ("_address", "step_address")

    def __init__(self, address: int) -> None:
        self._address = address
        self.step_address = address + abi.CRASH_STEP

    def release(self) -> None:
        """Give the slot back; no run may use `step_address` any more."""
        _word(self._address, abi.CRASH_USED).value = 0


class CrashBlock:
    """The block of one serving process, in a memfd that both sides map.

    The supervisor makes it (`create`) and passes `fd` to the process, which maps it (`attach`)
    and claims slots. The memory stays mapped for ever, since native threads write to it.
    """

    __slots__ = ("_address", "_num_slots", "fd")

    def __init__(self, fd: int, address: int, num_slots: int) -> None:
        self.fd = fd
        self._address = address
        self._num_slots = num_slots

    @classmethod
    def create(cls, num_slots: int = _DEFAULT_SLOTS) -> CrashBlock:
        """Make an empty block. `fd` is closed on exec unless it is passed on by `pass_fds`."""
        size = _size(num_slots)
        fd = os.memfd_create("castiron-crash", os.MFD_CLOEXEC)
        os.ftruncate(fd, size)
        block = cls(fd, memory.map_shared(fd, size), num_slots)
        _word(block._address, 0).value = abi.CRASH_MAGIC
        _word(block._address, abi.CRASH_NUM_SLOTS).value = num_slots
        return block

    @classmethod
    def attach(cls, fd: int) -> CrashBlock:
        """Map the block behind `fd` and enter this process as its owner.

        Raises ResourceError when the file is no crash block.
        """
        size = os.fstat(fd).st_size
        if size < abi.CRASH_HEADER_BYTES:
            raise errors.ResourceError(
                f"expected a crash block of at least {abi.CRASH_HEADER_BYTES} bytes behind file "
                f"descriptor {fd}, found {size}; pass on the one `CrashBlock.create` made"
            )
        address = memory.map_shared(fd, size)
        magic = _word(address, 0).value
        num_slots = _word(address, abi.CRASH_NUM_SLOTS).value
        if magic != abi.CRASH_MAGIC or num_slots < 1 or _size(num_slots) > size:
            memory.unmap(address, size)
            raise errors.ResourceError(
                f"expected a crash block behind file descriptor {fd}, found {size} bytes of "
                "something else; pass on the one `CrashBlock.create` made"
            )
        _word(address, abi.CRASH_PROCESS).value = os.getpid()
        return cls(fd, address, num_slots)

    def claim(self, model: str, digest: bytes, image: int = 0) -> Slot:
        """Return a free slot with the model's name, executable digest and code address in it.

        Raises ResourceError when all are taken.
        """
        for address in self._slots():
            used = _word(address, abi.CRASH_USED)
            if not used.value:
                _write(address, model, digest, image)
                used.value = 1
                return Slot(address)
        raise errors.ResourceError(
            f"expected a free slot in the crash block, found all {self._num_slots} taken; "
            "create it with more slots"
        )

    def clear(self) -> None:
        """Free every slot, when the process that claimed them is gone and another takes over."""
        for address in self._slots():
            _word(address, abi.CRASH_USED).value = 0

    def traces(self) -> list[Trace]:
        """Return every claimed slot, as it was left or as it is now."""
        return [_read(at) for at in self._slots() if _word(at, abi.CRASH_USED).value]

    def suspects(self) -> list[Trace]:
        """Return the models that were inside a step: what killed a process that has died."""
        return [trace for trace in self.traces() if trace.step is not None]

    @property
    def process(self) -> int:
        """The id of the process that attached last, 0 before."""
        return _word(self._address, abi.CRASH_PROCESS).value

    def _slots(self) -> range:
        first = self._address + abi.CRASH_HEADER_BYTES
        return range(first, first + self._num_slots * abi.CRASH_SLOT_BYTES, abi.CRASH_SLOT_BYTES)


def _size(num_slots: int) -> int:
    return abi.CRASH_HEADER_BYTES + num_slots * abi.CRASH_SLOT_BYTES


def _word(address: int, offset: int) -> ctypes.c_int64:
    return ctypes.c_int64.from_address(address + offset)


def _write(address: int, model: str, digest: bytes, image: int) -> None:
    name = model.encode()[: abi.CRASH_MODEL_ROOM]
    _word(address, abi.CRASH_STEP).value = abi.NO_STEP
    _word(address, abi.CRASH_IMAGE).value = image
    padded = digest[:_DIGEST_BYTES].ljust(_DIGEST_BYTES, b"\0")
    ctypes.memmove(address + abi.CRASH_DIGEST, padded, _DIGEST_BYTES)
    _word(address, abi.CRASH_MODEL_BYTES).value = len(name)
    ctypes.memmove(address + abi.CRASH_MODEL, name, len(name))


def _read(address: int) -> Trace:
    length = _word(address, abi.CRASH_MODEL_BYTES).value
    room = min(max(length, 0), abi.CRASH_MODEL_ROOM)
    name = ctypes.string_at(address + abi.CRASH_MODEL, room).decode(errors="replace")
    step = _word(address, abi.CRASH_STEP).value
    return Trace(
        name,
        ctypes.string_at(address + abi.CRASH_DIGEST, _DIGEST_BYTES),
        _word(address, abi.CRASH_IMAGE).value,
        None if step == abi.NO_STEP else step,
    )
