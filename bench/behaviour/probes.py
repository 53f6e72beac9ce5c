"""The probes: what users of some server complained about, asked of a server in one way.

Each says what is right and why, and gives an Outcome: right, wrong or not offered, with one line of
evidence. Nothing here knows which server it asks. What ends or changes a server: ``ending.py``
and ``loading.py``.
"""

from __future__ import annotations

import collections
import functools
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from bench.behaviour import odd, servers, usual_client, ways

RIGHT, WRONG, NOT_OFFERED = "right", "wrong", "not offered"

_QUIET_S = 2.0
_GRAIN_S = 0.06
_LONGEST_S = 20.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a probe ended."""

    verdict: str
    evidence: str


Probe = Callable[[servers.Server, ways.Way], Outcome]


def deadline_in_a_batch(_server: servers.Server, way: ways.Way) -> Outcome:
    """A caller who is in a hurry does not spoil the answers of those whose calls run with his.

    One call keeps the model busy; three wait behind it and may be merged, of which one has half of
    the time that it would need. Right: it ends by its deadline, and the other two get their
    rows no later than without it. Servers that drop one call of a batch have left the others
    hanging, or failed them.
    """

    def three(deadline_s: float | None) -> list[ways.Answer]:
        def call(value: float, limit_s: float | None = None) -> Callable[[], ways.Answer]:
            return lambda: way.ask("slow_batched", [[value]], limit_s)

        calls = [call(0.0), call(1.0), call(2.0, deadline_s), call(3.0)]
        return ways.at_once(calls, apart_s=0.02)

    undisturbed = three(None)
    if not all(answer.is_ok for answer in undisturbed):
        return Outcome(WRONG, f"without any deadline: {_codes(undisturbed)}")
    usual_s = max(answer.took_s for answer in undisturbed)
    limit_s = undisturbed[2].took_s / 2
    _, first, hurried, last = three(limit_s)
    late_s = hurried.took_s - limit_s
    mates = (first, last)
    slowest_s = max(mate.took_s for mate in mates)
    well = first.rows == [[1.0]] and last.rows == [[3.0]]
    well = well and slowest_s < 1.5 * usual_s + 0.5 and not hurried.is_ok and late_s < 0.5
    return Outcome(
        RIGHT if well else WRONG,
        f"mates {_codes(mates)} after {slowest_s:.2f} s (undisturbed {usual_s:.2f} s); "
        f"the hurried call: {hurried.code} {late_s * 1e3:+.0f} ms from its deadline",
    )


def abandoned_calls(server: servers.Server, way: ways.Way) -> Outcome:
    """Work that nobody waits for any more is not done, so that a storm of retries passes quickly.

    Five clients send a call to the slow model and leave at once. Right: at most the one that was
    already running is computed. Peers count in the code that serves them; castiron, which has no
    such code, is judged from outside, by its CPU time against that of calls that are waited for.
    """
    way.ask("slow", [[1.0]])
    leave = [lambda: _left(way) for _ in range(5)]
    if server.runs is None:
        one_s = _cost_s(server, lambda: [way.ask("slow", [[1.0]]) for _ in range(3)]) / 3
        runs = _cost_s(server, lambda: ways.at_once(leave)) / one_s
    else:
        counted = server.runs
        before = counted.stat().st_size
        ways.at_once(leave)
        runs = _settled(lambda: counted.stat().st_size) - before
    after = way.ask("slow", [[4.0]])
    well = runs < 1.6 and after.rows == [[4.0]]
    text = f"{runs:.1f} runs of 5 abandoned calls; then {after.code}"
    return Outcome(RIGHT if well else WRONG, text)


def odd_calls(_server: servers.Server, way: ways.Way) -> Outcome:
    """Whatever a client sends, it is told what is wrong in the form that its library reads.

    Right: each odd call is refused as the client's fault, none is accepted, fails the server
    (5xx, INTERNAL, UNKNOWN), hangs, or gets an error body that clients cannot decode; and a right
    call after them is answered.
    """
    found: collections.Counter[str] = collections.Counter()
    accepted, failed, unreadable = [], [], []
    for fault, answer in _odd_answers(way):
        found[answer.code] += 1
        if answer.code in {"200", "OK"}:
            accepted.append(fault)
        elif way.is_refusal(answer):
            continue
        elif answer.code.startswith("4"):
            unreadable.append(fault)
        else:
            failed.append(fault)
    after = way.ask("quick", [[1.0, 2.0, 3.0, 4.0]])
    well = after.is_ok and not (accepted or failed or unreadable)
    text = f"{found.total()} calls: " + ", ".join(
        f"{n} x {code}" for code, n in sorted(found.items())
    )
    for what, faults in (
        ("accepted", accepted), ("failed", failed), ("error not readable", unreadable),
    ):  # fmt: skip
        if faults:
            text += f"; {what}: {', '.join(faults[:3])}" + (", ..." if len(faults) > 3 else "")
    return Outcome(RIGHT if well else WRONG, text + ("" if after.is_ok else "; then it is dead"))


def bad_row_in_a_batch(_server: servers.Server, way: ways.Way) -> Outcome:
    """A call that the model cannot answer fails alone, not those that were merged with it.

    One call keeps the model busy; five wait behind it and may be merged, of which one asks for a
    row that the model has not. Right: it is told so, the other four get their rows.
    """
    calls = [functools.partial(way.ask, "picky_batched", [[row]]) for row in (0, 1, 2, 99, 3, 4)]
    answers = ways.at_once(calls, apart_s=0.01)
    bad = answers.pop(3)
    wanted = [[[2.0 * value, 2.0 * value + 1]] for value in (0, 1, 2, 3, 4)]
    good = sum(answer.rows == rows for answer, rows in zip(answers, wanted, strict=True))
    well = good == 5 and not bad.is_ok and bad.code not in {ways.HANG, "closed"}
    told = f"accepted with the row {bad.rows}" if bad.is_ok else bad.code
    return Outcome(
        RIGHT if well else WRONG,
        f"{good} of 5 good calls answered ({_codes(answers)}); the bad one: {told}",
    )


def lone_client(_server: servers.Server, way: ways.Way) -> Outcome:
    """Merging of calls costs a client nothing while it is alone.

    The same quick model with and without merging, asked in turns over one connection. Right: the
    median with merging is at most a tenth above the other, or half a
    millisecond where that is mere noise.
    """
    row = [[1.0, 2.0, 3.0, 4.0]]
    plain, merged = way.sequence("quick", row), way.sequence("quick_batched", row)
    times: tuple[list[float], list[float]] = ([], [])
    for index in range(230):
        for call, list_ in zip((plain, merged), times, strict=True):
            begun_s = time.perf_counter()
            call()
            if index >= 30:
                list_.append((time.perf_counter() - begun_s) * 1e3)
    plain_ms, merged_ms = map(statistics.median, times)
    well = merged_ms - plain_ms <= max(0.1 * plain_ms, 0.5)
    return Outcome(
        RIGHT if well else WRONG, f"p50 {plain_ms:.2f} ms plain, {merged_ms:.2f} ms with merging"
    )


def usual_client_works(server: servers.Server, way: ways.Way) -> Outcome:
    """The client library that people have does what it offers, with its defaults.

    Triton's client: infer as it comes (binary tensors both ways), then metadata, configuration,
    statistics and the index of models. Right: every call works. A server that does not claim the protocol
    does not offer it.
    """
    if server.speaks != "oip":
        return Outcome(NOT_OFFERED, "speaks no Open Inference Protocol")
    faults = usual_client.faults(way.name, server)
    text = "; ".join(faults) or "infer, metadata, configuration, statistics, index: all work"
    return Outcome(WRONG if faults else RIGHT, text)


PROBES: dict[str, Probe] = {
    "batch mates of a call with a short deadline": deadline_in_a_batch,
    "calls whose clients have gone": abandoned_calls,
    "odd calls": odd_calls,
    "batch mates of a call that fails": bad_row_in_a_batch,
    "a lone client, merging on": lone_client,
    "Triton's client as it comes": usual_client_works,
}


def _odd_answers(way: ways.Way) -> list[tuple[str, ways.Answer]]:
    if not isinstance(way, ways.Rest):
        return [(fault, way.send(message)) for fault, message in odd.messages(way)]  # type: ignore[attr-defined,arg-type]
    calls = list(odd.of_json())
    if way.server.speaks == "oip":
        calls += odd.of_protocol()
    else:
        calls += odd.of_values(way.wrapped)
    return [(call.fault, way.post(way.path("quick"), call.body, call.headers)) for call in calls]


def _left(way: ways.Way) -> ways.Answer:
    way.abandon("slow", [[1.0]])
    return ways.Answer(ways.GONE, 0.0)


def _cost_s(server: servers.Server, ask: Callable[[], object]) -> float:
    """CPU time that a server which idles quietly spends on something."""
    before_s = server.group.cpu_s()
    ask()
    return _settled(server.group.cpu_s, _GRAIN_S) - before_s


def _settled(look: Callable[[], float], grain: float = 0.0) -> float:
    """What is seen when it has stopped growing."""
    end = time.monotonic() + _LONGEST_S
    last, now = -math.inf, look()
    while now - last > grain and time.monotonic() < end:
        time.sleep(_QUIET_S)
        last, now = now, look()
    return now


def _codes(answers: list[ways.Answer] | tuple[ways.Answer, ...]) -> str:
    return " ".join(answer.code for answer in answers)
