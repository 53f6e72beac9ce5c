"""Probes of servers whose models come and go: what it costs those who ask another model, and memory.

Each is asked of a server of its own. A server that has no call to load a model does not offer it;
what it says about its calls is looked through for one. Verdicts and evidence as in ``probes.py``.
"""

from __future__ import annotations

import json
import random
import re
import statistics
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence

import numpy as np
import onnx

from bench.behaviour import models, probes, servers, steady, ways

_PAUSE_S = 0.01
_NUM_CLIENTS = 2
_STEADY_S, _REST_S = 4.0, 3.0
_NUM_RELOADS = 3
# A neighbour is not told from noise below this; above the other it has been stalled.
_NOISE_MS, _STALL_MS = 20.0, 250.0
_NUM_CYCLES, _NUM_SHAPES = 200, 1000
_MOST_COLUMNS = 256
_GROWTH = 1.05
_LOAD_S = 120.0


def neighbour_of_a_load(server: servers.Server, way: ways.Way) -> probes.Outcome:
    """Whoever asks one model does not notice that another is loaded.

    Two clients ask the quick model a hundred times a second in all, while a model whose load takes
    a core about 1.5 s is changed and loaded again, three times. Times count from when
    a call was due. Right: none fails, the 99th percentile is at most twice that before, or 20 ms,
    and the longest call took less than 250 ms.
    """
    if server.load_path is None:
        return _no_load(server)
    clients = [_Client(way) for _ in range(_NUM_CLIENTS)]
    load_s = []
    with steady.load([client.ask for client in clients], _PAUSE_S * _NUM_CLIENTS) as seen:
        time.sleep(1.0)
        first_s = time.monotonic()
        time.sleep(_STEADY_S)
        spans = []
        for seed in range(1, _NUM_RELOADS + 1):
            onnx.save(models.heavy(seed), server.file_of("heavy"))
            begun_s = time.monotonic()
            _change(server, "heavy", "load")
            spans.append((begun_s, time.monotonic()))
            load_s.append(spans[-1][1] - begun_s)
            time.sleep(_REST_S)
    before = seen.between(first_s, first_s + _STEADY_S)
    during = [call for begin_s, end_s in spans for call in seen.between(begin_s, end_s)]
    failed = [call for call in seen.calls if not call.is_ok]
    steady_ms, p99_ms = steady.p99_ms(before), steady.p99_ms(during)
    longest_ms = steady.longest_ms(during)
    well = not failed and p99_ms <= max(2 * steady_ms, _NOISE_MS) and longest_ms < _STALL_MS
    return probes.Outcome(
        probes.RIGHT if well else probes.WRONG,
        f"{len(during)} calls during loads of {statistics.median(load_s):.1f} s, {len(failed)} "
        f"failed; p99 {p99_ms:.1f} ms (before {steady_ms:.1f} ms), longest {longest_ms:.0f} ms",
    )


