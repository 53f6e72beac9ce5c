"""The probes of behaviour: what they hold on to, and that castiron is right on each of them."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from bench.behaviour import __main__ as behaviour
from bench.behaviour import ending, loading, odd, probes, processes, servers, steady, ways

STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if len(sys.argv) > 1:
    end = time.process_time() + 0.3
    while time.process_time() < end: pass
else:
    subprocess.Popen([sys.executable, __file__, "child"], start_new_session=True)
time.sleep(600)
"""


def test_a_group_counts_and_ends_all_that_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "_STOP_S", 0.5)
    program = tmp_path / "stubborn.py"
    program.write_text(STUBBORN)
    group = processes.Group([sys.executable, str(program)], tmp_path / "log", {}, tmp_path)
    end = time.monotonic() + 20
    while group.cpu_s() < 0.3 and time.monotonic() < end:
        time.sleep(0.05)
    assert group.cpu_s() >= 0.3
    assert group.cpu_s() >= sum(group.cpu_of(each) for each in group.processes()) - 0.1
    assert group.resident_kb() > 2 * 4000  # two interpreters
    assert group.status is None
    group.stop()
    assert not group.is_alive
    assert group.status is not None
    end = time.monotonic() + 20  # a process that was killed may take a moment to be gone
    while group.cpu_s() and time.monotonic() < end:
        time.sleep(0.02)
    assert group.cpu_s() == 0


def oip(speaks: str = "oip") -> ways.Rest:
    group = None
    return ways.Rest(servers.Server("made", speaks, group, 1))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "code, text, speaks, is_refusal",
    [
        ("400", '{"error": "no"}', "oip", True),
        ("422", '{"detail": [1]}', "oip", False),
        ("422", '{"detail": [1]}', "litserve", True),
        ("400", "no", "bentoml", False),
        ("500", '{"error": "no"}', "oip", False),
        ("200", "{}", "oip", False),
    ],
)
def test_a_refusal_is_one_that_the_clients_of_its_dialect_can_read(
    code: str, text: str, speaks: str, is_refusal: bool
) -> None:
    assert oip(speaks).is_refusal(ways.Answer(code, 0.0, text=text)) is is_refusal


def test_every_odd_call_is_odd_in_its_own_way() -> None:
    listed = [*odd.of_json(), *odd.of_protocol()]
    assert len(listed) >= 30
    assert len({(call.body, *call.headers.items()) for call in listed}) == len(listed)
    assert oip().body("quick", [[1.0, 2.0, 3.0, 4.0]]) not in {call.body for call in listed}


def test_the_table_tells_right_wrong_and_not_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "version", lambda _: "1")
    title = next(iter(probes.PROBES))
    found = {
        "castiron": {(title, way): probes.Outcome(probes.RIGHT, "e") for way in ("REST", "gRPC")},
        "LitServe": {(title, "REST"): probes.Outcome(probes.WRONG, "why")},
    }
    text = behaviour.report(found)
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()]
    assert [f"{title}, REST", "right", "wrong"] in rows
    assert [f"{title}, gRPC", "right", "not offered"] in rows
    assert "LitServe: why" in text


class _Second:
    """A second that passes only when somebody waits or is waited for."""

    def __init__(self) -> None:
        self.passed_s = 0.0

    def now_s(self) -> float:
        return self.passed_s

    def wait(self, seconds: float) -> bool:
        """Let so much pass; whether the second is over."""
        self.passed_s += seconds
        return self.passed_s >= 1.0


def test_calls_that_were_due_while_a_server_stood_still_have_waited() -> None:
    clock, seen = _Second(), steady.Load()

    def client() -> ways.Answer:
        clock.passed_s += 0.4 if len(seen.calls) == 10 else 0.001
        return ways.Answer("ok", 0.0, [[1.0]])

    steady.ask_on(client, 0.0, 0.02, clock, seen)
    late = [call for call in seen.calls if call.took_s > 0.1]
    assert 15 <= len(late) <= 17, seen.calls  # a call each 20 ms of the 400 that it stood still
    assert 49 <= len(seen.calls) <= 50
    assert 300 < steady.p99_ms(seen.calls) <= steady.longest_ms(seen.calls) < 401
    assert seen.between(0, 0.1) == [call for call in seen.calls if call.due_s < 0.1]


def test_clients_ask_side_by_side_until_the_end() -> None:
    answer = ways.Answer("ok", 0.0, [[1.0]])
    with steady.load([lambda: answer] * 3, 0.01) as seen:
        end = time.monotonic() + 20
        while len(seen.calls) < 30 and time.monotonic() < end:
            time.sleep(0.01)
    num_calls = len(seen.calls)
    assert num_calls >= 30
    time.sleep(0.1)
    assert len(seen.calls) == num_calls


def held(sent_s: float, end_s: float, code: str = "200") -> steady.Call:
    return steady.Call(sent_s, sent_s, end_s - sent_s, code, code == "200")


# A worker is killed at 10; a client asks the other one four times a second.
ANSWERED = [held(at / 4, at / 4 + 0.2) for at in range(36, 88)]
DOWN = [ending.Look(at / 10, 200 if at < 100 else 503) for at in range(90, 200)]
UP = [ending.Look(at / 10, 200) for at in range(90, 200)]


@pytest.mark.parametrize(
    "lost, looks, whole_s, verdict, said",
    [
        ([held(9.9, 10.1, "closed")], UP, 1.0, "right", "1 lost (1 x closed)"),
        ([held(9.9, 10.1, "closed"), held(10.8, 11, "500")], DOWN, 1.0, "wrong", "1 of them sent later"),
        ([held(10.8, 11, "500")], UP, 1.0, "wrong", "also for 1 calls that failed"),
        ([held(9.9, 39.9, ways.HANG)], UP, 1.0, "wrong", "1 x hang"),
        ([held(9.9, 10.1, "closed")], UP, None, "wrong", "nothing takes its place"),
    ],
)  # fmt: skip
def test_a_worker_that_died_may_cost_what_it_held_and_no_more(
    lost: list[steady.Call],
    looks: list[ending.Look],
    whole_s: float | None,
    verdict: str,
    said: str,
) -> None:
    outcome = ending._judged([*ANSWERED, *lost], 10.0, looks, whole_s)
    assert outcome.verdict == verdict
    assert said in outcome.evidence


def test_memory_may_grow_by_a_twentieth() -> None:
    assert loading._growth([1000, 1010, 1049], 100, "call").verdict == probes.RIGHT
    outcome = loading._growth([1000, 1030, 1060], 30, "call")
    assert outcome.verdict == probes.WRONG
    assert "+2.00 kB a call" in outcome.evidence


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_castiron_is_right_on_every_probe() -> None:
    found = behaviour.outcomes("castiron")
    assert len(found) == 2 * len(behaviour.TITLES)
    assert {key: each for key, each in found.items() if each.verdict != probes.RIGHT} == {}
