"""The command line of ``bench.deadlines``: one line of a table for each way of asking."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import uvloop

from bench import machine, table
from bench.deadlines import grpc_way, inside, load, model, rest

WAYS = ("rest", "grpc", "inside")
_START_S = 60.0


@contextlib.contextmanager
def served(folder: Path, cpus: str) -> Iterator[tuple[int, int]]:
    """The ports of a server on these CPUs, ready."""
    command = [sys.executable, "-m", "castiron", "serve", str(folder / "models"), "--port", "0",
               "--grpc-port", "0", "--threads", "1", "--cache-dir", str(folder / "cache")]  # fmt: skip
    pinned = ["taskset", "-c", cpus, *command]
    with subprocess.Popen(pinned, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        ports = [int(process.stdout.readline().decode().rsplit(":", 1)[1]) for _ in range(2)]
        end = time.monotonic() + _START_S
        while not _is_ready(ports[0]):
            assert time.monotonic() < end, "the server is not ready"
            time.sleep(0.1)
        yield ports[0], ports[1]
        process.terminate()


def _is_ready(port: int) -> bool:
    with contextlib.suppress(OSError):
        address = f"http://127.0.0.1:{port}/v2/health/ready"
        with urllib.request.urlopen(address, timeout=5) as answer:
            return bool(answer.status == 200)
    return False


def _numbers(port: int) -> tuple[int, int]:
    """Runs so far, and those that nobody waited for at their end, by the server's metrics."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    names = ("castiron_runs_total{", "castiron_wasted_runs_total{")
    found = [sum(float(line.split()[-1]) for line in lines if line.startswith(f'{name}model="busy"'))
             for name in names]  # fmt: skip
    return int(found[0]), int(found[1])


async def measured(
    name: str, ask: load.Ask, numbers: Callable[[], tuple[int, int]], count: int, overload: float
) -> load.Told:
    """Find what the server can do, and ask it for ``overload`` times that."""
    await load.capacity(ask, 0.5)
    able = await load.capacity(ask, 1.5)
    before = numbers()
    ended = await load.send_all(load.plan(count, overload * able), ask)
    await asyncio.sleep(0.2)  # runs that nobody waits for end too
    after = numbers()
    return load.Told(name, overload * able, ended, after[0] - before[0], after[1] - before[1])


async def over_network(way: str, ports: tuple[int, int], count: int, overload: float) -> load.Told:
    """One of the protocols."""
    client: Any = rest.Client(ports[0]) if way == "rest" else grpc_way.Client(ports[1])
    try:
        return await measured(way, client.ask, lambda: _numbers(ports[0]), count, overload)
    finally:
        await client.close()


async def within(folder: Path, count: int, overload: float) -> load.Told:
    """Through the dispatcher of this process."""
    asked = inside.Inside(folder)
    await asked.start()
    try:
        told = await measured("inside", asked.ask, asked.numbers, count, overload)
        return load.Told(told.name, told.per_second, told.ended, told.runs, told.wasted,
                         asked.num_after_end())  # fmt: skip
    finally:
        await asked.close()


def measure(folder: Path, ways: Sequence[str], count: int, overload: float) -> list[load.Told]:
    """Each way; the server on the first CPU, whoever asks on the last."""
    cpus = sorted(os.sched_getaffinity(0))
    found: list[load.Told] = []
    network = [way for way in ways if way != "inside"]
    if network:
        with served(folder, str(cpus[0])) as ports:
            os.sched_setaffinity(0, {cpus[-1]})
            found += [uvloop.run(over_network(way, ports, count, overload)) for way in network]
            os.sched_setaffinity(0, cpus)
    if "inside" in ways:
        found.append(uvloop.run(within(folder, count, overload)))
    return found


def report(found: Sequence[load.Told]) -> str:
    """The table."""
    head = ["asked by", "a second", "answered", "refused", "expired", "left", "late ms, p99",
            "p99.9", "most", "by the client p99.9", "runs", "for nobody", "after the end"]  # fmt: skip
    lines = [
        [
            each.name, f"{each.per_second:.0f}", str(each.count(200)), str(each.count(429, 503)),
            str(each.count(504)), str(each.count(load.LEFT)),
            *(f"{each.late_ms(share, by_server=True):.2f}" for share in (0.99, 0.999, 1)),
            f"{each.late_ms(0.999, by_server=False):.2f}", str(each.runs), str(each.wasted),
            "" if each.after_end is None else str(each.after_end),
        ]
        for each in found
    ]  # fmt: skip
    behind_ms = max(each.behind_ms() for each in found)
    about = f"of a thousand requests, all but one were sent at most {behind_ms:.1f} ms late"
    return table.with_heading([*machine.description(), about], table.markdown(head, lines))


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="deadlines under overload")
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--overload", type=float, default=3.0)
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--write", action="store_true", help="put the table into README.md")
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        model.save(Path(name) / "models")
        ways = [way for way in WAYS if way in chosen.ways.split(",")]
        text = report(measure(Path(name), ways, chosen.requests, chosen.overload))
    print(text)
    if chosen.write:
        table.publish("deadlines", text)


if __name__ == "__main__":
    main()
