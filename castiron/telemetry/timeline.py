"""What happened to one request and when: times of its stages, and what its spans are labelled with.

Every request has one, since its answer tells times as well; recording it is ``tracer.py``. Times
are nanoseconds of the monotonic clock, 0 for what did not happen. A record is the packed form that
goes to the exporter.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from castiron.telemetry import context

# Each stage lasts from the time before it to its own.
STAGES = ("read", "parse", "queue", "batch", "compute", "render")
_FIXED = struct.Struct("<I32s16s16sqQQQQQQQQQQI")
_NUM_TEXTS = 6


class Labels(NamedTuple):
    """What all requests to one version by one protocol have in common."""

    model: str = ""
    version: str = ""
    device: str = ""
    protocol: str = ""


_NOBODY = Labels()  # no version was chosen


class Timeline:
    """One request; whoever finishes a stage writes when."""

    __slots__ = (
        "accepted_ns", "batch_id", "batch_rows", "batched_ns", "computed_ns", "context",
        "ended_ns", "input_bytes", "labels", "outcome", "parsed_ns", "queued_ns", "read_ns",
        "rendered_ns",
    )  # fmt: skip

    def __init__(self, given: context.Context, accepted_ns: int) -> None:
        self.context = given
        self.accepted_ns = accepted_ns
        self.read_ns = self.parsed_ns = self.queued_ns = self.batched_ns = 0
        self.computed_ns = self.rendered_ns = self.ended_ns = 0
        self.batch_id = self.batch_rows = self.input_bytes = 0
        self.labels = _NOBODY
        self.outcome = ""

    def run(self, queued_ns: int, batched_ns: int, computed_ns: int) -> None:
        """It ran: until when it waited, then with its batch, and when its outputs were there."""
        self.queued_ns, self.batched_ns, self.computed_ns = queued_ns, batched_ns, computed_ns

    @property
    def ends(self) -> tuple[int, ...]:
        """When each stage was over, in the order of ``STAGES``; 0 for what did not happen."""
        return (
            self.read_ns, self.parsed_ns, self.queued_ns, self.batched_ns, self.computed_ns,
            self.rendered_ns,
        )  # fmt: skip

    def stages(self) -> Iterator[tuple[str, int, int]]:
        """(stage, begin, end) of what happened."""
        begin_ns = self.accepted_ns
        for stage, end_ns in zip(STAGES, self.ends, strict=True):
            if end_ns:
                yield stage, begin_ns, max(begin_ns, end_ns)
                begin_ns = max(begin_ns, end_ns)

    def server_timing(self, now_ns: int) -> bytes:
        """The value of the header of that name, in milliseconds; of a request that did not run,
        only how long it was here.
        """
        total_ms = (now_ns - self.accepted_ns) / 1e6
        if not self.computed_ns:
            return b"total;dur=%.3f" % total_ms
        begun_ns = self.batched_ns or self.parsed_ns
        queue_ms = (begun_ns - self.parsed_ns) / 1e6
        compute_ms = (self.computed_ns - begun_ns) / 1e6
        render_ms = (max(self.rendered_ns, self.computed_ns) - self.computed_ns) / 1e6
        return b"queue;dur=%.3f, compute;dur=%.3f, render;dur=%.3f, total;dur=%.3f" % (
            queue_ms, compute_ms, render_ms, total_ms,
        )  # fmt: skip


def pack(done: Timeline, epoch_offset_ns: int) -> bytes:
    """The record of a request that has ended; ``epoch_offset_ns`` turns its times into Unix's."""
    given = done.context
    texts = "\0".join((*done.labels, done.outcome, given.state)).encode("utf-8", "replace")
    return (
        _FIXED.pack(
            len(texts), given.trace_id, given.span_id, given.parent_id, epoch_offset_ns,
            done.accepted_ns, done.read_ns, done.parsed_ns, done.queued_ns, done.batched_ns,
            done.computed_ns, done.rendered_ns, done.ended_ns, done.batch_id, done.input_bytes,
            done.batch_rows,
        )
        + texts
    )  # fmt: skip


def unpack(message: bytes) -> Iterator[tuple[Timeline, int]]:
    """The timelines in a message of records put together, each with its offset to Unix time."""
    at = 0
    while at < len(message):
        size, trace_id, span_id, parent_id, offset_ns, *numbers = _FIXED.unpack_from(message, at)
        at += _FIXED.size
        texts = message[at : at + size].decode().split("\0", _NUM_TEXTS - 1)
        at += size
        given = context.Context(trace_id, span_id, is_sampled=True)
        given.parent_id = parent_id.rstrip(b"\0")
        made = Timeline(given, numbers[0])
        made.read_ns, made.parsed_ns, made.queued_ns, made.batched_ns = numbers[1:5]
        made.computed_ns, made.rendered_ns, made.ended_ns = numbers[5:8]
        made.batch_id, made.input_bytes, made.batch_rows = numbers[8:]
        *labels, made.outcome, given.state = texts
        made.labels = Labels(*labels)
        yield made, offset_ns
