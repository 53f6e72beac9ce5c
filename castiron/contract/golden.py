"""Golden cases: requests whose answers a contract knows, as arrays, and whether an answer fits.

Whoever admits a version runs them; a version that answers otherwise takes no request. Data files
lie beside the contract and hold plain arrays: nothing in them is ever unpickled.
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from castiron import errors
from castiron.contract import model
from castiron.tensor import dtype as dtypes
from castiron.tensor import elements

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class Case:
    """One request and what of its answer is looked at."""

    name: str
    inputs: Arrays
    outputs: Arrays
    rtol: float
    atol: float


def cases(contract: model.Contract, folder: Path) -> list[Case]:
    """The contract's cases; ``folder`` is where its data files lie.

    Raises ContractError with every file that cannot be used.
    """
    problems: list[str] = []
    found = []
    for index, golden in enumerate(contract.golden):
        try:
            inputs, outputs = _arrays(golden, contract, folder)
        except (OSError, ValueError, EOFError, zipfile.BadZipFile) as fault:
            problems.append(f"golden[{index}].file: {golden.file}: {fault}")
            continue
        found.append(Case(golden.name, inputs, outputs, golden.rtol, golden.atol))
    if problems:
        raise errors.ContractError(contract.name, problems)
    return found


def _arrays(golden: model.Golden, contract: model.Contract, folder: Path) -> tuple[Arrays, Arrays]:
    if not golden.file:
        return (
            _written(golden.inputs, contract.input),
            _written(golden.outputs, contract.output),
        )
    if Path(golden.file).name != golden.file:
        raise ValueError("expected the name of a file beside the contract, without folders")
    sides: dict[str, Arrays] = {"inputs": {}, "outputs": {}}
    with np.load(folder / golden.file, allow_pickle=False) as held:
        for key in held.files:
            side, _, name = key.partition(".")
            if side not in sides or not name:
                raise ValueError(f"expected arrays inputs.NAME and outputs.NAME, found {key!r}")
            sides[side][name] = held[key]
    return sides["inputs"], sides["outputs"]


def _written(samples: Mapping[str, model.Sample], tensors: tuple[model.Tensor, ...]) -> Arrays:
    datatypes = {tensor.name: tensor.datatype for tensor in tensors}
    return {
        name: np.array(sample.data, _numpy_dtype(datatypes[name])).reshape(sample.shape)
        for name, sample in samples.items()
    }


def _numpy_dtype(datatype: str) -> np.dtype:
    dtype = dtypes.from_oip(datatype)
    assert dtype is not None, datatype  # ``review.py`` has looked
    return elements.numpy_dtype(dtype)


def faults(case: Case, answer: Mapping[str, np.ndarray]) -> list[str]:
    """Each output that is not as the case says; empty when all are."""
    found = []
    for name, expected in case.outputs.items():
        if name not in answer:
            found.append(f"golden {case.name!r}: expected an output {name!r}, found none")
        elif fault := _difference(expected, answer[name], case):
            found.append(f"golden {case.name!r}, output {name!r}: {fault}")
    return found


def _difference(expected: np.ndarray, found: np.ndarray, case: Case) -> str:
    if expected.shape != found.shape:
        return f"expected shape {list(expected.shape)}, found {list(found.shape)}"
    if found.dtype.kind in "OSUb" or expected.dtype.kind in "OSUb":
        num_wrong = int(np.sum(expected.astype(str) != found.astype(str)))
        return f"{num_wrong} of {found.size} values differ" if num_wrong else ""
    one, other = expected.astype(np.float64), found.astype(np.float64)
    is_near = np.isclose(other, one, rtol=case.rtol, atol=case.atol, equal_nan=True)
    if is_near.all():
        return ""
    at = tuple(int(index) for index in np.argwhere(~is_near)[0])
    count = math.prod(found.shape) - int(is_near.sum())
    return (
        f"{count} of {found.size} values differ; at {list(at)} expected {one[at]:g} "
        f"within rtol {case.rtol:g} and atol {case.atol:g}, found {other[at]:g}"
    )
