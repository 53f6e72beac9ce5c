"""Traces from a request's head to a real OTLP receiver: contexts, spans, loss, bounds."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import subprocess
import time
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from castiron import errors
from castiron.telemetry import context, families, metrics, timeline, tracer
from castiron.telemetry.exporters import otlp, send, spans
from tests.telemetry import receiver

_TRACE, _SPAN = b"0af7651916cd43dd8448eb211c80319c", b"b7ad6b7169203331"
_PARENT = b"00-" + _TRACE + b"-" + _SPAN + b"-01"


@pytest.mark.parametrize(
    "header",
    [
        b"", b"00", _PARENT[:-1], _PARENT.upper(), _PARENT + b"-more", b"ff" + _PARENT[2:],
        b"00-" + b"0" * 32 + b"-" + _SPAN + b"-01", b"00-" + _TRACE + b"-" + b"0" * 16 + b"-01",
        _PARENT.replace(b"-", b"_"), _PARENT + b"\n", b"01" + _PARENT[2:] + b"x",
    ],
)  # fmt: skip
def test_a_malformed_parent_is_as_none(header: bytes) -> None:
    made = context.Sampler(1.0, is_recording=True).begin(header, b"a=1")
    assert made.trace_id != _TRACE
    assert (made.parent_id, made.state) == (b"", "")
    assert made.is_sampled


@given(st.binary(max_size=80), st.binary(max_size=40))
def test_any_header_makes_a_context_that_others_can_read(parent: bytes, state: bytes) -> None:
    sampler = context.Sampler(0.5, is_recording=True)
    made = sampler.begin(parent, state)
    again = sampler.begin(made.outgoing())
    assert (again.trace_id, again.parent_id) == (made.trace_id, made.span_id)
    assert again.is_sampled == made.is_sampled


def test_the_caller_decides_and_else_the_ratio() -> None:
    sampler = context.Sampler(0.25, is_recording=True)
    assert sampler.begin(_PARENT).is_sampled
    assert sampler.begin(_PARENT).outgoing().startswith(b"00-" + _TRACE)
    assert not sampler.begin(_PARENT[:-1] + b"0").is_sampled
    assert sampler.begin(b"cc" + _PARENT[2:] + b"-later").is_sampled
    share = sum(sampler.begin().is_sampled for _ in range(4000)) / 4000
    assert 0.2 < share < 0.3
    assert not context.Sampler(1.0, is_recording=False).begin(_PARENT).is_sampled
    assert not any(context.Sampler(0.0, is_recording=True).begin().is_sampled for _ in range(99))


def _done(traced: tracer.Tracer, index: int = 0, parent: bytes | None = None) -> timeline.Timeline:
    begin_ns = time.monotonic_ns()
    made = traced.begin(begin_ns, parent, b"vendor=1")
    made.labels = timeline.Labels("maße", "3", "cpu", "rest")
    made.read_ns, made.parsed_ns, made.queued_ns, made.batched_ns, made.computed_ns = (
        begin_ns + step * 1000 for step in range(1, 6)
    )
    made.rendered_ns = begin_ns + 6000
    made.batch_id, made.batch_rows, made.input_bytes = 1000 + index, 4, 1 << 20
    return made


class _Running:
    """An exporter's process and the tracer before it."""

    def __init__(self, endpoint: str) -> None:
        self.fates = tracer.Fates(metrics.Metrics().family(families.SPANS))
        self.process, channel = otlp.start(endpoint, "0.0")
        self.tracer = tracer.Tracer(1.0, tracer.Spool(channel, self.fates))


@contextlib.asynccontextmanager
async def _exporting(endpoint: str) -> AsyncIterator[_Running]:
    running = _Running(endpoint)
    try:
        yield running
    finally:
        await asyncio.to_thread(running.tracer.close)
        assert await asyncio.to_thread(running.process.wait, 30) == 0


