"""Probes of servers whose processes end: the whole one when it is told to, a worker by accident.

Each is asked of a server of its own, since none is as it was afterwards. Verdicts and evidence as
in ``probes.py``.
"""

from __future__ import annotations

import collections
import contextlib
import http.client
import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from bench.behaviour import probes, servers, steady, ways

# A call of the slow model takes a fifth of a second, so that all these are in flight together.
_NUM_CALLS = 6
_EXIT_S = 30.0
# A probe of readiness that was on its way when a signal came proves nothing.
_GRACE_S = 0.25
_LOOK_S = 0.02
_NUM_CLIENTS = 4
# Whatever is lost later than this after a worker died was not lost with it.
_TORN_S = 0.5
# Nobody may be answered for so long.
_PAUSE_S = 2.0
# A process that imports and loads may take this long; castiron's own bound is in its tests.
_BACK_S = 10.0
_WATCH_S = 12.0


def told_to_end(server: servers.Server, way: ways.Way) -> probes.Outcome:
    """A server that is replaced loses no call: it says that it goes, answers, and goes.

    Six calls of the slow model are in flight, over gRPC and REST in turns where both are spoken;
    then the first process gets SIGTERM. Right: all six get their rows, readiness never says
    ready again, the exit is clean and soon, and no process is left that holds the port.
    """
    asked = [way, *(each for each in ways.ways(server) if each.name != way.name)]
    if way.name == "REST":
        asked = [way]
    for each in asked:
        each.ask("slow", [[0.0]])
    server.group.processes()  # seen now, they are known when their parent has ended
    codes: list[tuple[str, bool]] = []
    threads = []
    for index in range(_NUM_CALLS):
        chosen = asked[index % len(asked)]
        threads.append(threading.Thread(target=_ask, args=(chosen, float(index), codes)))
        threads[-1].start()
    time.sleep(0.15)
    with _looking(server) as looks:
        told_s = time.monotonic()
        server.group.terminate()
        exit_s = _until(lambda: server.group.status is not None, _EXIT_S)
        for thread in threads:
            thread.join()
        time.sleep(1.0)
        left = server.group.processes()
        still = any(look.is_ready for look in looks if look.at_s > told_s + _GRACE_S)
    good = sum(is_ok for _, is_ok in codes)
    status = server.group.status
    well = good == _NUM_CALLS and not still and status in {0, -signal.SIGTERM} and not left
    told = "never exits" if exit_s is None else f"exit {status} after {exit_s:.1f} s"
    bad = collections.Counter(code for code, is_ok in codes if not is_ok)
    text = f"{good} of {_NUM_CALLS} calls answered"
    text += f" (others: {_counted(bad)})" if bad else ""
    text += f", {told}, {_readiness(looks, told_s, still=still)}, "
    text += f"{len(left)} processes left" if left else "no process left"
    return probes.Outcome(probes.RIGHT if well else probes.WRONG, text)


def worker_killed(server: servers.Server, way: ways.Way) -> probes.Outcome:
    """A worker that dies costs the calls that it had, and nothing else for long.

    Two processes compute, four clients ask them for the slow model; the busier one is killed. Right: at
    most the calls in flight are lost, each of them is told so, calls sent half a second later
    are all answered, readiness says ready only while that is so, and two compute again in 10 s.
    """
    clients = [way.another() for _ in range(_NUM_CLIENTS)]
    calls = [lambda each=each: each.ask("slow", [[1.0]]) for each in clients]
    with steady.load(calls, 0.0) as seen, _looking(server) as looks:
        time.sleep(2.0)
        before = server.workers()
        victim = _busiest(server, before)
        hit_s = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        _until(lambda: victim not in server.workers(), 1.0)
        _until(lambda: _computing(server) < len(before), 0.5)
        is_whole = _until(lambda: _computing(server) >= len(before), _WATCH_S) is not None
        whole_s = time.monotonic() - hit_s if is_whole else None
        time.sleep(max(0.0, hit_s + _WATCH_S / 2 - time.monotonic()))
    return _judged(seen.calls, hit_s, looks, whole_s)


