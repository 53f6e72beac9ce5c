"""The probes of behaviour: what they hold on to, and that castiron is right on each of them."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from bench.behaviour import __main__ as behaviour
from bench.behaviour import odd, probes, processes, servers, ways

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
    group.stop()
    assert not group.is_alive
    end = time.monotonic() + 5  # a process that was killed may take a moment to be gone
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


@pytest.mark.slow
def test_castiron_is_right_on_every_probe() -> None:
    found = behaviour.outcomes("castiron")
    assert len(found) == 2 * len(probes.PROBES)
    assert {key: each for key, each in found.items() if each.verdict != probes.RIGHT} == {}