@pytest.mark.parametrize("kind", [*receiver.KINDS])
def test_each_stage_arrives_as_a_span_below_its_request(kind: str) -> None:
    async def run(received: receiver.Received) -> None:
        async with _exporting(received.endpoint) as running:
            done = _done(running.tracer, parent=_PARENT)
            running.tracer.end(done, "ok", done.accepted_ns + 7000)
            failed = _done(running.tracer)
            failed.rendered_ns = failed.computed_ns = 0
            running.tracer.end(failed, "failed", failed.accepted_ns + 9000)
            await _arrived(received, 12)

    before_ns = time.time_ns()
    with receiver.KINDS[kind]() as received:
        asyncio.run(run(received))
        assert received.resources[0]["service.name"] == "castiron"
        first = [span for span in received.spans if span.trace_id.hex().encode() == _TRACE]
        root = first[0]
        assert (root.name, root.kind) == ("infer maße", root.SPAN_KIND_SERVER)
        assert root.parent_span_id.hex().encode() == _SPAN
        assert root.trace_state == "vendor=1"
        assert root.end_time_unix_nano - root.start_time_unix_nano == 7000
        assert before_ns <= root.start_time_unix_nano <= time.time_ns()
        assert [span.name for span in first[1:]] == list(timeline.STAGES)
        for before, span in zip([root, *first[1:]], first[1:], strict=False):
            assert span.parent_span_id == root.span_id
            assert span.end_time_unix_nano - span.start_time_unix_nano == 1000
            if before is not root:
                assert span.start_time_unix_nano == before.end_time_unix_nano
        for span in first:
            assert receiver.values(span.attributes) == {
                "castiron.model": "maße", "castiron.version": "3", "castiron.device": "cpu",
                "castiron.outcome": "ok", "castiron.protocol": "rest",
                "castiron.input_bytes": 1 << 20, "castiron.batch_id": 1000,
                "castiron.batch_rows": 4,
            }  # fmt: skip
        second = [span for span in received.spans if span.trace_id != root.trace_id]
        assert [span.name for span in second[1:]] == ["read", "parse", "queue", "batch"]
        assert not second[0].parent_span_id
        assert second[0].status.code == second[0].status.STATUS_CODE_ERROR
        assert root.status.code == root.status.STATUS_CODE_UNSET
        assert len({span.span_id for span in received.spans}) == len(received.spans) == 12


async def _arrived(received: receiver.Received, count: int) -> None:
    """Wait until so many spans have: at its end an exporter tries but for a while."""
    async with asyncio.timeout(60):
        while received.count < count:  # noqa: ASYNC110  a receiver has no events
            await asyncio.sleep(0.02)


async def _send(running: _Running, count: int, at_once: int) -> None:
    """Let so many requests end, giving way to the loop now and then as a server does."""
    for index in range(count):
        done = _done(running.tracer, index)
        running.tracer.end(done, "ok", done.accepted_ns + 7000)
        if index % at_once == 0:
            await asyncio.sleep(0)


