"""Timelines as OTLP spans: the protobuf message ``ExportTraceServiceRequest``, written by hand.

Six fields of the format are all there is to it, and most bytes of one request's spans are the same;
generated classes take ten times as long. Field numbers are those of opentelemetry-proto 1.x,
``trace/v1/trace.proto``; its own classes judge the bytes in the tests. Sending is ``send.py``.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterable, Mapping

from castiron.telemetry import timeline

_SERVER, _INTERNAL = 2, 1  # kinds of spans
_FAULTS = frozenset({"failed", "timeout", "not_ready", "overloaded"})
_ERROR = b"\x7a\x02\x18\x02"  # status { code: ERROR }
_FLAGS = b"\x85\x01\x01\x00\x00\x00"  # flags: sampled


def request(
    done: Iterable[tuple[timeline.Timeline, int]], resource: Mapping[str, str | int]
) -> tuple[bytes, int]:
    """The message for these timelines with their offsets to Unix time, and how many spans."""
    encoded: list[bytes] = []
    for each, offset_ns in done:
        encoded.extend(_field(2, span) for span in _spans(each, offset_ns))
    about = _field(1, b"".join(_attribute(1, *pair) for pair in resource.items()))
    scope = _field(1, _field(1, b"castiron"))
    of_scope = _field(2, scope + b"".join(encoded))
    return _field(1, about + of_scope), len(encoded)


def _spans(done: timeline.Timeline, offset_ns: int) -> Iterable[bytes]:
    given = done.context
    trace_id = bytes.fromhex(given.trace_id.decode())
    root_id = bytes.fromhex(given.span_id.decode())
    common = _field(1, trace_id) + (_field(3, given.state.encode()) if given.state else b"")
    labels = _labels(done)
    head = common + _field(2, root_id)
    if given.parent_id:
        head += _field(4, bytes.fromhex(given.parent_id.decode()))
    name = f"infer {done.labels.model}" if done.labels.model else "infer"
    tail = labels + (_ERROR if done.outcome in _FAULTS else b"") + _FLAGS
    yield (
        head + _timed(name, _SERVER, done.accepted_ns + offset_ns, done.ended_ns + offset_ns) + tail
    )
    below = common + _field(4, root_id)
    tail = labels + _FLAGS
    for stage, begin_ns, end_ns in done.stages():
        span_id = _field(2, random.getrandbits(64).to_bytes(8))
        yield (
            below + span_id + _timed(stage, _INTERNAL, begin_ns + offset_ns, end_ns + offset_ns)
            + tail
        )  # fmt: skip


def _timed(name: str, kind: int, begin_ns: int, end_ns: int) -> bytes:
    return b"".join((
        _field(5, name.encode()), b"\x30", bytes((kind,)),
        b"\x39", begin_ns.to_bytes(8, "little"), b"\x41", end_ns.to_bytes(8, "little"),
    ))  # fmt: skip


def _labels(done: timeline.Timeline) -> bytes:
    labels: dict[str, str | int] = {
        "castiron.model": done.labels.model,
        "castiron.version": done.labels.version,
        "castiron.device": done.labels.device,
        "castiron.outcome": done.outcome,
        "castiron.protocol": done.labels.protocol,
        "castiron.input_bytes": done.input_bytes,
        "castiron.batch_id": done.batch_id,
        "castiron.batch_rows": done.batch_rows,
    }
    return b"".join(_attribute(9, name, value) for name, value in labels.items() if value)


def _attribute(number: int, name: str, value: str | int) -> bytes:
    content = _field(1, value.encode()) if isinstance(value, str) else b"\x18" + _varint(value)
    return _field(number, _field(1, name.encode()) + _field(2, content))


def _field(number: int, content: bytes) -> bytes:
    """A field of bytes, a string or a message."""
    size = len(content)
    if size < 0x80:
        return bytes((number << 3 | 2, size)) + content
    return bytes((number << 3 | 2,)) + _varint(size) + content


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def num_rejected(answer: bytes) -> int:
    """Spans that the receiver did not take, by its ``ExportTraceServiceResponse``."""
    if len(answer) < 4 or answer[0] != 0x0A or answer[2] != 0x08:  # partial_success.rejected_spans
        return 0
    value = shift = 0
    for byte in answer[3:]:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    return value


def resource(version: str) -> dict[str, str | int]:
    """What is said once about all spans of this process."""
    return {
        "service.name": "castiron",
        "service.version": version,
        "service.instance.id": f"{os.uname().nodename}-{os.getppid()}",
        "process.pid": os.getppid(),
    }