def memory_of_loads(server: servers.Server, way: ways.Way) -> probes.Outcome:
    """What is unloaded gives its memory back.

    A model of 16 MB is loaded, asked and unloaded 200 times. Right: after the last cycle the
    resident memory of all processes is at most 5 % above that after the 20th.
    """
    if server.load_path is None:
        return _no_load(server)
    sizes: list[int] = []
    for _ in range(_NUM_CYCLES):
        answer = way.ask("wide", [[1.0, 2.0, 3.0, 4.0]])
        if not answer.is_ok:
            return probes.Outcome(
                probes.WRONG, f"{answer.code} after {len(sizes)} cycles: {answer.text[:100]}"
            )
        _change(server, "wide", "unload")
        sizes.append(server.group.resident_kb())
        _change(server, "wide", "load")
    return _growth(sizes[_NUM_CYCLES // 10 :], _NUM_CYCLES - _NUM_CYCLES // 10, "cycle")


def memory_of_shapes(server: servers.Server, way: ways.Way) -> probes.Outcome:
    """Calls of ever new shapes do not fill the memory.

    After a hundred calls, of which one is of the largest shape, a thousand calls of random
    shapes. Right: the resident memory of all processes is then at most 5 % above that before.
    """
    dice = random.Random(7)
    is_single = server.speaks == "litserve"  # whose requests are single rows
    most_rows = 1 if is_single else models.MOST_ROWS
    shapes = [(most_rows, _MOST_COLUMNS)]
    shapes += [
        (dice.randint(1, most_rows), dice.randint(1, _MOST_COLUMNS))
        for _ in range(_NUM_SHAPES + 99)
    ]
    sizes = []
    for index, (num_rows, num_columns) in enumerate(shapes):
        rows = [[float(row)] * num_columns for row in range(num_rows)]
        answer = way.ask("shapes", rows)
        if answer.rows != [[value + 1 for value in row] for row in rows]:
            return probes.Outcome(
                probes.WRONG,
                f"{answer.code} for {num_rows} rows of {num_columns}: {answer.text[:100]}",
            )
        if index >= 100 and index % 25 == 0:
            sizes.append(server.group.resident_kb())
    return _growth(sizes, _NUM_SHAPES, "call")


PROBES: dict[str, tuple[servers.Setup, probes.Probe]] = {
    "neighbour of a load": (servers.Setup(served=("quick", "heavy")), neighbour_of_a_load),
    "memory after 200 loads": (servers.Setup(served=("quick", "wide")), memory_of_loads),
    "memory after 1,000 shapes": (servers.Setup(served=("shapes",)), memory_of_shapes),
}


def _growth(sizes: Sequence[int], num_steps: int, step: str) -> probes.Outcome:
    """Whether memory has grown from the first to the last size, and by how much a step."""
    line = np.polyfit(np.linspace(0, num_steps, len(sizes)), sizes, 1)
    well = sizes[-1] <= _GROWTH * sizes[0]
    return probes.Outcome(
        probes.RIGHT if well else probes.WRONG,
        f"{sizes[0] / 1e3:.1f} MB, then {sizes[-1] / 1e3:.1f} MB "
        f"({sizes[-1] / sizes[0] - 1:+.1%}), {line[0]:+.2f} kB a {step}",
    )


def _no_load(server: servers.Server) -> probes.Outcome:
    """No such call; what was looked at to say so."""
    found = json.loads(_fetched(f"{server.url}{server.description_path}"))
    paths = sorted(found["paths"])
    unlike = [path for path in paths if re.search("load|repositor|reload", path)]
    if unlike:
        return probes.Outcome(probes.WRONG, f"not asked, though it has {', '.join(unlike)}")
    return probes.Outcome(
        probes.NOT_OFFERED, f"no such call among those it lists: {', '.join(paths)}"
    )


def _change(server: servers.Server, model: str, action: str) -> None:
    """Have a model loaded or unloaded; back when the server says so."""
    request = urllib.request.Request(
        f"{server.url}{server.load_path}/{model}/{action}", b"{}",
        {"Content-Type": "application/json"},
    )  # fmt: skip
    try:
        with urllib.request.urlopen(request, timeout=_LOAD_S):
            return
    except urllib.error.HTTPError as fault:
        told = fault.read()[:200].decode(errors="replace")
        raise RuntimeError(f"{action}: {fault.code} {told}") from None


def _fetched(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=10) as answer:
        content: bytes = answer.read()
    return content


class _Client:
    """Calls over one connection, a new one after a failure."""

    def __init__(self, way: ways.Way) -> None:
        self._way = way
        self._call: Callable[[], None] | None = None

    def ask(self) -> ways.Answer:
        """One call of the quick model."""
        row = [[1.0, 2.0, 3.0, 4.0]]
        begun_s = time.monotonic()
        try:
            if self._call is None:
                self._call = self._way.sequence("quick", row)
            self._call()
        except Exception as fault:  # noqa: BLE001  whatever it is, the call has failed
            self._call = None
            return ways.Answer(type(fault).__name__, time.monotonic() - begun_s, text=str(fault))
        return ways.Answer("ok", time.monotonic() - begun_s, row)
