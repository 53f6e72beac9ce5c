"""The lane of one version: what may come in, what runs next, and how each request ends.

Driven by events, with the time passed in; it starts nothing and waits for nothing. After any event
the caller hands out ``take_settled()``, starts what ``next_batch`` gives until it gives None, and
calls ``expire`` at ``next_wake_ns``. ``waiting.py`` has the order, ``sharing.py`` many lanes.
"""

from __future__ import annotations

from castiron.scheduler import estimate, limit, request, settings, shed, timers, waiting
from castiron.scheduler.batch import Batch, Failed, Outcome, Part, Ran
from castiron.scheduler.request import Admitted, Refused, Request

# What was learnt is believed less for each while without a run: so long, and so many runs.
_DOUBT_NS = 10 * settings.SECOND
_DOUBT_RUNS = 4
_MOST_HALVINGS = 60


class Lane:
    """Requests of one version, from their coming to their one outcome.

    An admitted request is in ``take_settled()`` exactly once. Bounds count what is held: waiting,
    running, or given up while its run goes on.
    """

    __slots__ = (
        "_batches", "_hold_ns", "_last_end_ns", "_learnt_ns", "_settings", "_settled", "_timers",
        "_waiting", "costs", "held", "held_bytes", "held_rows", "high_water", "is_closed",
        "is_merging", "limit", "shedder",
    )  # fmt: skip

    def __init__(self, given: settings.Lane) -> None:
        self._settings = given
        self.held: dict[int, Request] = {}
        self._waiting = waiting.Waiting(given.num_classes, given.ageing_ns)
        self._timers = timers.Timers(self.held)
        self._batches: list[Batch] = []
        self._settled: list[Request] = []
        self._hold_ns = 0
        self._last_end_ns = 0
        self._learnt_ns = 0
        self.shedder = shed.Shedder(given.marks, given.num_classes)
        self.limit = limit.BatchLimit(given)
        self.costs = estimate.Estimate()
        self.held_rows = 0
        self.held_bytes = 0
        self.high_water = 0  # the most requests ever held at once
        self.is_closed = False
        self.is_merging = True

    # What can be read at any time.

    @property
    def num_waiting(self) -> int:
        """Parts that wait; as many requests, except for those that were split."""
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        """Batches under way."""
        return len(self._batches)

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits and nothing runs."""
        return not self._batches and not self._waiting

    @property
    def fill(self) -> float:
        """How full the lane is: what is held as a share of the tightest bound."""
        given = self._settings
        return max(
            len(self.held) / given.max_requests,
            self.held_rows / given.max_rows,
            self.held_bytes / given.max_bytes,
        )

    def urgency(self, now: int) -> tuple[int, int] | None:
        """How urgent the next batch is, the lesser the more; None when there is none to start."""
        first = self._waiting.first
        if first is None or len(self._batches) >= self._settings.concurrency:
            return None
        if self._holds(first, now):
            return None
        return self._waiting.urgency(first.request, now)

    @property
    def next_wake_ns(self) -> int | None:
        """When ``expire`` and ``next_batch`` must be called, if no other event comes before."""
        due_ns = self._timers.next_ns
        if self._hold_ns and self._waiting:
            return self._hold_ns if due_ns is None else min(due_ns, self._hold_ns)
        return due_ns

    def ready_ns(self, asked: Request, now: int) -> int:
        """When the request would be answered if it came now; ``now`` if nothing is known yet."""
        if not self.costs.num_seen:
            return now
        rows, ahead = asked.rows, 0
        if self._waiting:
            ahead = self._waiting.num_ahead(self._waiting.urgency(asked, now))
            rows += ahead * self._waiting.rows // len(self._waiting)
        each = self.limit.rows if self.is_merging else max(1, rows // (ahead + 1))
        most_runs = None if self._settings.is_row_wise else ahead + 1
        return now + self._running_ns(now) + self.costs.total_ns(rows, each, most_runs)

    def drain_ns(self, fill: float) -> int:
        """How long it takes, about, until the lane is only so full, if nothing more comes."""
        rows = int(self.held_rows * max(0.0, 1 - fill / max(self.fill, 1e-9)))
        most_runs = None if self._settings.is_row_wise else len(self.held)
        return self.costs.total_ns(rows, self.limit.rows, most_runs)

    # Coming in.

    def submit(self, asked: Request, now: int) -> Admitted | Refused:
        """Take the request in, or settle it with a reason at once."""
        assert asked.id not in self.held, f"request {asked.id} is held already"
        assert asked.rows >= 0 <= asked.priority, asked
        self.expire(now)
        ready_ns = self.ready_ns(asked, now)
        refused = self._refusal(asked, ready_ns, now)
        if refused is not None:
            return refused
        if not self._batches and not self._waiting:
            self._hold_ns = 0
        self.held[asked.id] = asked
        self.high_water = max(self.high_water, len(self.held))
        self.held_rows += asked.rows
        self.held_bytes += asked.size_bytes
        self._waiting.add(Part(asked, 0, asked.rows), now)
        self._set_timer(asked, now)
        self._timers.clear()
        return Admitted(ready_ns)

    def _refusal(self, asked: Request, ready_ns: int, now: int) -> Refused | None:
        if now >= asked.deadline_ns:
            asked.settle(request.EXPIRED)
            return Refused(request.TOO_LATE, 0)
        if self.is_closed:
            return _refuse(asked, request.CLOSED, 0)
        if self._is_too_large(asked):
            return _refuse(asked, request.TOO_LARGE, 0)
        is_shut = self.shedder.is_shut(asked.priority, self.fill)
        if is_shut or not self._fits(asked):
            reason = request.SHED if is_shut and self._fits(asked) else request.FULL
            low = self.shedder.low_mark(asked.priority)
            return _refuse(asked, reason, max(1, self.drain_ns(low)))
        # An idle lane tries, whatever it expects: it would never learn that it got faster.
        if not self.is_idle and self._is_hopeless(asked, ready_ns - now, now):
            return _refuse(asked, request.TOO_LATE, ready_ns - asked.deadline_ns)
        return None

    def _is_too_large(self, asked: Request) -> bool:
        given = self._settings
        may_run = given.is_row_wise or given.runs_oversize
        if asked.rows > given.max_batch_rows and not may_run:
            return True
        return asked.rows > given.max_rows or asked.size_bytes > given.max_bytes

    def _fits(self, asked: Request) -> bool:
        given = self._settings
        return (
            len(self.held) < given.max_requests
            and self.held_rows + asked.rows <= given.max_rows
            and self.held_bytes + asked.size_bytes <= given.max_bytes
        )

    # Going on.

    def next_batch(self, now: int) -> Batch | None:
        """The batch to run now; None when nothing waits, or all that may run does.

        Its members are the caller's to run, and then to report by ``finished``.
        """
        self.expire(now)
        if len(self._batches) >= self._settings.concurrency:
            return None
        self._drop_hopeless(now)
        first = self._waiting.first
        if first is None or self._holds(first, now):
            return None
        given = self._settings
        parts = self._waiting.take(self.limit.rows, cuts=given.is_row_wise, merges=self.is_merging)
        for part in parts:
            part.request.running += 1
        formed = Batch(parts, now)
        self._batches.append(formed)
        return formed

    def launch(self, formed: Batch, now: int, free_ns: int = 0) -> bool:
        """The batch is about to be put together; parts that nobody waits for leave it.

        For callers that hold a batch between ``next_batch`` and its run, and who want launch
        latency to count; ``free_ns`` is since when there was nothing else for it to wait for.
        False: nobody is left, the batch is over, and must not be run.
        """
        self.expire(now)
        formed.launched_ns = now
        formed.launch_ns = max(0, now - max(formed.formed_ns, self._last_end_ns, free_ns))
        gone = [part for part in formed.parts if part.request.outcome]
        if not gone:
            return True
        formed.parts = [part for part in formed.parts if not part.request.outcome]
        formed.rows -= sum(part.rows for part in gone)
        for part in gone:
            self._leave(part)
        if not formed.parts:
            self._batches.remove(formed)
        return bool(formed.parts)

    def handed(self, formed: Batch, now: int) -> None:
        """The batch was put together and handed to whoever runs it: what that took counts too."""
        formed.launch_ns += max(0, now - formed.launched_ns)

    def finished(self, formed: Batch, outcome: Outcome, now: int) -> None:
        """The run is over, well or not; its members are settled or wait for another run.

        Of a failed batch the halves run again, and their halves, until the request to blame is
        alone. A run that gives another number of rows than it was given fails, and if it was
        merged, this lane merges no more.
        """
        self.expire(now)
        self._batches.remove(formed)
        if isinstance(outcome, Ran):
            self._learn(formed, now)
            self._ran(formed, outcome, now)
        elif outcome.is_shared or len(formed.parts) == 1:
            for part in formed.parts:
                self._fail(part, outcome)
        else:
            self._bisect(formed, now)
        self._last_end_ns = now
        if self._settings.max_hold_ns:
            self._hold_ns = now + self._settings.max_hold_ns if self._waiting else 0

    def _drop_hopeless(self, now: int) -> None:
        """Refuse what could not be ready in time even alone, so that others can be."""
        while len(self._waiting) > 1:
            first = self._waiting.first
            assert first is not None
            if not self._is_hopeless(first.request, self.costs.run_ns(first.rows), now):
                return
            self._settle(first.request, request.REFUSED, request.TOO_LATE)

    def _is_hopeless(self, asked: Request, needs_ns: int, now: int) -> bool:
        """Whether what takes so long would be late, by runs that were many and not long ago.

        What is expected halves for each while without a run: how the machine is now, nobody knows.
        """
        if now + needs_ns <= asked.deadline_ns or not self._settings.refuses_late:
            return False
        if not self.costs.is_sure:
            return False
        while_ns = max(_DOUBT_NS, _DOUBT_RUNS * self.costs.run_ns(self.limit.rows))
        num_halvings = min((now - self._learnt_ns) // while_ns, _MOST_HALVINGS)
        return now + (needs_ns >> num_halvings) > asked.deadline_ns

    def _holds(self, first: Part, now: int) -> bool:
        """Whether a batch that is not full is held back for what may come."""
        if now >= self._hold_ns or first.key is None or not self.is_merging:
            return False
        most = self.limit.rows
        if self._waiting.mate_rows(first, most) >= most:
            return False
        return first.request.deadline_ns - self._hold_ns > self.costs.run_ns(most)

    # How a batch ended.

    def _learn(self, formed: Batch, now: int) -> None:
        since_ns = formed.launched_ns or formed.formed_ns
        self._learnt_ns = now
        self.costs.observe(formed.rows, now - max(since_ns, self._last_end_ns))
        queue_ns = 0
        for part in formed.parts:
            if part.begin == 0 and part.cohort is None:  # else it waited for runs of its own
                queue_ns = max(queue_ns, formed.formed_ns - part.request.arrival_ns)
        self.limit.observe(formed.launch_ns, queue_ns, self.costs)

    def _ran(self, formed: Batch, ran: Ran, now: int) -> None:
        parts = formed.parts
        assert len(ran.results) == len(parts), (len(ran.results), parts)
        is_alone = len(parts) == 1 and parts[0].is_whole
        if not is_alone and any(count != formed.rows for count in ran.row_counts):
            self._distrust(formed, ran, now)
            return
        for part, result in zip(parts, ran.results, strict=True):
            if isinstance(result, Failed):
                self._fail(part, result)
            else:
                self._end(part, result)

    def _distrust(self, formed: Batch, ran: Ran, now: int) -> None:
        """Outputs cannot be told apart by rows: run each alone, and merge nothing from now on."""
        if len(formed.parts) == 1:
            found = sorted(set(ran.row_counts))
            self._fail(formed.parts[0], Failed(f"{formed.rows} rows went in, {found} came out"))
            return
        self.is_merging = False
        for part in formed.parts:
            self._again([part], now)

    def _bisect(self, formed: Batch, now: int) -> None:
        middle = len(formed.parts) // 2
        self._again(formed.parts[:middle], now)
        self._again(formed.parts[middle:], now)

    def _again(self, parts: list[Part], now: int) -> None:
        """Let parts wait for another run, which they share with no others."""
        cohort = object()
        for part in parts:
            self._leave(part)
            if not part.request.outcome:
                part.cohort = cohort
                self._waiting.add(part, now)
                self._set_timer(part.request, now)

    def _end(self, part: Part, result: object) -> None:
        asked = part.request
        if not asked.outcome:
            if part.end - part.begin == asked.rows:
                asked.results.append(result)
                self._settle(asked, request.ANSWERED)
            else:
                self._end_range(part, result)
        self._leave(part)

    def _end_range(self, part: Part, result: object) -> None:
        asked = part.request
        part.result = result
        asked.ended.append(part)
        if not asked.waiting and asked.running == 1:
            asked.ended.sort(key=_begin)
            asked.results = [ended.result for ended in asked.ended]
            self._settle(asked, request.ANSWERED)

    def _fail(self, part: Part, failed: Failed) -> None:
        asked = part.request
        if not asked.outcome:
            self._settle(asked, request.FAILED, error=failed.error)
        self._leave(part)

    # How a request ends.

    def cancel(self, request_id: int, now: int) -> bool:
        """Its client left: it will not run, or if it runs, its result is dropped.

        False when it was settled before.
        """
        self.expire(now)
        asked = self.held.get(request_id)
        if asked is None or asked.outcome:
            return False
        self._settle(asked, request.CANCELLED)
        return True

    def expire(self, now: int) -> None:
        """Settle those whose deadline has come, waiting or running; let the others rise."""
        if now >= self._hold_ns:
            self._hold_ns = 0
        while (asked := self._timers.due(now)) is not None:
            if now >= asked.deadline_ns:
                self._settle(asked, request.EXPIRED)
            else:
                self._waiting.raise_up(asked, now)
                self._set_timer(asked, now)

    def close(self) -> None:
        """Take nothing more in; what is held goes on."""
        self.is_closed = True

    def give_up(self) -> None:
        """Close, and refuse all that is held; runs under way are reported as ever."""
        self.close()
        for asked in list(self.held.values()):
            if not asked.outcome:
                self._settle(asked, request.REFUSED, request.CLOSED)

    def take_settled(self) -> list[Request]:
        """The requests that were settled since the last call, each of which was admitted."""
        if not self._settled:
            return []
        settled, self._settled = self._settled, []
        return settled

    def _settle(self, asked: Request, outcome: str, reason: str = "", error: object = None) -> None:
        asked.settle(outcome, reason, error)
        self._settled.append(asked)
        while asked.waiting:
            self._waiting.remove(asked.waiting[-1])
        if not asked.running:
            self._let_go(asked)

    def _leave(self, part: Part) -> None:
        """The part is in no batch any more."""
        asked = part.request
        asked.running -= 1
        if asked.outcome and not asked.running:
            self._let_go(asked)

    def _let_go(self, asked: Request) -> None:
        del self.held[asked.id]
        self.held_rows -= asked.rows
        self.held_bytes -= asked.size_bytes

    def _set_timer(self, asked: Request, now: int) -> None:
        rises = self._waiting.rises_ns(asked, now) if asked.waiting else asked.deadline_ns
        self._timers.add(rises, asked)

    def _running_ns(self, now: int) -> int:
        """How long until one more batch may run."""
        if len(self._batches) < self._settings.concurrency:
            return 0
        total_ns = 0
        for formed in self._batches:
            total_ns += self.costs.run_ns(formed.rows)
        begun_ns = max(self._last_end_ns, self._batches[0].formed_ns)
        return max(0, total_ns - (now - begun_ns))

    def check(self) -> None:
        """Assert what holds between any two events; it looks at everything held."""
        given, held = self._settings, self.held.values()
        self._waiting.check()
        self._timers.check()
        assert len(held) <= given.max_requests
        assert self.held_rows == sum(asked.rows for asked in held) <= given.max_rows
        assert self.held_bytes == sum(asked.size_bytes for asked in held) <= given.max_bytes
        assert len(self._batches) <= given.concurrency
        running = [part.request for formed in self._batches for part in formed.parts]
        for asked in held:
            assert asked.running == running.count(asked), asked
            assert asked.running or not asked.outcome, "a settled request is held for nothing"
            assert asked.running or asked.waiting, "a request neither waits nor runs"
        assert all(asked.id in self.held for asked in running), "a running request was let go"
        waits = [part.request for part in self._waiting]
        assert not any(asked.outcome for asked in waits), "a settled request waits"
        assert all(asked.id in self.held for asked in waits)


def _begin(part: Part) -> int:
    return part.begin


def _refuse(asked: Request, reason: str, retry_after_ns: int) -> Refused:
    asked.settle(request.REFUSED, reason)
    return Refused(reason, retry_after_ns)
