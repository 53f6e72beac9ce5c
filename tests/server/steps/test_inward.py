"""An application's values to tensors: what is taken, what is refused and where."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pytest

from castiron import errors
from castiron.contract import model, steps
from castiron.contract.model import Column, Entry
from castiron.server.steps import faults, inward
from tests.server.steps import contracts, images

PNG = images.file(images.stripes())


def run(contract: model.Contract, **values: Any) -> inward.Made:
    return inward.Inward(contract, contracts.NOWHERE).run(values)


def fault(contract: model.Contract, **values: Any) -> str:
    with pytest.raises(errors.InputError) as raised:
        run(contract, **values)
    return str(raised.value)


def test_an_image_is_taken_as_bytes_as_base64_and_as_a_data_address() -> None:
    text = base64.b64encode(PNG).decode()
    made = [run(contracts.picture(), image=each)
            for each in (PNG, memoryview(PNG), text, f"data:image/png;base64,{text}")]  # fmt: skip
    for each in made:
        assert each.tensors["x"].shape == (1, 3, 8, 8)
        np.testing.assert_array_equal(each.tensors["x"], made[0].tensors["x"])
        assert each.place is not None and each.place.width == 60


def test_pixels_come_in_the_dtype_of_the_tensor() -> None:
    raw = (steps.DecodeImage(), steps.Resize(8, 8), steps.Normalise(scale=1.0))
    for kind, dtype in (("UINT8", np.uint8), ("INT8", np.int8), ("FP16", np.float16)):
        entry = Entry("image", "image", "x", steps=raw)
        made = run(contracts.of(entry, tensors={"x": (kind, (1, 3, 8, 8))}), image=PNG)
        assert made.tensors["x"].dtype == dtype
        assert made.tensors["x"][0, 0, 0, 0] == (127 if kind == "INT8" else 255)


@pytest.mark.parametrize(
    "changes, value, wanted",
    [
        ({}, 3, "image: expected an image in base64, found 3"),
        ({}, "%%", "image: expected base64"),
        ({}, b"", "image: expected an image file of jpeg, png"),
        ({"formats": ("jpeg",)}, PNG, "image: expected an image file of jpeg, found"),
        ({"max_pixels": 100}, PNG, "image: expected at most 100 pixels, found 60 x 40"),
        ({"encodings": ("base64",)}, PNG, "image: expected the image as base64, found raw"),
        ({"encodings": ("raw",)}, "aaaa", "image: expected the image as raw, found base64"),
    ],
)
def test_an_image_that_is_not_allowed_is_refused_at_its_name(
    changes: dict[str, Any], value: Any, wanted: str
) -> None:
    assert fault(contracts.picture(**changes), image=value).startswith(wanted)


def test_names_are_those_of_the_schema() -> None:
    assert fault(contracts.picture()) == "image: expected an image, found nothing"
    assert fault(contracts.picture(), image=PNG, picture=PNG) == "picture: unknown; expected image"


def test_what_only_a_pipeline_needs_may_be_left_out() -> None:
    contract = contracts.of(
        Entry("row", "table", "x", columns=tuple(map(Column, "abcd"))),
        Entry("note", "text", optional=True),
    )
    assert run(contract, row=[[1, 2, 3, 4]]).tensors["x"].tolist() == [[1, 2, 3, 4]]
    assert run(contract, row=[[1, 2, 3, 4]], note="!").tensors.keys() == {"x"}


TABLE = Entry("rows", "table", "x", max_rows=2, columns=(Column("a", (0, 1)), Column("b")))


@pytest.mark.parametrize(
    "value, wanted",
    [
        ({}, "rows: expected a list of rows, found an object"),
        ([1], "rows[0]: expected 2 numbers, found 1"),
        ([[1, 2], [1]], "rows[1]: expected 2 numbers, found 1 values"),
        ([[0.5, "x"]], "rows[0][1]: expected a number, found 'x'"),
        ([[0.5, True]], "rows[0][1]: expected a number, found True"),
        ([[2, 0]], "rows[0][0]: expected 0 to 1, found 2"),
        ([[0, 0]] * 3, "rows: expected at most 2 rows, found 3"),
        ([[0, 1e300]], "rows[0][1]: expected a number in the range of FP32"),
    ],
)
def test_tables_are_refused_at_the_cell(value: Any, wanted: str) -> None:
    contract = contracts.of(TABLE, tensors={"x": ("FP32", ("n", 2))})
    assert fault(contract, rows=value).startswith(wanted)


def test_tables_become_their_tensors_whatever_its_rank() -> None:
    for shape in (("n", 2), (1, "n", 2)):
        contract = contracts.of(TABLE, tensors={"x": ("FP32", shape)})
        made = run(contract, rows=[[0, 5], [1, -0.5]])
        assert made.tensors["x"].reshape(2, 2).tolist() == [[0, 5], [1, -0.5]]
        assert made.tensors["x"].ndim == len(shape)


def test_numbers_flags_and_texts_fill_a_tensor_of_one() -> None:
    contract = contracts.of(
        Entry("count", "number", "i", range=(0, 9)),
        Entry("is_loud", "flag", "b"),
        Entry("name", "text", "s", max_chars=4, values=()),
        tensors={"i": ("INT64", (1, 1)), "b": ("BOOL", ()), "s": ("BYTES", (1,))},
    )
    made = run(contract, count=7, is_loud=True, name="\0é")
    assert made.tensors["i"].tolist() == [[7]]
    assert made.tensors["b"].tolist() is True
    assert made.tensors["s"].tolist() == ["\0é"]
    given = {"count": 7, "is_loud": True, "name": "x"}
    for name, value, wanted in (
        ("count", 10, "count: expected 0 to 9, found 10"),
        ("count", 1.5, "count: expected an integer for INT64, found 1.5"),
        ("count", "7", "count: expected a number, found '7'"),
        ("is_loud", 1, "is_loud: expected true or false, found 1"),
        ("name", "xxxxx", "name: expected at most 4 characters, found 5"),
        ("name", None, "name: expected text, found nothing"),
    ):
        assert fault(contract, **(given | {name: value})).startswith(wanted)


def test_a_text_may_have_to_tell_its_language() -> None:
    entry = Entry("said", "text", "s", languages=("en", "pt-BR"), max_chars=9)
    contract = contracts.of(entry, tensors={"s": ("BYTES", (1,))})
    made = run(contract, said={"text": "hi", "language": "en"})
    assert made.tensors["s"].tolist() == ["hi"]
    assert fault(contract, said="hi").startswith("said: expected an object")
    assert "said.language: expected one of en, pt-BR, found 'xx'" in fault(
        contract, said={"text": "hi", "language": "xx"}
    )
    assert fault(contract, said={"text": "hi"}).startswith("said: expected ['language', 'text']")
    with pytest.raises(faults.TooLargeError, match=r"said\.text: expected at most 9"):
        run(contract, said={"text": "x" * 10, "language": "en"})


def test_a_tensor_is_written_with_its_shape() -> None:
    contract = contracts.of(Entry("v", "tensor", "x"), tensors={"x": ("FP32", ("n", 2))})
    made = run(contract, v={"shape": [2, 2], "data": [1, 2, 3, "NaN"]})
    assert made.tensors["x"].shape == (2, 2)
    assert "v.data: expected 4 values" in fault(contract, v={"shape": [2, 2], "data": [1]})
    assert "v.shape: expected a list of dims" in fault(contract, v={"shape": [-1], "data": []})
    assert fault(contract, v=[1, 2]).startswith("v: expected an object")
