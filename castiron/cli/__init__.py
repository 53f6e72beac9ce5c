"""The command line: one file per command, each from options to one call of ``api``.

Every command module has ``HELP``, ``add_options(parser)`` and ``run(options) -> exit code``.
A failure that castiron reports on purpose prints one message and exits with 1; wrong options
exit with 2.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from castiron import __version__, errors

COMMANDS = (
    "build",
    "contract",
    "run",
    "serve",
    "dashboard",
    "inspect",
    "profile",
    "bench",
    "verify",
    "doctor",
    "admit",
    "models",
    "interpret",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the process's exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(
        prog="castiron", description="Compile a trained model to one file and serve it."
    )
    parser.add_argument("--version", action="version", version=f"castiron {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    # Only the chosen command is imported: a server's process is none of the compiler's.
    for name in [words[0]] if words and words[0] in COMMANDS else COMMANDS:
        module = importlib.import_module(f"castiron.cli.{name}")
        command = commands.add_parser(name, help=module.HELP, description=module.HELP)
        module.add_options(command)
        command.set_defaults(run=module.run)
    options = parser.parse_args(words)
    options.words = words
    try:
        return int(options.run(options))
    except errors.CastironError as error:
        notes = "".join(f"\n  {note}" for note in getattr(error, "__notes__", ()))
        print(f"castiron {options.command}: {error}{notes}", file=sys.stderr)
        return 1
    except (FileNotFoundError, PermissionError, IsADirectoryError) as error:
        print(f"castiron {options.command}: {error.filename}: {error.strerror}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        sys.stderr.close()
        return 1
    except KeyboardInterrupt:
        return 130