@pytest.mark.parametrize(
    "kind, count",
    [
        ("http", 4000), ("grpc", 4000),
        pytest.param("http", 100_000, marks=pytest.mark.slow),
        pytest.param("grpc", 100_000, marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_of_many_traced_requests_nothing_is_lost(kind: str, count: int) -> None:
    spans_each = 1 + len(timeline.STAGES)

    async def run(received: receiver.Received) -> _Running:
        async with _exporting(received.endpoint) as running:
            await _send(running, count, 50)
            await _arrived(received, int(0.999 * spans_each * count))
        return running

    with receiver.KINDS[kind]() as received:
        received.keeps = False
        running = asyncio.run(run(received))
        assert received.count + spans_each * running.fates.dropped.value == spans_each * count
        assert running.fates.exported.value + running.fates.dropped.value == count
        assert running.fates.dropped.value <= count / 1000
        assert received.num_calls < count / 20


@pytest.mark.parametrize("kind", [*receiver.KINDS])
def test_a_busy_receiver_is_asked_again(kind: str) -> None:
    async def run(received: receiver.Received) -> _Running:
        async with _exporting(received.endpoint) as running:
            await _send(running, 10, 1)
            await _arrived(received, 70)
        return running

    with receiver.KINDS[kind]() as received:
        received.refusals = [503, 429]
        running = asyncio.run(run(received))
        assert received.count == 70
        assert running.fates.exported.value == 10


def test_a_receiver_that_was_away_gets_what_came_meanwhile_once_it_is_back() -> None:
    async def run(received: receiver.Received) -> _Running:
        async with _exporting(received.endpoint) as running:
            await _send(running, 100, 1)
            await _arrived(received, 700)
            received.is_away = True
            await _send(running, 200, 1)
            await asyncio.sleep(1)
            assert received.count == 700
            received.is_away = False
            await _send(running, 100, 1)
            await _arrived(received, 2800)
        return running

    with receiver.over_http() as received:
        running = asyncio.run(run(received))
    assert received.count == 7 * 400
    assert (running.fates.exported.value, running.fates.dropped.value) == (400, 0)


def test_without_a_receiver_requests_go_on_and_the_loss_is_counted() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]

    async def run() -> _Running:
        async with _exporting(f"http://127.0.0.1:{port}") as running:
            await _send(running, 50, 1)
            await asyncio.sleep(1)  # the exporter tries while its server ends
            await _send(running, 50, 1)
        return running

    begun_s = time.monotonic()
    running = asyncio.run(run())
    assert time.monotonic() - begun_s < 30
    assert running.fates.dropped.value == 100


def test_an_exporter_that_was_killed_costs_its_records_only() -> None:
    async def run(endpoint: str) -> _Running:
        running = _Running(endpoint)
        running.process.kill()
        running.process.wait()
        await _send(running, 500, 1)
        await asyncio.sleep(0.3)
        running.tracer.close()
        return running

    with receiver.over_http() as received:
        running = asyncio.run(run(received.endpoint))
    assert running.fates.dropped.value == 500


def test_after_an_exporter_that_was_killed_another_begins() -> None:
    async def run(endpoint: str) -> tuple[tracer.Fates, list[subprocess.Popen[bytes]]]:
        fates = tracer.Fates(metrics.Metrics().family(families.SPANS))
        processes: list[subprocess.Popen[bytes]] = []

        def start() -> socket.socket:
            process, channel = otlp.start(endpoint, "0.0")
            processes.append(process)
            return channel

        traced = tracer.Tracer(1.0, tracer.Spool(start(), fates, start))
        processes[0].kill()
        processes[0].wait()
        num_sent = num_after = 0
        while num_after < 20 and num_sent < 1000:
            done = _done(traced, num_sent)
            traced.end(done, "ok", done.accepted_ns + 7000)
            num_sent += 1
            num_after += len(processes) > 1
            await asyncio.sleep(0.05)
        await asyncio.to_thread(traced.close)
        assert fates.exported.value + fates.dropped.value == num_sent
        return fates, processes

    with receiver.over_http() as received:
        fates, processes = asyncio.run(run(received.endpoint))
        assert [process.wait(30) for process in processes] == [-signal.SIGKILL, 0]
        assert fates.exported.value >= 10
        assert received.count == 7 * fates.exported.value


def test_what_an_exporter_that_sleeps_cannot_take_is_bounded() -> None:
    async def run() -> float:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        fates = tracer.Fates(metrics.Metrics().family(families.SPANS))
        spool = tracer.Spool(ours, fates)
        with theirs:
            longest_s = 0.0
            for _ in range(4000):
                begun_s = time.perf_counter()
                spool.add(bytes(16 << 10))
                longest_s = max(longest_s, time.perf_counter() - begun_s)
            assert longest_s < 10  # to wait for one that sleeps would be for ever
        spool.close()
        return fates.dropped.value

    assert 3900 < asyncio.run(run()) < 4000  # some lie in the socket


@pytest.mark.parametrize("endpoint", ["", "localhost:4317", "ftp://a", "http://", "grpc:///x"])
def test_an_address_that_is_none_is_refused_at_once(endpoint: str) -> None:
    with pytest.raises(errors.CastironError, match="expected http://HOST:PORT or grpc://HOST:PORT"):
        send.Sender(endpoint)


@given(st.integers(1, 1 << 62), st.text(max_size=30))
def test_what_a_receiver_rejects_is_understood(count: int, message: str) -> None:
    answer = receiver.Response()
    assert spans.num_rejected(answer.SerializeToString()) == 0
    answer.partial_success.rejected_spans = count
    answer.partial_success.error_message = message
    assert spans.num_rejected(answer.SerializeToString()) == count
