"""``contract.toml`` to a Contract and back: the one door between text and record.

``parse`` gives a Contract only if it is readable and makes sense (``review.py``), and otherwise
raises ContractError with every fault. Whether it fits a model is ``check.py``.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

from castiron import errors
from castiron.contract import form, model, review, toml

FILE_NAME = "contract.toml"
METADATA_KEY = "castiron.contract"
_MAX_BYTES = 4 << 20


def parse(text: str, source: str = FILE_NAME) -> model.Contract:
    """The Contract that a TOML text says. Raises ContractError."""
    try:
        table = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as fault:
        raise errors.ContractError(source, [f"expected TOML: {fault}"]) from None
    problems: list[str] = []
    if table.get("format", model.FORMAT) != model.FORMAT:
        found = f"format: expected {model.FORMAT}, found {table['format']!r}"
        raise errors.ContractError(source, [f"{found}; a newer castiron may read it"])
    contract = form.read(model.Contract, table, "", problems)
    if isinstance(contract, model.Contract):
        problems.extend(review.problems(contract))
    if problems:
        raise errors.ContractError(source, problems)
    assert isinstance(contract, model.Contract), "unreadable without a problem"
    return contract


def text(contract: model.Contract) -> str:
    """The TOML text of a Contract; ``parse`` gives the Contract back."""
    return toml.text(form.write(contract))


def load(path: str | os.PathLike[str]) -> model.Contract:
    """The Contract in a file. Raises ContractError, or OSError when it cannot be read."""
    content = Path(path).read_bytes()
    if len(content) > _MAX_BYTES:
        fault = f"expected at most {_MAX_BYTES} bytes, found {len(content)}"
        raise errors.ContractError(str(path), [fault])
    try:
        return parse(content.decode(), str(path))
    except UnicodeDecodeError as fault:
        raise errors.ContractError(str(path), [f"expected UTF-8: {fault}"]) from None


def beside(path: str | os.PathLike[str]) -> Path | None:
    """The contract that lies beside a model file, or in a model's or version's folder, if any.

    For a file ``NAME.onnx`` or ``NAME.cast`` that is ``NAME.contract.toml``, or else
    ``contract.toml`` where no other model lies in the folder.
    """
    here = Path(path)
    if here.is_dir():
        candidates = [here / FILE_NAME]
    else:
        candidates = [here.with_name(f"{here.stem}.{FILE_NAME}")]
        if {model.stem for model in models_in(here.parent)} <= {here.stem}:
            candidates.append(here.with_name(FILE_NAME))
    return next((candidate for candidate in candidates if candidate.is_file()), None)


def models_in(folder: Path) -> list[Path]:
    """The model files in a folder, executables first."""
    return [file for suffix in ("cast", "onnx") for file in sorted(folder.glob(f"*.{suffix}"))]


def model_in(path: str | os.PathLike[str]) -> Path:
    """The model file that a path means: itself, or the one in a model's or version's folder.

    Of a model's folder the highest version counts. ContractError when there is none, or several.
    """
    here = Path(path)
    if not here.is_dir():
        return here
    versions = [child for child in here.iterdir() if child.is_dir() and child.name.isdecimal()]
    folder = max(versions, key=lambda child: int(child.name), default=here)
    found = models_in(folder)
    if len({file.stem for file in found}) != 1:
        shown = ", ".join(file.name for file in found) or "none"
        raise errors.ContractError(str(path), [f"expected one model in {folder}, found {shown}"])
    return found[0]


def name_of(path: str | os.PathLike[str]) -> str:
    """What a model is called by where it lies: MODELS/NAME/1/model.onnx, or NAME.onnx."""
    here = Path(path).resolve()
    folder = here if here.is_dir() else here.parent
    if folder.name.isdecimal():
        return folder.parent.name
    return here.name if here.is_dir() else here.stem
