"""W3C Trace Context: which trace a request belongs to, and whether it is recorded.

``traceparent`` and ``tracestate`` as they come in a request's head, and as they go out in its
answer. What happened when is ``timeline.py``.
"""

from __future__ import annotations

import random
import re

_PARENT = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.DOTALL)
_NO_TRACE = b"0" * 32
_NO_SPAN = b"0" * 16
_MOST_STATE_BYTES = 512
_BITS = 64
_LOW = (1 << _BITS) - 1


class Context:
    """A trace, the span above, and the flags that came with them; ids are lower-case hex."""

    __slots__ = ("is_sampled", "parent_id", "span_id", "state", "trace_id")

    def __init__(self, trace_id: bytes, span_id: bytes, *, is_sampled: bool) -> None:
        self.trace_id = trace_id
        self.span_id = span_id
        self.is_sampled = is_sampled
        self.parent_id = b""
        self.state = ""

    def outgoing(self) -> bytes:
        """The value of ``traceparent`` for whom we call, and of ``traceresponse`` for callers."""
        return b"00-%b-%b-0%d" % (self.trace_id, self.span_id, self.is_sampled)


class Sampler:
    """Chooses: as the caller did, else this share of all requests.

    The choice without a caller depends on the trace's id alone, as OpenTelemetry's
    ``TraceIdRatioBased`` makes it, so that several servers choose alike.
    """

    __slots__ = ("_bits", "_bound", "_is_recording")

    def __init__(self, ratio: float, *, is_recording: bool) -> None:
        assert 0.0 <= ratio <= 1.0, ratio
        self._bits = random.Random().getrandbits  # its own, so that no two processes agree
        self._bound = round(ratio * (1 << _BITS)) if is_recording else 0
        self._is_recording = is_recording

    def begin(self, parent: bytes | None = None, state: bytes | None = None) -> Context:
        """The context of a request, from the two headers that it may have."""
        bits = self._bits(3 * _BITS) | 1 << 2 * _BITS | 1  # no id is all zero
        text = b"%048x" % bits
        span_id, own_trace_id = text[:16], text[16:]
        found = None if parent is None else _PARENT.fullmatch(parent)
        if found is None or not _is_valid(*found.group(1, 2, 3, 5)):
            is_sampled = bits & _LOW < self._bound
            return Context(own_trace_id, span_id, is_sampled=is_sampled)
        is_wanted = bool(int(found[4], 16) & 1)
        made = Context(found[2], span_id, is_sampled=is_wanted and self._is_recording)
        made.parent_id = found[3]
        if state is not None and len(state) <= _MOST_STATE_BYTES and state.isascii():
            made.state = state.decode().replace("\0", "")
        return made


def _is_valid(version: bytes, trace_id: bytes, span_id: bytes, more: bytes | None) -> bool:
    """Whether the parts of a ``traceparent`` name a span; later versions may say more."""
    if version == b"ff" or (version == b"00" and more is not None):
        return False
    return trace_id != _NO_TRACE and span_id != _NO_SPAN
