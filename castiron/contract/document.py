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
    """The contract of a model file or of a folder, if there is one.

    For a file ``NAME.onnx`` or ``NAME.cast`` that is ``NAME.contract.toml``, else
    ``contract.toml`` in its folder, or in the folder above where the folder is a version's.
    """
    here = Path(path)
    folder = here if here.is_dir() else here.parent
    candidates = [folder / FILE_NAME]
    if here != folder:
        candidates.insert(0, folder / f"{here.stem}.{FILE_NAME}")
    if folder.name.isdecimal():
        candidates.append(folder.parent / FILE_NAME)
    return next((candidate for candidate in candidates if candidate.is_file()), None)
