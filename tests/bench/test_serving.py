"""The load generator: every request has one outcome, and waiting is never hidden."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from bench.behaviour import servers
from bench.serving import connection, record, requests, steady, tables, traffic, watch, wrk
from bench.serving.__main__ import main

Server = Callable[[str], traffic.Target]


@contextlib.contextmanager
def answering() -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """The small server, and its port."""
    program = Path(__file__).with_name("answering.py")
    with subprocess.Popen([sys.executable, str(program)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield process, int(process.stdout.readline())
        finally:
            process.kill()


@pytest.fixture
def server() -> Iterator[Server]:
    with answering() as (_, port):

        def target(path: str, size: int = 2) -> traffic.Target:
            text = requests.post(f"/{path}", bytes(size))
            return traffic.Target("127.0.0.1", port, text, 4)

        yield target


def test_requests_leave_at_their_times_and_all_are_answered(server: Server) -> None:
    found = traffic.open_loop(server("ok"), traffic.constant(500, 1))
    assert found.intended_s.tolist() == pytest.approx([number / 500 for number in range(500)])
    assert set(found.statuses) == {200}
    assert found.num_connections == 4, "they are kept"
    assert min(found.took_s) > 0
    summary = found.summary()
    assert (summary.sent, summary.ok, summary.num_failed, summary.refused) == (500, 500, 0, 0)
    assert 0 < summary.p50_ms <= summary.p90_ms <= summary.p99_ms <= summary.max_ms


@pytest.mark.parametrize("path", ["ok", "chunked"])
def test_connections_are_kept(path: str, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[connection.Connection] = []

    def counted(host: str, port: int) -> connection.Connection:
        made.append(connect(host, port))
        return made[-1]

    connect = connection.Connection
    monkeypatch.setattr(connection, "Connection", counted)
    assert traffic.open_loop(server(path), traffic.constant(200, 0.2)).summary().ok == 40
    assert len(made) == 4


def test_what_a_pause_of_the_server_delays_is_seen_in_all_that_was_due_meanwhile(
    server: Server,
) -> None:
    found = traffic.open_loop(server("pausing"), traffic.constant(200, 1))
    took_s, due_s = np.array(found.took_s), np.array(found.intended_s)
    # 300 ms at 200 a second: sixty requests were due, and only four connections were there.
    assert (took_s > 0.05).sum() >= 45
    assert found.num_waited >= 45
    # Whoever was due in the pause, which did not begin before the twentieth was, has waited for
    # all that was left of it.
    assert (due_s + took_s)[24:].min() >= due_s[19] + 0.299
    assert took_s.max() >= 0.299


def test_a_closed_loop_hides_that_pause_but_counts_what_was_answered(server: Server) -> None:
    rate, found = traffic.closed_loop(server("pausing"), 1.0)
    took_s, due_s = np.array(found.took_s), np.array(found.intended_s)
    # Nobody was due meanwhile but those that wait on the four connections.
    ended_s = (due_s + took_s)[took_s > 0.25].min()
    assert ((due_s < ended_s) & (due_s + took_s >= ended_s)).sum() <= 4
    assert rate == pytest.approx(found.summary().ok / (due_s + took_s).max(), rel=0.01)


def test_refusals_are_told_apart_from_failures(server: Server) -> None:
    summary = traffic.open_loop(server("refusing"), traffic.constant(200, 0.5)).summary()
    assert (summary.ok, summary.refused, summary.failed) == (50, 50, {})


def test_a_connection_that_the_server_closes_is_a_failure_and_is_replaced(server: Server) -> None:
    found = traffic.open_loop(server("closing"), traffic.constant(200, 0.5))
    assert found.summary().failed == {"connection closed": 10}
    assert found.summary().ok == 90
    assert 10 <= found.num_connections <= 14, "one is replaced when it is needed"


def test_who_is_not_answered_has_timed_out(server: Server) -> None:
    begun_s = time.monotonic()
    target = dataclasses.replace(server("never"), patience_s=0.5)
    summary = traffic.open_loop(target, traffic.constant(100, 0.1)).summary()
    assert summary.failed == {"timed out": 10}
    assert np.isnan(summary.p50_ms)
    # Four at a time, half a second each.
    assert time.monotonic() - begun_s < 20


def test_a_server_that_dies_ends_the_run_with_failures_and_not_never(server: Server) -> None:
    summary = traffic.open_loop(server("dying"), traffic.constant(200, 0.5)).summary()
    assert summary.ok + summary.num_failed == summary.sent == 100
    assert summary.ok <= 19
    assert summary.failed["no connection"] >= 60


@pytest.mark.parametrize("size", [0, 2_000_000])
def test_large_bodies_go_out_and_come_back_in_pieces(server: Server, size: int) -> None:
    text = requests.post("/echo", bytes(size))
    target = traffic.Target("127.0.0.1", server("ok").port, text, 4)
    assert traffic.open_loop(target, traffic.constant(50, 0.4)).summary().ok == 20


def test_answers_in_chunks_are_read_to_their_end(server: Server) -> None:
    found = traffic.open_loop(server("chunked"), traffic.constant(200, 0.5))
    assert (found.summary().ok, found.num_connections) == (100, 4)


def test_arrivals_that_know_nothing_of_each_other_have_the_rate_and_the_spread() -> None:
    gaps = np.diff(np.array(traffic.poisson(1000, 20)))
    assert gaps.min() >= 0
    assert gaps.mean() == pytest.approx(1e-3, rel=0.05)
    assert gaps.std() == pytest.approx(1e-3, rel=0.05)
    assert traffic.poisson(1000, 20) == traffic.poisson(1000, 20)


def test_a_summary_is_of_the_stretch_of_time_that_is_asked_for() -> None:
    kept = record.Record()
    for number in range(100):
        kept.begin(number / 100)
        kept.settle(number, 200 if number < 98 else 429, number / 100 + (number + 1) / 1000)
    assert kept.summary(0.0, 0.5).sent == 50
    assert kept.summary(0.0, 0.5).max_ms == pytest.approx(50)
    late = kept.summary(0.5)
    assert (late.sent, late.ok, late.refused) == (50, 48, 2)
    assert late.max_ms == pytest.approx(98), "of those that went well"


def test_the_time_and_memory_of_children_are_the_servers_too(tmp_path: Path) -> None:
    program = tmp_path / "parent.py"
    program.write_text(
        "import subprocess, sys, time\n"
        "held = bytearray(30_000_000)\n"
        "if len(sys.argv) == 1: subprocess.Popen([sys.executable, __file__, 'child'])\n"
        "end = time.process_time() + 0.2\n"
        "while time.process_time() < end: pass\n"
        "print('done', flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == [b"done\n"] * 2
        seen = watch.sample(process.pid)
        assert process.stdin is not None
        process.stdin.close()
    assert seen.processes == 2
    assert 0.4 <= seen.cpu_s < 5
    assert seen.rss_bytes > 60_000_000
    assert seen.delayed_s >= 0


def test_the_last_line_of_wrk_is_read() -> None:
    told = {"requests": 110, "seconds": 2.0, "p50_ms": 1.5, "p99_ms": 2.5, "max_ms": 3.0,
            "not_ok": 10, "broken": 2}  # fmt: skip
    assert wrk.read(f"Running 2s test\n{json.dumps(told)}\n") == wrk.Result(50.0, 1.5, 2.5, 12)


def interval(p50_ms: float, p99_ms: float, rss: int, cpu_us: float) -> steady.Interval:
    summary = record.Summary(10, 10, 0, {}, p50_ms, p50_ms, p99_ms, p99_ms, p99_ms)
    return steady.Interval(summary, rss, cpu_us, 0.0)


@pytest.mark.parametrize(
    "p99_ms, rss_step, cpu_step, refused, said",
    [
        (1.9, 0, 0.0, 0, []),
        (2.1, 0, 0.0, 0, ["p99 is 2.10 times p50"]),
        (1.9, 500_000, 0.0, 0, ["memory grew by 4.4%"]),
        (1.9, -500_000, 0.0, 0, []),
        (1.9, 0, 1.0, 0, ["CPU time per request grew by 8.6%"]),
        (1.9, 0, 0.0, 3, ["3 requests were not answered well"]),
    ],
)
def test_a_run_that_spreads_or_grows_or_refuses_is_not_steady(
    p99_ms: float, rss_step: int, cpu_step: float, refused: int, said: list[str]
) -> None:
    intervals = [
        interval(1.0, p99_ms, 100_000_000 + rss_step * i, 100 + cpu_step * i) for i in range(10)
    ]
    whole = record.Summary(100, 100 - refused, refused, {}, 1.0, 1.0, p99_ms, p99_ms, p99_ms)
    outcome = steady.Outcome(70.0, 100.0, intervals, whole, 0)
    faults = outcome.faults()
    assert len(faults) == len(said)
    assert all(fault.startswith(start) for fault, start in zip(faults, said, strict=True))
    assert "| minute |" in steady.report(outcome, steady.Plan())


def test_a_loaded_server_is_looked_at_by_intervals() -> None:
    with answering() as (process, port):
        target = traffic.Target("127.0.0.1", port, requests.post("/ok", b"{}"), 4)
        plan = steady.Plan(minutes=2 / 60, load=0.5, interval_s=0.5)
        outcome = steady.loaded(target, process.pid, plan, capacity=400.0, warm_s=0.1)
    assert outcome.rate == 200
    assert len(outcome.intervals) == 4
    assert sum(each.summary.sent for each in outcome.intervals) == outcome.whole.ok == 400
    assert all(each.cpu_us > 0 and each.rss_bytes > 1e6 for each in outcome.intervals)


def test_any_server_can_be_asked_from_the_command_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with answering() as (process, port):
        place = ["open", f"http://127.0.0.1:{port}", "--rate", "100", "--seconds", "0.3"]
        # The last word of the path of an infer request is none that the server knows: it is well.
        assert main([*place, "--model", "a", "--pid", str(process.pid)]) == 0
    told = capsys.readouterr().out
    assert "30 sent: 30 ok, 0 refused, none failed" in told
    assert "us of CPU time for a request" in told


def test_rates_are_compared_round_by_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "version", lambda _: "1")
    summary = interval(1.0, 2.0, 0, 0.0).summary
    # Everything is half as fast in the second round: that says nothing about the servers.
    found = {
        name: tables.Figures(
            [wrk.Result(rate * speed, 1.0, 2.0, 0) for speed in (1.0, 0.5)],
            [10.0, 20.0],
            [(rate, summary)] * 2,
            [20.0, 30.0],
            1_000_000,
        )
        for name, rate in (
            ("castiron", 6000.0),
            ("MLServer", 1000.0),
            ("MLServer, no workers", 2000.0),
        )
    }
    rows = {row[0]: row for row in tables.tiny_rows(found)}
    assert rows["castiron 1"][1:4] == ["4500", "6.00x", "3.00x"]
    assert rows["MLServer 1"][1:4] == ["750", "1.00x", "0.50x"]
    assert rows["MLServer 1, no workers"][1] == "1500"
    assert [(row[0], row[-1]) for row in tables.open_rows(found)] == [
        ("castiron", "25"),
        ("MLServer", "25"),
        ("MLServer, no workers", "25"),
    ]


def test_a_request_is_a_whole_one() -> None:
    for is_binary in (False, True):
        head, _, body = requests.infer("m", (1, 4), is_binary=is_binary).partition(b"\r\n\r\n")
        assert f"Content-Length: {len(body)}".encode() in head.split(b"\r\n")
    size = int(head.split(b"Inference-Header-Content-Length: ")[1].split(b"\r\n")[0])
    assert np.frombuffer(body[size:], np.float32).tolist() == [0, 1, 2, 3]
    assert json.loads(body[:size])["inputs"][0]["parameters"] == {"binary_data_size": 16}


@pytest.mark.slow
def test_wrk_asks_castiron_in_each_form_and_counts_what_goes_wrong() -> None:
    cores = tables.Cores.chosen()
    with cores.as_client(), tables.all_running([tables.OWN], cores) as up:
        server = up[tables.OWN]
        with tables.alone(server) as process:
            small, large = ("quick", "1x4"), ("same", "1x150528")
            for kind, (model, size) in (("json", small), ("binary", small), ("binary", large)):
                found = wrk.run(server.http_port, (kind, model, size), 4, 1.0, cores.client)
                assert found.num_failed == 0
                assert found.rate > 10
            wrong = wrk.run(server.http_port, ("json", "none", "1x4"), 4, 1.0, cores.client)
            assert wrong.rate == 0
            assert wrong.num_failed > 10
            assert watch.sample(process).rss_bytes > 10e6


@pytest.mark.slow
def test_castiron_is_watched_from_its_start_to_its_end() -> None:
    plan = steady.Plan(minutes=0.1, interval_s=2.0, load=0.3)
    outcome = steady.run(plan)
    assert len(outcome.intervals) == 3
    assert outcome.whole.ok == outcome.whole.sent > 100
    assert outcome.rss_growth < steady.MAX_RSS_GROWTH


@pytest.mark.slow
def test_locust_finds_out_what_a_model_takes_and_asks_it(
    capfd: pytest.CaptureFixture[str],
) -> None:
    cores = tables.Cores.chosen()
    with cores.as_client(), tables.all_running([tables.OWN], cores) as up:
        server = up[tables.OWN]
        with tables.alone(server):
            place = ["locust", f"http://127.0.0.1:{server.http_port}", "--seconds", "3"]
            assert main([*place, "--model", "quick"]) == 0
            assert main([*place, "--model", "none"]) != 0
    told = capfd.readouterr()
    assert "infer, bytes" in told.out + told.err
    assert "/v2/models/none names no inputs (status 404)" in told.out + told.err
