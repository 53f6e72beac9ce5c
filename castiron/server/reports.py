"""What answers tell about themselves and the machine: headers over HTTP, metadata over gRPC.

What is the same for all answers of a second is made once in it. ``life.py`` calls ``tick``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from castiron.server import meters
from castiron.server.http import exchange
from castiron.telemetry import timeline as timelines

Headers = list[tuple[bytes, bytes]]


class Reports:
    """The headers of one process; none with ``is_terse``."""

    __slots__ = ("_busy_s", "_counted", "_is_terse", "_lines", "_memory", "_now_s", "_same")

    def __init__(
        self,
        counted: meters.Meters,
        memory: Callable[[], Mapping[str, float]],
        *,
        is_terse: bool,
    ) -> None:
        self._counted = counted
        self._memory = memory
        self._is_terse = is_terse
        self._now_s = 0.0
        self._busy_s = counted.busy.value
        self._same: Headers = []
        self._lines = b""
        self._set(0.0)

    def tick(self, now_s: float) -> None:
        """A second has passed, or about that: what was the device's share of it?"""
        passed_s, self._now_s = now_s - self._now_s, now_s
        busy_s, self._busy_s = self._counted.busy.value - self._busy_s, self._counted.busy.value
        self._set(min(1.0, busy_s / passed_s) if passed_s > 0 else 0.0)

    def _set(self, utilization: float) -> None:
        fragmentation = self._memory().get("fragmentation_ratio", 0.0)
        self._same = [
            (b"x-device-utilization", b"%.3f" % utilization),
            (b"x-memory-fragmentation", b"%.3f" % fragmentation),
        ]
        self._lines = exchange.written(self._same)

    def headers(self, timeline: timelines.Timeline) -> Headers:
        """What goes with the answer to this request, or with its refusal."""
        if self._is_terse:
            return []
        given = timeline.context
        made = [*self._same, (b"x-trace-id", given.trace_id)]
        if given.is_sampled:
            made.append((b"traceresponse", given.outgoing()))
        made.append((b"server-timing", timeline.server_timing(time.monotonic_ns())))
        return made

    def lines(self, timeline: timelines.Timeline) -> bytes:
        """The same as it is written in the head of an answer."""
        if self._is_terse:
            return b""
        given = timeline.context
        timing = timeline.server_timing(time.monotonic_ns())
        traced = b"traceresponse: %b\r\n" % given.outgoing() if given.is_sampled else b""
        return b"%bx-trace-id: %b\r\n%bserver-timing: %b\r\n" % (
            self._lines, given.trace_id, traced, timing,
        )  # fmt: skip

    def metadata(self, timeline: timelines.Timeline) -> list[tuple[str, str]]:
        """The same for gRPC."""
        return [(name.decode(), value.decode()) for name, value in self.headers(timeline)]
