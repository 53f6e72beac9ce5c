"""``castiron verify``: check every digest of an executable file."""

from __future__ import annotations

import argparse

HELP = "check every byte of an executable file against its digests"


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("file", help="the executable file")


def run(options: argparse.Namespace) -> int:
    """Verify and say so."""
    from castiron import api

    api.verify(options.file)
    print(f"{options.file}: every part matches its digest")
    return 0
