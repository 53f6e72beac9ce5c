"""Which versions of a model are served: the latest few, all, or some; and names for versions.

Read from ``models.toml`` in the models folder, looked at again whenever a model is loaded. Nothing
here opens or moves a version; ``registry.py`` asks.
The keys are the fields of ``Policy``, in tables ``[default]`` and ``[models.NAME]``.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from castiron import errors

FILE_NAME = "models.toml"
_LABEL = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,63}")
_FORMS = ("all", "latest")


@dataclass(frozen=True, slots=True)
class Policy:
    """What is served of one model."""

    serve: str | tuple[int, ...] = "all"
    """``all``, ``latest``, or the numbers."""

    latest: int = 1
    """How many of the highest numbers, if ``serve`` says so."""

    keep: int = 1
    """Versions that no longer answer and stay mapped."""

    labels: Mapping[str, int] = field(default_factory=dict)
    """Names that clients may write where a number goes."""

    pinned: bool = False
    """Never taken away to make room."""

    def wanted(self, numbers: Collection[int], promoted: int | None) -> set[int]:
        """Of the numbers that there are, those that answer.

        What somebody promoted counts as the newest: later ones wait until they are promoted.
        """
        held = {number for number in numbers if promoted is None or number <= promoted}
        if self.serve == "all":
            return held
        if self.serve == "latest":
            chosen = set(sorted(held)[-self.latest :])
        else:
            chosen = held & set(self.serve)
        labelled = set(self.labels.values()) & set(numbers)
        return chosen | labelled | ({promoted} & set(numbers) if promoted is not None else set())


@dataclass(frozen=True, slots=True)
class Policies:
    """Of all models of a folder."""

    default: Policy = Policy()
    models: Mapping[str, Policy] = field(default_factory=dict)

    def of(self, model: str) -> Policy:
        """The policy of this model."""
        return self.models.get(model, self.default)


def load(models_dir: Path) -> Policies:
    """What the folder's ``models.toml`` says; without one, every version is served.

    Raises CastironError with the path of the faulty entry.
    """
    path = models_dir / FILE_NAME
    try:
        table = tomllib.loads(path.read_text())
    except FileNotFoundError:
        return Policies()
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as fault:
        raise errors.CastironError(f"{path}: expected TOML: {fault}") from None
    for key in table:
        if key not in {"default", "models"}:
            raise _fault(path, key, "[default] or [models.NAME]", key)
    default = _read(path, "default", table.get("default", {}), Policy())
    entries = table.get("models", {})
    if not isinstance(entries, dict):
        raise _fault(path, "models", "tables [models.NAME]", entries)
    found = {name: _read(path, f"models.{name}", entry, default) for name, entry in entries.items()}
    return Policies(default, found)


def _read(path: Path, where: str, table: Any, default: Policy) -> Policy:
    if not isinstance(table, dict):
        raise _fault(path, where, "a table", table)
    changed: dict[str, Any] = {}
    for key, value in table.items():
        place = f"{where}.{key}"
        if key == "serve":
            changed[key] = _serve(path, place, value)
        elif key in {"latest", "keep"}:
            changed[key] = _count(path, place, value, least=int(key == "latest"))
        elif key == "labels":
            changed[key] = _labels(path, place, value)
        elif key == "pinned" and isinstance(value, bool):
            changed[key] = value
        else:
            raise _fault(path, place, "serve, latest, keep, labels or pinned (a boolean)", value)
    return replace(default, **changed)


def _serve(path: Path, where: str, value: Any) -> str | tuple[int, ...]:
    if isinstance(value, str) and value in _FORMS:
        return value
    if isinstance(value, list) and value and all(type(each) is int and each > 0 for each in value):
        return tuple(value)
    raise _fault(path, where, '"all", "latest" or a list of version numbers', value)


def _count(path: Path, where: str, value: Any, least: int) -> int:
    if type(value) is int and value >= least:
        return value
    raise _fault(path, where, f"a number of {least} or more", value)


def _labels(path: Path, where: str, value: Any) -> dict[str, int]:
    is_table = isinstance(value, dict)
    if is_table and all(type(number) is int and number > 0 for number in value.values()):
        wrong = next((name for name in value if not _LABEL.fullmatch(name)), None)
        if wrong is None:
            return dict(value)
        raise _fault(path, where, "labels of letters, digits, '.', '_', '-', a letter first", wrong)
    raise _fault(path, where, "a table of label = version number", value)


def _fault(path: Path, where: str, expected: str, found: Any) -> errors.CastironError:
    return errors.CastironError(f"{path}: {where}: expected {expected}, found {found!r}")
