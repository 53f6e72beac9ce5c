"""Tables: printed for people, and kept in README.md between two markers.

A section of README.md that reads `<!-- bench:latency -->` ... `<!-- /bench:latency -->` is what
the script `bench.latency` last wrote there when asked with `--write`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

_README = Path(__file__).resolve().parent.parent / "README.md"


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown, its first column to the left, all others to the right."""
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]

    def line(cells: Sequence[str]) -> str:
        padded = [cells[0].ljust(widths[0])]
        padded += [cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True)]
        return "| " + " | ".join(padded) + " |"

    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    return "\n".join([line(head), line(rule), *map(line, rows)])


def with_heading(lines: Sequence[str], text: str) -> str:
    """Tables under the lines that say on what and how they were measured, as a list."""
    return "\n".join([*(f"- {line}" for line in lines), "", text])


def publish(name: str, text: str, readme: Path = _README) -> None:
    """Put a text between the markers of its name. Raises `ValueError` without such markers."""
    start, end = f"<!-- bench:{name} -->", f"<!-- /bench:{name} -->"
    pattern = re.compile(re.escape(start) + ".*?" + re.escape(end), re.DOTALL)
    before = readme.read_text()
    if not pattern.search(before):
        raise ValueError(f"{readme.name} has no markers {start} ... {end}")
    readme.write_text(pattern.sub(lambda _: f"{start}\n{text}\n{end}", before))
