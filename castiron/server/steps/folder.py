"""The files beside a contract that its steps name, and the model's metadata: names by line.

No name leads out of the folder. Everything wrong is a ContractError at load, not at a request.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from castiron import errors
from castiron.contract import steps

_MAX_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Folder:
    """Where a version's files lie, and what its model says about itself."""

    path: Path
    metadata: Mapping[str, str] = field(default_factory=dict)

    def file(self, name: str) -> Path:
        """The path of a file that must be there. Raises ContractError."""
        path = (self.path / name).resolve()
        if not path.is_relative_to(self.path.resolve()):
            raise _wrong(name, "expected a file beside the contract, found a way out of its folder")
        if not path.is_file():
            raise _wrong(name, "expected this file beside the contract, found none")
        if path.stat().st_size > _MAX_BYTES:
            raise _wrong(name, f"expected at most {_MAX_BYTES} bytes")
        return path

    def names(self, step: steps.Labels | steps.BoxLabels | steps.CtcText) -> tuple[str, ...]:
        """The names or characters of a step, from wherever it has them. Raises ContractError."""
        if step.file:
            try:
                return _lines(self.file(step.file).read_text("utf-8-sig"))
            except UnicodeDecodeError as fault:
                raise _wrong(step.file, f"expected UTF-8: {fault}") from None
        key = getattr(step, "metadata", "")
        if key:
            if key not in self.metadata:
                known = ", ".join(sorted(self.metadata)) or "none"
                raise _wrong("metadata", f"the model has no {key!r}; it has {known}")
            return _listed(self.metadata[key], key)
        given = step.characters if isinstance(step, steps.CtcText) else step.names
        return tuple(given)


def _listed(text: str, key: str) -> tuple[str, ...]:
    """Lines, or what exporters of detectors write: a Python dict of numbers from 0 to names."""
    if not text.startswith("{"):
        return _lines(text)
    try:
        found = ast.literal_eval(text)
        return tuple(str(found[index]) for index in range(len(found)))
    except (ValueError, SyntaxError, KeyError, TypeError, MemoryError, RecursionError):
        raise _wrong(
            "metadata", f"expected names by number in {key!r}, found {text[:60]!r}"
        ) from None


def _lines(text: str) -> tuple[str, ...]:
    """Split at line feeds only: other separators of Unicode may be characters of a set."""
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    return tuple(lines[:-1] if lines[-1] == "" else lines)


def characters(folder: Folder, step: steps.CtcText) -> tuple[str, ...]:
    """The characters by class number, the blank left out."""
    found = folder.names(step)
    return (*found, " ") if step.has_space else found


def _wrong(name: str, problem: str) -> errors.ContractError:
    return errors.ContractError(name, [problem])
