"""``python -m bench.chaos``: every fault, one table, and what must not be.

    python -m bench.chaos [--seconds 120] [--only kill stop disk memory cpu box] [--write]

The time is that of all faults together. Ends with status 1 when anything is wrong. ``--write`` puts
the table into docs/lifecycle.md.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench import table
from bench.chaos import faults, limits, sharing

_PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "lifecycle.md"
_HEAD = ("fault", "hits", "requests", "lost", "refused", "p99 ms", "back after s, mean", "most",
         "ready and no answer", "accepted", "outcomes")  # fmt: skip


def outcomes(names: Sequence[str], seconds: float) -> list[faults.Outcome]:
    """What came of each fault; one that cannot be made here says why."""
    found = []
    for name in names:
        with tempfile.TemporaryDirectory(prefix=f"castiron-chaos-{name}-") as folder:
            try:
                outcome = faults.FAULTS[name](Path(folder), seconds / len(names))
            except limits.NotPossibleError as fault:
                outcome = faults.Outcome(name, remarks=[f"not possible here: {fault}"])
        found.append(outcome)
        print(f"{outcome.fault}: {'; '.join([*outcome.remarks, *outcome.wrong]) or 'as it must'}",
              flush=True)  # fmt: skip
    return found


def report(found: Sequence[faults.Outcome], shared: str) -> str:
    """The table, and what else is to be told."""
    rows = [_row(each) for each in found if each.sent]
    lines = [
        (
            f"two workers unless said, open loop, {faults.CONNECTIONS} connections; load average "
            f"{os.getloadavg()[0]:.1f} on {len(os.sched_getaffinity(0))} CPUs"
        ),
        *(f"{each.fault}: {remark}" for each in found for remark in each.remarks),
        *([shared] if shared else []),
        *(f"WRONG, {each.fault}: {what}" for each in found for what in each.wrong),
    ]
    return table.with_heading(lines, table.markdown(_HEAD, rows))


def _row(each: faults.Outcome) -> list[str]:
    back = ["", ""]
    if each.back_s:
        back = [f"{statistics.fmean(each.back_s):.2f}", f"{max(each.back_s):.2f}"]
    return [each.fault, str(each.hits), str(each.sent), str(each.lost), str(each.refused),
            f"{each.p99_ms:.1f}", *back, str(each.lies), str(each.accepted),
            str(each.ended)]  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line of this file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=120.0, help="of all faults together")
    parser.add_argument("--only", nargs="+", choices=faults.FAULTS, default=list(faults.FAULTS))
    parser.add_argument("--no-sharing", action="store_true", help="do not look at shared weights")
    parser.add_argument("--write", action="store_true", help="put the table into docs/lifecycle.md")
    chosen = parser.parse_args(arguments)
    found = outcomes(chosen.only, chosen.seconds)
    shared, is_shared = "", True
    if not chosen.no_sharing:
        shared, is_shared = sharing.told(num_workers=3, megabytes=100)
    text = report(found, shared)
    print(f"\n{text}")
    if chosen.write:
        table.publish("chaos", text, _PAGE)
    return int(not is_shared or any(each.wrong for each in found))


if __name__ == "__main__":
    sys.exit(main())
