"""The lanes of versions on one event loop: their clock, their timer, and the runs they start.

``scheduler`` decides, this acts: it hands batches to the native thread or to a model's process,
tells each request its one outcome, and wakes the lanes when something is due. Merging arrays is
``rows.py``; what a request asks and how it is answered is ``dispatch.py``.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from castiron import errors
from castiron.scheduler import batch, lane, request, retry, settings, sharing
from castiron.server import rows, status

if TYPE_CHECKING:
    from castiron.server import served

_RETRY = settings.Retry()
_MOST_INLINE = 8
_numbers = itertools.count(1)


class Work:
    """What one request wants run, and the future that its client waits for.

    ``render`` turns outputs into the answer; ``on_over`` is called when no run reads the inputs
    any more, which is later than the request's end when its client did not wait.
    """

    __slots__ = ("future", "inputs", "is_over", "on_over", "render", "size_bytes")

    def __init__(
        self, inputs: rows.Arrays, size_bytes: int, render: Callable[[rows.Arrays], Any]
    ) -> None:
        self.inputs = inputs
        self.size_bytes = size_bytes
        self.render = render
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.is_over = False
        self.on_over: Callable[[], None] = _nothing

    def end(self, outputs: rows.Arrays) -> None:
        """It was answered; outputs are read now."""
        if self.future.done():
            return
        try:
            self.future.set_result(self.render(outputs))
        except Exception as fault:  # noqa: BLE001  the request is told, not the lane
            self.future.set_exception(fault)

    def fail(self, error: BaseException) -> None:
        """It was not."""
        if not self.future.done():
            self.future.set_exception(error)

    def over(self) -> None:
        """Hold nothing any more: tensors must not wait for a collection."""
        if self.is_over:
            return
        self.is_over = True
        on_over, self.on_over = self.on_over, _nothing
        self.inputs = {}
        self.render = _nothing_to_render
        on_over()


class Lanes:
    """The lanes before one native thread, or before one process; ``native`` is None for that."""

    __slots__ = ("_is_waking", "_loop", "_of", "_sharing", "_timer", "_timer_ns", "last_end_ns",
                 "native", "running")  # fmt: skip

    def __init__(self, native: Any, depth: int) -> None:
        self.native = native
        self.last_end_ns = 0
        self.running: list[_Run] = []
        self._loop = asyncio.get_running_loop()
        self._sharing = sharing.Sharing(depth)
        self._of: dict[lane.Lane, served.Served] = {}
        self._is_waking = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = 0

    def add(self, version: served.Served) -> None:
        """Let the lane of this version take part."""
        self._of[version.lane] = version
        self._sharing.lanes.append(version.lane)

    def remove(self, version: served.Served) -> None:
        """Forget the lane of a version that was taken away; nothing of it may be held."""
        if self._of.pop(version.lane, None) is not None:
            self._sharing.lanes.remove(version.lane)

    def submit(self, version: served.Served, asked: request.Request) -> None:
        """Take a request in, and begin its run if it is its turn. Raises Refusal."""
        now = time.monotonic_ns()
        taken = version.lane.submit(asked, now)
        if isinstance(taken, request.Refused):
            asked.payload.over()
            self._settle()
            raise refusal(asked, taken.reason, taken.retry_after_ns)
        self.wake()

    def cancel(self, version: served.Served, asked: request.Request) -> None:
        """Its client left."""
        version.lane.cancel(asked.id, time.monotonic_ns())
        self.wake()

    def wake(self) -> None:
        """Start what may run, answer what is settled, set the timer."""
        if self._is_waking:  # a run that failed at once; the loop below goes on
            return
        self._is_waking = True
        num_inline = 0
        try:
            while (found := self._sharing.next_batch(time.monotonic_ns())) is not None:
                num_inline += _Run(self, self._of[found[0]], found[1]).begin()
                self._settle()
                if num_inline >= _MOST_INLINE:
                    self._loop.call_soon(self.wake)  # others of this loop have their turn first
                    break
        finally:
            self._is_waking = False
        self._settle()
        self._set_timer()

    def _settle(self) -> None:
        for each, version in self._of.items():
            for asked in each.take_settled():
                _tell(asked, version)
                if asked.id not in each.held:
                    asked.payload.over()
        for run in self.running:
            run.stop_if_abandoned()

    def _set_timer(self) -> None:
        wakes = [at for each in self._of if (at := each.next_wake_ns) is not None]
        if not wakes:
            return
        next_ns = min(wakes)
        if self._timer is not None:
            if self._timer_ns <= next_ns:
                return  # it looks again when it fires
            self._timer.cancel()
        self._timer_ns = next_ns
        delay_ns = max(0, next_ns - time.monotonic_ns())
        self._timer = self._loop.call_later(delay_ns / 1e9, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        now = time.monotonic_ns()
        for each in self._of:
            each.expire(now)
        self.wake()


class _Run:
    """One batch on its way through an Instance."""

    __slots__ = ("_batch", "_begun_ns", "_lanes", "_stop", "_version")

    def __init__(self, lanes: Lanes, version: served.Served, formed: batch.Batch) -> None:
        self._lanes = lanes
        self._version = version
        self._batch = formed
        self._begun_ns = 0
        self._stop: Callable[[], None] | None = None

    def begin(self) -> bool:
        """Merge the inputs and hand them over, or run them now; whether they were run now."""
        self._begun_ns = now = time.monotonic_ns()
        version = self._version
        if not version.lane.launch(self._batch, now):
            return False
        version.version.in_flight += 1
        outputs: rows.Arrays | None = None
        error: Exception | None = None
        try:
            inputs = rows.merge([_inputs_of(part) for part in self._batch.parts])
            size_bytes = sum([part.request.size_bytes for part in self._batch.parts])
            size = version.quick.short(size_bytes)
            if size is None:
                self._lanes.running.append(self)
                self._stop = version.instance.start(inputs, self._lanes.native, self._done)
                version.lane.handed(self._batch, time.monotonic_ns())
                return False
            outputs, _, _ = version.quick.run(size, version.instance.run, inputs)
        except Exception as fault:  # noqa: BLE001  the requests are told, whoever made it not begin
            error = fault
        self._end(outputs, error, self._begun_ns, is_inline=True)
        return True

    def stop_if_abandoned(self) -> None:
        """Nobody waits for any of it any more: the machine is free for others."""
        if self._stop is not None and self._batch.is_abandoned:
            self._stop()
            self._stop = None

    def _done(self, outputs: rows.Arrays | None, error: Exception | None) -> None:
        # Runs of a lane follow each other: this one began when the one before had ended.
        begun_ns = max(self._begun_ns, self._lanes.last_end_ns)
        self._lanes.last_end_ns = time.monotonic_ns()
        self._end(outputs, error, begun_ns, is_inline=False)

    def _end(
        self,
        outputs: rows.Arrays | None,
        error: Exception | None,
        begun_ns: int,
        *,
        is_inline: bool,
    ) -> None:
        now = time.monotonic_ns()
        version, parts = self._version, self._batch.parts
        version.version.in_flight -= 1
        if self in self._lanes.running:
            self._lanes.running.remove(self)
        if error is None:
            version.count_run(self._batch, begun_ns, now, is_inline=is_inline)
        version.lane.expire(now)  # whom the timer would have told in a moment did not wait either
        given_up = [part.request for part in parts if part.request.outcome]
        version.lane.finished(self._batch, self._outcome(outputs, error), now)
        for asked in given_up:
            version.meters.wasted.value += error is None
            if asked.id not in version.lane.held:
                asked.payload.over()
        self._lanes.wake()

    def _outcome(self, outputs: rows.Arrays | None, error: Exception | None) -> batch.Outcome:
        if error is not None:
            # A process that died is nobody's fault among those whom it was answering.
            return batch.Failed(error, is_shared=isinstance(error, errors.ModelNotReady))
        assert outputs is not None
        parts = self._batch.parts
        if len(parts) == 1 and parts[0].is_whole:
            return batch.Ran([outputs])
        at, results = 0, []
        for part in parts:
            results.append(rows.cut(outputs, at, at + part.rows))
            at += part.rows
        return batch.Ran(results, rows.counts(outputs))


def _inputs_of(part: batch.Part) -> rows.Arrays:
    inputs: rows.Arrays = part.request.payload.inputs
    return inputs if part.is_whole else rows.cut(inputs, part.begin, part.end)


def _tell(asked: request.Request, version: served.Served) -> None:
    """Give a settled request its answer or its error."""
    work: Work = asked.payload
    if asked.outcome == request.ANSWERED:
        version.count_answer(asked)
        work.end(asked.results[0] if len(asked.results) == 1 else rows.merge(asked.results))
        asked.results = []
    elif asked.outcome == request.FAILED:
        error = asked.error
        fault = error if isinstance(error, Exception) else errors.CastironError(str(error))
        work.fail(fault)
    elif asked.outcome == request.EXPIRED:
        work.fail(late())
    elif asked.outcome == request.CANCELLED:
        work.fail(status.ClientGone("the client left before its answer was ready"))
    else:
        work.fail(refusal(asked, asked.reason, 0))


_SAID = {
    request.FULL: (503, status.OVERLOADED, "the queue of this model is full; retry"),
    request.SHED: (503, status.OVERLOADED, ("the queue of this model is nearly full, and what is "
                   "left is for more important requests; retry")),
    request.TOO_LARGE: (413, status.INVALID, ("the request has more rows or bytes than this "
                        "model's limits allow; send fewer at once")),
    request.TOO_LATE: (503, status.OVERLOADED, ("the answer would not be ready in the time allowed; "
                       "retry or allow more")),
    request.CLOSED: (503, status.NOT_READY, "the model was closed; retry"),
}  # fmt: skip


def refusal(asked: request.Request, reason: str, retry_after_ns: int) -> status.Refusal:
    """The error for a reason of the scheduler."""
    if asked.outcome == request.EXPIRED:
        return late()
    code, outcome, text = _SAID[reason]
    wait_ns = retry.spread_ns(retry_after_ns, asked.id, _RETRY)
    return status.Refusal(code, text, outcome, reason=reason, retry_after_ns=wait_ns)


def late() -> status.Refusal:
    """The deadline has come."""
    return status.Refusal(504, "the answer was not ready in the time allowed", status.TIMEOUT)


def next_number() -> int:
    """A number for a request, different from all others of this process."""
    return next(_numbers)


def _nothing() -> None:
    pass


def _nothing_to_render(outputs: rows.Arrays) -> Any:
    raise AssertionError(f"the run is over: {list(outputs)}")
