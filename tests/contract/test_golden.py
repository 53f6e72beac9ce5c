"""Golden cases as arrays, from the contract or a file beside it, and what counts as the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from castiron import errors
from castiron.contract import golden, model

FLOAT = model.Tensor(name="x", datatype="FP32", shape=("n",))
WORDS = model.Tensor(name="w", datatype="BYTES", shape=("n",))


def contract(case: model.Golden) -> model.Contract:
    return model.Contract(
        "m", input=(FLOAT, WORDS), output=(model.Tensor(name="y", datatype="INT64", shape=("n",)),),
        golden=(case,),
    )  # fmt: skip


def one(case: model.Golden, folder: Path) -> golden.Case:
    (found,) = golden.cases(contract(case), folder)
    return found


def test_samples_become_arrays_of_the_tensors_types(tmp_path: Path) -> None:
    case = model.Golden(
        "c",
        {"x": model.Sample((2,), (1, 2.5)), "w": model.Sample((1,), ("a",))},
        {"y": model.Sample((1,), (7,))},
    )
    found = one(case, tmp_path)
    assert found.inputs["x"].dtype == np.float32
    assert found.inputs["w"].tolist() == ["a"]
    assert found.outputs["y"].dtype == np.int64


def test_what_is_near_enough_is_the_same_and_what_is_not_is_told(tmp_path: Path) -> None:
    case = golden.Case("c", {}, {"y": np.array([1.0, np.nan, 100.0])}, rtol=1e-2, atol=0.0)
    assert golden.faults(case, {"y": np.array([1.005, np.nan, 99.5])}) == []
    (fault,) = golden.faults(case, {"y": np.array([1.0, np.nan, 90.0])})
    assert "1 of 3 values differ; at [2] expected 100" in fault
    (fault,) = golden.faults(case, {"y": np.zeros((3, 1))})
    assert "expected shape [3], found [3, 1]" in fault
    (fault,) = golden.faults(case, {})
    assert "found none" in fault


def test_words_must_be_the_same_words() -> None:
    case = golden.Case("c", {}, {"w": np.array(["a", "b"], object)}, rtol=9, atol=9)
    assert golden.faults(case, {"w": np.array(["a", "b"], object)}) == []
    assert "1 of 2" in golden.faults(case, {"w": np.array(["a", "c"], object)})[0]


@pytest.mark.parametrize(
    "arrays, where",
    [
        ({"x": np.ones(2)}, "inputs.NAME"),
        ({"inputs.x": np.array([{}], object)}, "allow_pickle"),
    ],
)
def test_a_file_of_something_else_is_refused_and_never_unpickled(
    arrays: dict[str, Any], where: str, tmp_path: Path
) -> None:
    np.savez(tmp_path / "c.npz", **arrays)
    with pytest.raises(errors.ContractError, match=where):
        one(model.Golden("c", file="c.npz"), tmp_path)


@pytest.mark.parametrize("name", ["../c.npz", "none.npz"])
def test_a_file_elsewhere_or_nowhere_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(errors.ContractError, match=r"golden\[0\].file"):
        one(model.Golden("c", file=name), tmp_path / "folder")
