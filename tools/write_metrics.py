"""Write ``docs/metrics.md`` from the table of families; with ``--check`` only say if it is old."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from castiron.telemetry import families

PAGE = Path(__file__).parent.parent / "docs" / "metrics.md"


def main(words: Sequence[str]) -> int:
    """Write or check the page; 1 when it is old and was not to be written."""
    text = families.page()
    if "--check" in words:
        is_same = PAGE.is_file() and PAGE.read_text() == text
        print(f"{PAGE.name}: {'as the code says' if is_same else 'old; run tools.write_metrics'}")
        return 0 if is_same else 1
    PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
