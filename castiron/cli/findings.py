"""A finding of ``castiron doctor``: what was found, what follows from it, what to do about it.

How findings are made is in ``doctor_limits.py`` and ``doctor_trial.py``; here is how they look.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

_MARKS = {"good": " ", "note": "!", "broken": "X"}


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """``found`` and ``follows`` are sentences; ``todo`` is empty where nothing is to be done.

    ``is_broken``: something will not work. ``values`` are the numbers, for programs.
    """

    name: str
    found: str
    follows: str
    todo: str = ""
    is_broken: bool = False
    values: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def state(self) -> str:
        """``good``, ``note`` (it works, and could be better) or ``broken``."""
        if self.is_broken:
            return "broken"
        return "note" if self.todo else "good"


def text(findings: Sequence[Finding]) -> str:
    """A table for people; the last line says whether all will work."""
    width = max(len(each.name) for each in findings)
    lines = []
    for each in findings:
        lines.append(f"{_MARKS[each.state]} {each.name:{width}}  {each.found}")
        lines.append(f"  {'':{width}}  -> {each.follows}")
        if each.todo:
            lines.append(f"  {'':{width}}  do: {each.todo}")
    broken = [each.name for each in findings if each.is_broken]
    notes = sum(each.state == "note" for each in findings)
    if broken:
        lines.append(f"will not work: {', '.join(broken)}")
    else:
        lines.append(f"all will work{f', {notes} could be better (!)' if notes else ''}")
    return "\n".join(lines)


def document(findings: Sequence[Finding]) -> dict[str, Any]:
    """The same for programs."""
    return {
        "works": not any(each.is_broken for each in findings),
        "findings": [dataclasses.asdict(each) | {"state": each.state} for each in findings],
    }
