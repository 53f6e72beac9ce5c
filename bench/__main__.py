"""`python -m bench`: every published number, measured again; `--write` puts them into README.md."""

from __future__ import annotations

import sys

from bench import latency, memory, start
from bench.deadlines import __main__ as deadlines


def main(arguments: list[str]) -> None:
    """Run all scripts with the arguments that all of them take."""
    for script in (latency, start, memory, deadlines):
        print(f"\n== {script.__name__}\n", flush=True)
        script.main(arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
