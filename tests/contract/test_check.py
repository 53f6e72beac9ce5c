"""A contract against its model: every mismatch by field; and the contract of a model without one."""

from __future__ import annotations

import dataclasses

import pytest

from castiron import errors
from castiron.contract import check, derive, document, review
from castiron.tensor import dtype as dtypes
from castiron.tensor.signature import Signature, TensorSpec

SIGNATURE = Signature(
    (TensorSpec("image", dtypes.FLOAT32, ("N", 3, 8)), TensorSpec("size", dtypes.INT64, ("N",))),
    (TensorSpec("scores", dtypes.BFLOAT16, ("N", "2*M")),),
)
DERIVED = derive.derive(SIGNATURE, {}, "net")


def test_a_derived_contract_fits_makes_sense_and_can_be_read_back() -> None:
    assert check.check(DERIVED, SIGNATURE) == []
    assert review.problems(DERIVED) == []
    assert document.parse(document.text(DERIVED)) == DERIVED
    assert [tensor.datatype for tensor in DERIVED.input + DERIVED.output] == [
        "FP32",
        "INT64",
        "BF16",
    ]


def test_requests_are_put_together_only_where_rows_are_one_symbol() -> None:
    assert DERIVED.limits.batch_rows == 32
    fixed = Signature((TensorSpec("x", dtypes.FLOAT32, (1, 3)),), SIGNATURE.outputs)
    assert derive.derive(fixed, {}).limits.batch_rows == 1
    assert not derive.is_row_wise(Signature((TensorSpec("x", dtypes.FLOAT32, ()),), ()))


def test_the_contract_inside_a_model_is_taken() -> None:
    own = dataclasses.replace(DERIVED, description="its own")
    metadata = {document.METADATA_KEY: document.text(own)}
    assert derive.derive(SIGNATURE, metadata, "other") == own
    with pytest.raises(errors.ContractError, match="the contract inside net"):
        derive.derive(SIGNATURE, {document.METADATA_KEY: "nmae = 1"}, "net")


def test_every_mismatch_is_told_by_its_field() -> None:
    image, size = DERIVED.input
    wrong = dataclasses.replace(
        DERIVED,
        input=(
            dataclasses.replace(image, datatype="FP16", shape=("N", 4, "W")),
            dataclasses.replace(size, name="sise"),
        ),
        output=(dataclasses.replace(DERIVED.output[0], shape=("N",)),),
    )
    assert check.check(wrong, SIGNATURE) == [
        "input[0].datatype: the model has FP32, found FP16",
        "input[0].shape[1]: the model has 3, found 4",
        "input[0].shape[2]: the model has 8, found 'W'",
        "input[1].name: the model has no input 'sise'; did you mean 'size'?",
        "input: the model's input 'size' is missing in the contract",
        "output[0].shape: the model has 2 dims ['N', '2*M'], found 1",
    ]
    with pytest.raises(errors.ContractError, match=r"net\.toml: 6 problems found"):
        check.require(wrong, SIGNATURE, "net.toml")


def test_a_contract_may_narrow_what_the_model_leaves_open() -> None:
    image, size = DERIVED.input
    narrow = (dataclasses.replace(image, shape=(1, 3, 8)), dataclasses.replace(size, max_dims=(4,)))
    assert check.check(dataclasses.replace(DERIVED, input=narrow), SIGNATURE) == []
    tight = (dataclasses.replace(image, max_dims=(0, 2, 0)), size)
    assert check.check(dataclasses.replace(DERIVED, input=tight), SIGNATURE) == [
        "input[0].max_dims[1]: the model has 3, found 2"
    ]
