"""What lies in the models folder: models, their numbered versions, and the file of each.

Looks only at names and files; opens nothing. Requests never touch paths: names from outside are
looked up in what was found here, so no name can lead out of the folder.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_VERSION_NAME = re.compile(r"[1-9][0-9]{0,17}")
_RESERVED = frozenset({"stats"})  # GET /v2/models/stats is a call of the protocol
_FILES = ("model.cast", "model.onnx")


@dataclass(frozen=True, slots=True)
class Found:
    """One version's folder; ``file`` is None when ``problem`` says why it cannot be used."""

    model: str
    number: int
    file: Path | None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Listing:
    """Everything found: versions in order of model and number, and folders passed over."""

    versions: tuple[Found, ...]
    passed_over: tuple[str, ...]


def scan(models_dir: Path) -> Listing:
    """List ``models_dir``/<model>/<number>/model.cast or model.onnx.

    Raises NotADirectoryError when the folder itself is missing.
    """
    if not models_dir.is_dir():
        raise NotADirectoryError(f"expected a folder of models, found none at {models_dir}")
    versions: list[Found] = []
    passed_over: list[str] = []
    for folder in _visible_folders(models_dir):
        if not _MODEL_NAME.fullmatch(folder.name) or folder.name in _RESERVED:
            passed_over.append(
                f"{folder.name!r} is not a model name: expected letters, digits, '.', '_' or '-', "
                f"starting with a letter or digit, at most 128, not {sorted(_RESERVED)}"
            )
            continue
        found = _versions(folder, passed_over)
        if not found:
            passed_over.append(
                f"{folder.name}: expected a numbered folder holding model.cast or model.onnx, "
                f"such as {folder.name}/1/model.onnx; found none"
            )
        versions += found
    return Listing(tuple(versions), tuple(passed_over))


def of_model(models_dir: Path, model: str) -> list[Found]:
    """The versions of one model, whose name has been found before; none when it is gone."""
    folder = models_dir / model
    return _versions(folder, []) if folder.is_dir() else []


def _versions(model: Path, passed_over: list[str]) -> list[Found]:
    found: list[Found] = []
    for folder in _visible_folders(model):
        if _VERSION_NAME.fullmatch(folder.name):
            found.append(_version(model.name, folder))
        else:
            passed_over.append(f"{model.name}/{folder.name} is not a version number")
    return sorted(found, key=lambda version: version.number)


def _version(model: str, folder: Path) -> Found:
    for name in _FILES:
        if (folder / name).is_file():
            return Found(model, int(folder.name), folder / name)
    problem = f"expected {' or '.join(_FILES)} in {folder}, found neither"
    return Found(model, int(folder.name), None, problem)


def _visible_folders(folder: Path) -> list[Path]:
    entries = (entry for entry in folder.iterdir() if not entry.name.startswith("."))
    return sorted(entry for entry in entries if entry.is_dir())
