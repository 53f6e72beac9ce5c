"""``castiron doctor``: what this machine allows, what follows from it, and whether all works here.

Ends with status 1 when something will not work.
"""

from __future__ import annotations

import argparse
import json

HELP = "tell what this machine allows, what follows, and what will not work"


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    parser.add_argument("--host", default="127.0.0.1", help="the address of a server to be")
    parser.add_argument(
        "--port", type=int, default=0, help="its port (default: any, to see whether loopback works)"
    )
    parser.add_argument("--workers", type=int, default=1, help="its workers (default: 1)")
    parser.add_argument(
        "--no-model", action="store_true", help="do not build and run a small model"
    )
    parser.add_argument(
        "--root", default="/", help="where proc and sys are looked for, if not of this machine"
    )


def run(options: argparse.Namespace) -> int:
    """Look, try, and print."""
    from castiron import errors
    from castiron.cli import doctor_limits, doctor_trial, findings

    if options.workers < 1:
        raise errors.InputError(f"expected at least 1, found {options.workers}", "--workers")
    found = [
        *doctor_limits.findings(options.root, options.workers),
        *doctor_trial.findings(options.host, options.port),
    ]
    if not options.no_model:
        found.append(doctor_trial.model())
    if options.json:
        print(json.dumps(findings.document(found), indent=1))
    else:
        print(findings.text(found))
    return int(any(each.is_broken for each in found))
