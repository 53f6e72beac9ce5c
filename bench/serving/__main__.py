"""``python -m bench.serving``: load on servers.

    python -m bench.serving tables [--only castiron MLServer] [--write]
    python -m bench.serving steady --minutes 10 --load 0.7
    python -m bench.serving open http://127.0.0.1:8000 --model quick --shape 1x4 --rate 1000
    python -m bench.serving locust http://127.0.0.1:8000 --model quick

``tables`` and ``steady`` start the servers themselves; the others load one that runs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import urllib.parse
from collections.abc import Sequence
from pathlib import Path

from bench import edge, table
from bench.behaviour import servers
from bench.serving import requests, steady, tables, traffic, watch

_LOCUSTFILE = Path(__file__).with_name("locustfile.py")


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 1 when what must hold does not."""
    chosen = _parser().parse_args(arguments)
    status: int = chosen.run(chosen)
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.serving")
    verbs = parser.add_subparsers(required=True)
    asked = verbs.add_parser("tables", help="castiron and its peers, for README.md")
    asked.add_argument("--only", nargs="+", choices=servers.NAMES, default=servers.NAMES)
    asked.add_argument("--rounds", type=int, default=5)
    asked.add_argument("--seconds", type=float, default=3.0)
    asked.add_argument("--write", action="store_true", help="put the tables into README.md")
    asked.set_defaults(run=_tables)
    asked = verbs.add_parser("steady", help="minutes of constant load on castiron")
    asked.add_argument("--minutes", type=float, default=10.0)
    asked.add_argument("--load", type=float, default=0.7, help="share of what it can take")
    asked.add_argument(
        "--model", default="quick", help="quick, same, or a model of the zoo, such as ocr_rec"
    )
    asked.add_argument("--poisson", action="store_true")
    asked.add_argument("--interval-s", type=float, default=60.0, help="seconds for each line")
    asked.set_defaults(run=_steady)
    asked = verbs.add_parser("open", help="a constant rate to any server of the protocol")
    _add_place(asked)
    asked.add_argument("--shape", default="1x4", help="of the input, whose datatype is FP32")
    asked.add_argument("--input", default="x", help="its name")
    asked.add_argument("--binary", action="store_true", help="numbers as bytes, not as JSON")
    asked.add_argument("--rate", type=float, default=1000.0, help="requests a second")
    asked.add_argument("--seconds", type=float, default=10.0)
    asked.add_argument(
        "--poisson", action="store_true", help="arrivals that know nothing of each other"
    )
    asked.add_argument("--connections", type=int, default=64)
    asked.add_argument("--cpu", type=int, help="the CPU of the generator, not the server's")
    asked.add_argument("--pid", type=int, help="the server's first process, to read its CPU time")
    asked.set_defaults(run=_open)
    asked = verbs.add_parser("locust", help="locust, in an environment of its own")
    _add_place(asked)
    asked.add_argument("--shape", help="1x4: of x, FP32, for servers that do not describe a model")
    asked.add_argument("--users", type=int, default=8)
    asked.add_argument("--seconds", type=int, default=10)
    asked.add_argument("--rate", type=float, default=50.0, help="requests a second of each user")
    asked.set_defaults(run=_locust)
    return parser


def _add_place(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("url", help="http://HOST:PORT")
    parser.add_argument("--model", required=True)


def _tables(chosen: argparse.Namespace) -> int:
    text = tables.report(chosen.only, chosen.rounds, chosen.seconds)
    print(f"\n{text}\n", flush=True)
    added = edge.report(1.0)
    print(added)
    if chosen.write:
        table.publish("serving", text)
        table.publish("edge", added)
    return 0


def _steady(chosen: argparse.Namespace) -> int:
    plan = steady.Plan(chosen.minutes, chosen.load, chosen.model, chosen.poisson, chosen.interval_s)
    outcome = steady.run(plan)
    print(steady.report(outcome, plan))
    faults = outcome.faults()
    for fault in faults:
        print(f"not held: {fault}")
    return 1 if faults else 0


def _open(chosen: argparse.Namespace) -> int:
    if chosen.cpu is not None:
        os.sched_setaffinity(0, {chosen.cpu})
    place = urllib.parse.urlsplit(chosen.url)
    shape = [int(extent) for extent in chosen.shape.split("x")]
    text = requests.infer(chosen.model, shape, is_binary=chosen.binary, name=chosen.input)
    target = traffic.Target(
        place.hostname or "127.0.0.1", place.port or 80, text, chosen.connections
    )
    times = (traffic.poisson if chosen.poisson else traffic.constant)(chosen.rate, chosen.seconds)
    before = watch.sample(chosen.pid) if chosen.pid else None
    found = traffic.open_loop(target, times)
    summary = found.summary()
    print(summary)
    print(f"{found.num_late} left late by the generator's fault, by {found.most_late_s * 1e3:.2f} ms "
          f"at most; {found.num_waited} waited for one of {chosen.connections} connections")  # fmt: skip
    if before is not None:
        after = watch.sample(chosen.pid)
        print(f"server: {(after.cpu_s - before.cpu_s) / summary.sent * 1e6:.1f} us of CPU time for a "
              f"request, {after.rss_bytes / 1e6:.1f} MB resident in {after.processes} processes")  # fmt: skip
    return 1 if summary.num_failed else 0


def _locust(chosen: argparse.Namespace) -> int:
    command = [servers.peer_python("locust"), "-m", "locust", "--locustfile", str(_LOCUSTFILE),
               "--headless", "--host", chosen.url, "--users", str(chosen.users), "--spawn-rate",
               str(chosen.users), "--run-time", f"{chosen.seconds}s", "--only-summary"]  # fmt: skip
    told = {"OIP_MODEL": chosen.model, "OIP_RATE": str(chosen.rate)}
    if chosen.shape:
        shape = [int(extent) for extent in chosen.shape.split("x")]
        told["OIP_INPUTS"] = json.dumps([{"name": "x", "datatype": "FP32", "shape": shape}])
    return subprocess.run(command, check=False, env=os.environ | told).returncode


if __name__ == "__main__":
    sys.exit(main())
