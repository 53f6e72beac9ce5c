"""``castiron interpret``: the process in which a server runs a model with interpreted steps.

Started by the server with sockets to talk through; not meant to be called by hand.
"""

from __future__ import annotations

import argparse

HELP = "run an executable for a server, in a process of its own (started by serve)"


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("file", help="the executable file")
    parser.add_argument("fds", help="SOCKET,INPUTS,OUTPUTS: inherited file descriptors")


def run(options: argparse.Namespace) -> int:
    """Answer runs until the server closes the socket."""
    from castiron import api
    from castiron.runtime import interpreter

    instance = api.load(options.file)
    interpreter.answer(instance.run, instance.signature, options.fds)
    return 0
