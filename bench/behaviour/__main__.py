"""``python -m bench.behaviour``: every probe on every server, one table of outcomes.

    python -m bench.behaviour [--only castiron MLServer ...] [--probes WORD] [--write]

Peers are installed into environments of their own when first asked for. ``--write`` puts the table
into README.md. Ends with status 1 when castiron is wrong anywhere.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from bench import table
from bench.behaviour import ending, loading, probes, servers, ways

_Key = tuple[str, str]  # probe, way
_WAYS = ("REST", "gRPC")
# Each of these is asked of a server of its own.
_ALONE = ending.PROBES | loading.PROBES
TITLES = (*probes.PROBES, *_ALONE)


def outcomes(name: str, titles: Collection[str] = TITLES) -> dict[_Key, probes.Outcome]:
    """What one server did; a way that it does not have is not offered."""
    shared = {title: probe for title, probe in probes.PROBES.items() if title in titles}
    found: dict[_Key, probes.Outcome] = {}
    if shared:
        with _running(name, servers.Setup()) as server:
            for way in ways.ways(server):
                for title, probe in shared.items():
                    found[title, way.name] = _asked(title, probe, server, way)
    for title, (setup, probe) in _ALONE.items():
        left = list(_WAYS) if title in titles else []
        while left:
            with _running(name, setup) as server:
                offered = {way.name: way for way in ways.ways(server)}
                way = offered[left.pop(0)]
                found[title, way.name] = _asked(title, probe, server, way)
                left = [each for each in left if each in offered]
    return found


@contextlib.contextmanager
def _running(name: str, setup: servers.Setup) -> Iterator[servers.Server]:
    with (
        tempfile.TemporaryDirectory() as folder,
        servers.running(name, Path(folder), setup) as made,
    ):
        yield made


def _asked(
    title: str, probe: probes.Probe, server: servers.Server, way: ways.Way
) -> probes.Outcome:
    """A probe that cannot even be asked has found something."""
    try:
        outcome = probe(server, way)
    except Exception as fault:  # noqa: BLE001  whatever it is, the other probes go on
        outcome = probes.Outcome(probes.WRONG, f"{type(fault).__name__}: {fault}"[:200])
    print(f"{server.name:9} {way.name} {title}: {outcome.verdict}: {outcome.evidence}", flush=True)
    return outcome


def report(found: dict[str, dict[_Key, probes.Outcome]]) -> str:
    """The table, and the evidence of each cell below it."""
    missing = probes.Outcome(probes.NOT_OFFERED, "")
    keys = [(title, way) for title in TITLES for way in _WAYS]
    keys = [key for key in keys if any(key in own for own in found.values())]
    rows = [
        [f"{title}, {way}", *(own.get((title, way), missing).verdict for own in found.values())]
        for title, way in keys
    ]
    versions = [f"{name} {servers.version(name)}" for name in found]
    lines = [
        f"{', '.join(versions)}; the same models, in the peers by onnxruntime",
        (
            f"batches of at most {servers.MAX_BATCH}, for which MLServer and LitServe wait "
            f"{servers.WINDOW_S * 1e3:.0f} ms; castiron takes calls for {servers.DRAIN_DELAY_S} s "
            "after SIGTERM"
        ),
        f"load average {os.getloadavg()[0]:.1f} on {len(os.sched_getaffinity(0))} CPUs",
    ]
    evidence = [
        f"- {title}, {way}: {name}: {outcome.evidence}"
        for title, way in keys
        for name, own in found.items()
        if (outcome := own.get((title, way))) is not None and outcome.evidence
    ]
    shown = table.with_heading(lines, table.markdown(["probe", *found], rows))
    return (
        f"{shown}\n\n<details><summary>Evidence</summary>\n\n"
        + "\n".join(evidence)
        + "\n\n</details>"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line of this file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=servers.NAMES, default=servers.NAMES)
    parser.add_argument("--probes", default="", help="only those with this in their title")
    parser.add_argument("--write", action="store_true", help="put the table into README.md")
    chosen = parser.parse_args(arguments)
    titles = [title for title in TITLES if chosen.probes in title]
    found = {name: outcomes(name, titles) for name in chosen.only}
    text = report(found)
    print(f"\n{text}")
    if chosen.write:
        table.publish("behaviour", text)
    ours = found.get("castiron", {}).values()
    return 1 if any(outcome.verdict == probes.WRONG for outcome in ours) else 0


if __name__ == "__main__":
    sys.exit(main())
