"""``castiron admit``: the process in which a server judges a version before it may answer.

Started by the server; by hand it says the same about a file that is to be published.
"""

from __future__ import annotations

import argparse

HELP = "judge an executable as a server would: digests, contract, golden cases"


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("file", help="the executable file")
    parser.add_argument(
        "--source", help="the file beside which the contract lies (default: the executable)"
    )
    parser.add_argument("--previous", help="the executable that clients know so far")


def run(options: argparse.Namespace) -> int:
    """Judge; the exit status is the verdict."""
    from castiron import api

    api.judge(options.file, options.source, options.previous)
    print(f"{options.file} may answer")
    return 0
