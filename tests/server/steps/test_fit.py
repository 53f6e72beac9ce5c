"""Declared steps against a model's tensors: every mismatch, by field."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from castiron.contract import document, model, steps
from castiron.contract.model import Column, Contract, Entry
from castiron.server.steps import fit, folder
from tests.server.steps import contracts

DECODE, NORMALISE = steps.DecodeImage(), steps.Normalise()


def problems(contract: Contract, **metadata: str) -> list[str]:
    found = folder.Folder(Path("nowhere"), metadata)
    return fit.mismatches(contract, found, has_before=False, has_after=False)


def test_what_fits_has_no_problem() -> None:
    assert problems(contracts.picture()) == []
    for file in Path("examples/03-image-by-curl").glob("*.contract.toml"):
        many = {"character": "\n".join("x" * (6623 if "ocr" in file.name else 4)),
                "names": "\n".join("x" * 18)}  # fmt: skip
        assert problems(document.load(file), **many) == []


def image(*between: steps.Step, shape: tuple[Any, ...] = ("n", 3, 8, 8)) -> Contract:
    entry = Entry("image", "image", "x", steps=(DECODE, *between, NORMALISE))
    return contracts.of(entry, tensors={"x": ("FP32", shape)})


@pytest.mark.parametrize(
    "contract, wanted",
    [
        (image(), "schema.input[0].steps[1]: makes what the request brings in dim 2"),
        (image(steps.Resize(8)), "steps[2]: makes what the request brings in dim 3"),
        (image(steps.Resize(8, 9)), "steps[2]: makes 9 in dim 3, the model's 'x' has 8"),
        (image(steps.Resize(8, 8), steps.Crop(9, 8)), "height: expected at most the 8 there are"),
        (image(steps.Resize(8, 8), shape=("n", 1, 8, 8)), "makes 3 in dim 1"),
        (image(steps.Resize(8, 8), shape=(3, 8, 8)), "makes 4 dims, the model's 'x' has 3"),
        (contracts.of(Entry("f", "flag", "x")), "makes 1 in dim 1, the model's 'x' has 4"),
        (contracts.of(Entry("t", "table", "x", columns=(Column("a"),))), "makes 1 in dim 1"),
        (contracts.of(Entry("t", "text", "x")), "expected tokenize, since 'x' is FP32"),
        (contracts.of(Entry("t", "labels", "x")), "kind: labels as an input need a pipeline"),
        (contracts.of(Entry("t", "text")), "no entry makes the model's input 'x'"),
        (
            contracts.of(Entry("t", "text", "x", steps=(steps.Tokenize("t.json", 4, mask="m"),))),
            "the model has no input 'm'",
        ),
        (
            contracts.of(Entry("t", "text", "x", steps=(steps.Tokenize("t.json", 4),))),
            "tokens are integers, 'x' is FP32",
        ),
        (
            contracts.of(Entry("t", "text", "x", steps=(steps.Tokenize("t.json", 4),))),
            "steps[0].file: 't.json': expected this file beside the contract",
        ),
        (
            contracts.of(Entry("t", "tensor", "x"), Entry("u", "tensor", "x")),
            "the input 'x' is made by schema.input[0] already",
        ),
        (
            contracts.of(Entry("t", "tensor", "x", optional=True)),
            "optional: the model cannot do without its input 'x'",
        ),
    ],
)
def test_inputs_that_do_not_fit_are_told_by_field(contract: Contract, wanted: str) -> None:
    found = problems(contract)
    assert any(wanted in line for line in found), found


NAMES = steps.Labels(names=("a", "b"))


@pytest.mark.parametrize(
    "entry, wanted",
    [
        (Entry("l", "labels", "y", steps=(steps.TopK(), NAMES)), "expected 3 names, as many"),
        (Entry("l", "labels", "y"), "expected steps that make labels of FP32"),
        (Entry("l", "image", "y"), "images as outputs need a pipeline"),
        (Entry("l", "number", "y", steps=(steps.Softmax(2),)), "axis: the model's 'y' has 2 dims"),
        (Entry("b", "boxes", "y", steps=(steps.Nms(),)), "the model's dim has 3"),
        (
            Entry("t", "text", "y", steps=(steps.CtcText(characters="abc"),)),
            "expected 2 characters beside the blank",
        ),
        (
            Entry("l", "labels", "y", steps=(steps.TopK(), steps.Labels(metadata="names"))),
            "the model has no 'names'; it has none",
        ),
        (
            Entry("l", "labels", "y", steps=(steps.TopK(), steps.Labels(file="l.txt"))),
            "'l.txt': expected this file beside the contract",
        ),
    ],
)
def test_outputs_that_do_not_fit_are_told_by_field(entry: Entry, wanted: str) -> None:
    found = problems(contracts.giving(entry))
    assert any(wanted in line for line in found), found
    assert all(line.startswith("schema.output[0]") for line in found)


def test_all_mismatches_come_at_once_and_a_pipelines_side_is_passed_over() -> None:
    contract = contracts.of(Entry("t", "labels", "x"), Entry("u", "labels", "x"))
    assert len(problems(contract)) == 3
    whole = model.Contract("m", input=contract.input, schema=contract.schema)
    assert fit.mismatches(whole, contracts.NOWHERE, has_before=True, has_after=True) == []
