"""``python -m bench.behaviour``: every probe on every server, one table of outcomes.

    python -m bench.behaviour [--only castiron MLServer ...] [--write]

Peers are installed into environments of their own when first asked for. ``--write`` puts the table
into README.md. Ends with status 1 when castiron is wrong anywhere.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench import table
from bench.behaviour import probes, servers, ways

_Key = tuple[str, str]  # probe, way
_WAYS = ("REST", "gRPC")


def outcomes(name: str) -> dict[_Key, probes.Outcome]:
    """What one server did; a way that it does not have is not offered."""
    found: dict[_Key, probes.Outcome] = {}
    with tempfile.TemporaryDirectory() as folder, servers.running(name, Path(folder)) as server:
        for way in ways.ways(server):
            for title, probe in probes.PROBES.items():
                outcome = _asked(probe, server, way)
                found[title, way.name] = outcome
                print(f"{name:9} {way.name} {title}: {outcome.verdict}: {outcome.evidence}",
                      flush=True)  # fmt: skip
    return found


def _asked(probe: probes.Probe, server: servers.Server, way: ways.Way) -> probes.Outcome:
    """A probe that cannot even be asked has found something."""
    try:
        return probe(server, way)
    except Exception as fault:  # noqa: BLE001  whatever it is, the other probes go on
        return probes.Outcome(probes.WRONG, f"{type(fault).__name__}: {fault}"[:200])


def report(found: dict[str, dict[_Key, probes.Outcome]]) -> str:
    """The table, and the evidence of each cell below it."""
    missing = probes.Outcome(probes.NOT_OFFERED, "")
    keys = [(title, way) for title in probes.PROBES for way in _WAYS]
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
            f"{servers.WINDOW_S * 1e3:.0f} ms"
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
    parser.add_argument("--write", action="store_true", help="put the table into README.md")
    chosen = parser.parse_args(arguments)
    found = {name: outcomes(name) for name in chosen.only}
    text = report(found)
    print(f"\n{text}")
    if chosen.write:
        table.publish("behaviour", text)
    ours = found.get("castiron", {}).values()
    return 1 if any(outcome.verdict == probes.WRONG for outcome in ours) else 0


if __name__ == "__main__":
    sys.exit(main())
