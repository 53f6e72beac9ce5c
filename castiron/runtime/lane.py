"""The native lane: runs are worked off in order by one thread that never touches Python.

The thread that owns the event loop submits the address of a context and goes on; when the run
is over, an eventfd wakes the loop, which calls `on_done`. Which run comes next, deadlines and
batches are the scheduler's business. The protocol is in `codegen/lane_threads.py`, the block in
`executable/abi.py`.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import time
from _weakref import ref

from castiron import errors
from castiron.executable import abi
from castiron.runtime import memory, native_thread, team

TYPE_CHECKING = False
if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Collection, Mapping

_RUN = "castiron_run"
_WORKER = "castiron_lane_worker"
_SUBMIT = "castiron_lane_submit"
_DRAIN = "castiron_lane_drain"
_STOP = "castiron_lane_stop"
_COUNTER_MASK = 0xFFFFFFFF
_EXIT_TIMEOUT_S = 0.5


class Lane:
    """One native thread and its ring of at most `abi.LANE_CAPACITY` runs.

    `code` maps the names of the run-time functions to addresses in an image that stays mapped
    for ever. With a `loop`, `on_done` is called on it; without, by `drain` and `stop`. All
    methods belong to one thread. `spin_us` is how long the idle thread watches the ring before
    it sleeps: 0 is best unless runs follow each other within microseconds. `cpus` places the
    thread. After `os.fork` the child's lane refuses every run.
    """

    __slots__ = (
        "__weakref__",
        "_block",
        "_count_finished",
        "_eventfd",
        "_finished",
        "_loop",
        "_run",
        "_stop",
        "_submit",
        "_waiting",
    )

    def __init__(
        self,
        code: Mapping[str, int],
        loop: asyncio.AbstractEventLoop | None = None,
        spin_us: float = 0.0,
        cpus: Collection[int] | None = None,
    ) -> None:
        word = ctypes.c_int64
        self._run = code[_RUN]
        self._submit = ctypes.PYFUNCTYPE(ctypes.c_int32, word, word, word)(code[_SUBMIT])
        self._count_finished = ctypes.PYFUNCTYPE(ctypes.c_uint32, word)(code[_DRAIN])
        self._stop = ctypes.PYFUNCTYPE(None, word)(code[_STOP])
        self._waiting: list[Callable[[], object]] = []
        self._finished = 0
        self._block = memory.map_private(memory.round_up(abi.LANE_BYTES, memory.PAGE_BYTES))
        self._eventfd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._word(abi.LANE_EVENTFD).value = self._eventfd
        if spin_us:
            self._word(abi.LANE_SPIN_TICKS).value = int(spin_us * team.ticks_per_us(code))
        enter = ctypes.CFUNCTYPE(None, word)(code[_WORKER])
        native_thread.start("castiron-lane", cpus, _entry(enter, self._block))
        self._loop = loop
        if loop is not None:
            loop.add_reader(self._eventfd, self._complete)
        atexit.register(self._leave)
        os.register_at_fork(after_in_child=_forgetting(self))

    @property
    def num_waiting(self) -> int:
        """Runs submitted whose `on_done` was not called yet."""
        return len(self._waiting)

    @property
    def is_open(self) -> bool:
        """Whether runs are accepted: false after `stop` and in a forked child."""
        return bool(self._block)

    def submit(self, ctx_address: int, on_done: Callable[[], object]) -> None:
        """Queue the run of the context at that address; `on_done()` is called when it is over.

        Everything the context reaches must stay as it is until then; what Python objects own of
        it is safe if `on_done` refers to them. Never blocks. Raises ResourceError when the ring
        is full or the lane is not open.
        """
        self.submit_call(self._run, ctx_address, on_done)

    def submit_call(self, function: int, argument: int, on_done: Callable[[], object]) -> None:
        """Queue the call of native code `void function(ptr argument)`, else as `submit`."""
        if not self._block:
            raise errors.ResourceError(
                "expected an open lane, found one that was stopped or inherited by fork; "
                "start a lane in this process and submit to that"
            )
        if self._submit(self._block, function, argument):
            raise errors.ResourceError(
                f"expected at most {abi.LANE_CAPACITY} runs in a lane, found it full; "
                "wait for a run to finish before submitting more"
            )
        self._waiting.append(on_done)

    def drain(self, timeout_s: float) -> bool:
        """Wait until nothing is waiting, calling each `on_done`; return whether that came."""
        import select

        end = time.monotonic() + timeout_s
        poll = select.poll()
        poll.register(self._eventfd, select.POLLIN)
        while self._waiting and self._block:
            left = end - time.monotonic()
            if left <= 0 or not poll.poll(left * 1000):
                break
            self._complete()
        return not self._waiting

    def stop(self, timeout_s: float = _EXIT_TIMEOUT_S) -> bool:
        """Finish what was submitted, let the thread leave; return whether it did in time.

        Calls the `on_done` of every finished run. A thread that is still inside a run keeps
        its memory and its eventfd, and leaves after the run.
        """
        if not self._block:
            return True
        block = self._block
        in_time = self._leave(timeout_s)
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._eventfd)
        if in_time:
            self._call_finished(block)
            os.close(self._eventfd)
        return in_time

    def counts(self) -> dict[str, int]:
        """Return the lane's counters since its start, by name."""
        words = {"worker_sleeps": abi.LANE_SLEEPS, "eventfd_writes": abi.LANE_WRITES}
        return {name: self._word(offset).value for name, offset in words.items()}

    def _word(self, offset: int) -> ctypes.c_int64:
        return ctypes.c_int64.from_address(self._block + offset)

    def _leave(self, timeout_s: float = _EXIT_TIMEOUT_S) -> bool:
        if not self._block:
            return True
        self._stop(self._block)
        left = ctypes.c_int32.from_address(self._block + abi.LANE_LEFT)
        self._block = 0
        atexit.unregister(self._leave)
        in_time = native_thread.wait_until(lambda: left.value == 1, timeout_s)
        if not in_time:
            _keep_for_ever(self._waiting)
        return in_time

    def _complete(self) -> None:
        try:
            os.eventfd_read(self._eventfd)
        except BlockingIOError:
            return  # drained already, by an earlier call
        self._call_finished(self._block)

    def _call_finished(self, block: int) -> None:
        """Call `on_done` of each run finished since last time; a failure does not stop others."""
        finished = self._count_finished(block)
        count = (finished - self._finished) & _COUNTER_MASK
        self._finished = finished
        first: Exception | None = None
        for _ in range(count):
            try:
                self._waiting.pop(0)()
            except Exception as error:  # noqa: BLE001  the callers of other runs must be told
                first = first or error
        if first is not None:
            raise first

    def _forget(self) -> None:
        self._block = 0
        self._waiting.clear()


def _entry(enter: Callable[[int], None], block: int) -> Callable[[], None]:
    return lambda: enter(block)


def _keep_for_ever(waiting: list[Callable[[], object]]) -> None:
    """Never free what the runs under way may still reach, not even while the process ends.

    Their `on_done` hold the contexts, inputs and outputs. A reference that nobody owns keeps
    all of it from being taken down under the native thread.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(waiting))


def _forgetting(lane: Lane) -> Callable[[], None]:
    """What a forked child does: its copy of the lane has no thread and must not be used."""
    held = ref(lane)

    def forget() -> None:
        found = held()
        if found is not None:
            found._forget()

    return forget