def _judged(
    calls: list[steady.Call], hit_s: float, looks: list[Look], whole_s: float | None
) -> probes.Outcome:
    held = [call for call in calls if call.sent_s < hit_s <= call.end_s]
    lost = [call for call in calls if call.end_s >= hit_s and not call.is_ok]
    later = [call for call in lost if call.sent_s > hit_s + _TORN_S]
    hung = [call for call in lost if call.code == ways.HANG]
    pause_s = _longest_pause_s(calls, hit_s)
    lied = [call for call in later if _was_ready(looks, call.sent_s)]
    well = len(lost) <= len(held) and not later and not hung and not lied
    well = well and pause_s < _PAUSE_S and whole_s is not None and whole_s < _BACK_S
    lost_codes = collections.Counter(call.code for call in lost)
    text = f"{len(held)} calls in flight, {len(lost)} lost"
    text += f" ({_counted(lost_codes)})" if lost else ""
    text += f", {len(later)} of them sent later" if later else ""
    text += f"; at most {pause_s:.2f} s without an answer"
    text += (
        f"; nothing takes its place within {_WATCH_S:.0f} s"
        if whole_s is None
        else f"; two compute again after {whole_s:.2f} s"
    )
    downs = [look for look in looks if look.at_s > hit_s and not look.is_ready]
    text += f"; readiness: {'down meanwhile' if downs else 'ready throughout'}"
    text += f", also for {len(lied)} calls that failed" if lied else ""
    return probes.Outcome(probes.RIGHT if well else probes.WRONG, text)


def _longest_pause_s(calls: list[steady.Call], hit_s: float) -> float:
    """The longest time without an answer after that moment, up to the end of all calls."""
    last_s = max((call.end_s for call in calls), default=hit_s)
    ends = sorted(call.end_s for call in calls if call.is_ok and call.end_s > hit_s)
    moments = [hit_s, *ends, max(last_s, hit_s + _WATCH_S / 2)]
    return max(later - one for one, later in itertools.pairwise(moments))


PROBES: dict[str, tuple[servers.Setup, probes.Probe]] = {
    "SIGTERM with six calls in flight": (servers.Setup(served=("slow",)), told_to_end),
    "a worker of two is killed": (servers.Setup(served=("slow",), num_workers=2), worker_killed),
}


@dataclass(frozen=True, slots=True)
class Look:
    """What a probe of readiness found; ``code`` 0 when nobody took the connection."""

    at_s: float
    code: int

    @property
    def is_ready(self) -> bool:
        """Whether traffic would be sent here."""
        return self.code == 200


@contextlib.contextmanager
def _looking(server: servers.Server) -> Iterator[list[Look]]:
    """Ask for readiness all the time, on a new connection each time, as orchestrators do."""
    seen: list[Look] = []
    over = threading.Event()

    def look() -> None:
        while not over.wait(_LOOK_S):
            at_s = time.monotonic()
            connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=2)
            code = 0
            with contextlib.suppress(OSError, http.client.HTTPException):
                connection.request("GET", server.ready_path)
                code = connection.getresponse().status
            connection.close()
            seen.append(Look(at_s, code))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


def _was_ready(looks: list[Look], at_s: float) -> bool:
    before = [look for look in looks if look.at_s <= at_s]
    return bool(before) and before[-1].is_ready


def _readiness(looks: list[Look], told_s: float, *, still: bool) -> str:
    after = [look for look in looks if look.at_s > told_s]
    if still:
        last_s = max(look.at_s for look in after if look.is_ready) - told_s
        return f"readiness says ready {last_s:.1f} s after the signal"
    told = [look.code for look in after if look.code not in {0, 200}]
    return f"readiness says {told[0]} first" if told else "connections are refused at once"


def _busiest(server: servers.Server, workers: list[int]) -> int:
    """The worker that spends the most CPU time now."""
    before = {pid: server.group.cpu_of(pid) for pid in workers}
    time.sleep(0.5)
    return max(workers, key=lambda pid: server.group.cpu_of(pid) - before[pid])


def _computing(server: servers.Server) -> int:
    with contextlib.suppress(OSError):
        return server.num_computing()
    return 0


def _until(is_so: Callable[[], bool], limit_s: float) -> float | None:
    """How long that took; None when it did not happen in time."""
    begun_s = time.monotonic()
    while not is_so():
        if time.monotonic() > begun_s + limit_s:
            return None
        time.sleep(0.01)
    return time.monotonic() - begun_s


def _ask(way: ways.Way, value: float, codes: list[tuple[str, bool]]) -> None:
    answer = way.ask("slow", [[value]])
    codes.append((answer.code, answer.rows == [[value]]))


def _counted(codes: collections.Counter[str]) -> str:
    return ", ".join(f"{count} x {code}" for code, count in sorted(codes.items()))
