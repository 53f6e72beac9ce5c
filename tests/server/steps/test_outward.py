"""Tensors to an application's values."""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson
import pytest

from castiron import errors
from castiron.contract import steps
from castiron.contract.model import Column, Contract, Entry
from castiron.server.steps import folder, outward
from tests.server.steps import contracts


def run(contract: Contract, y: Any, dtype: Any = np.float32) -> dict[str, Any]:
    found = outward.Outward(contract, contracts.NOWHERE).run({"y": np.array(y, dtype)}, None)
    orjson.dumps(found)  # whatever it is, JSON holds it
    return found


def test_labels_are_named_and_ordered() -> None:
    entry = Entry(
        "labels", "labels", "y",
        steps=(steps.Softmax(), steps.TopK(2), steps.Labels(names=("a", "b", "c"))),
    )  # fmt: skip
    first, second = run(contracts.giving(entry), [[1, 3, 2]])["labels"]
    assert (first["label"], second["label"]) == ("b", "c")
    assert first["score"] == pytest.approx(np.exp(3) / np.exp([1, 2, 3]).sum(), rel=1e-5)


def test_many_labels_at_once_are_sigmoids_above_a_threshold() -> None:
    act = (steps.Sigmoid(), steps.TopK(9, 0.5), steps.Labels(names=tuple("abc")), steps.JoinText())
    contract = contracts.giving(Entry("tags", "text", "y", steps=act))
    assert run(contract, [[2, -1, 5]])["tags"] == "c a"
    assert run(contract, [[-2, -1, -5]])["tags"] == ""


def test_numbers_flags_tables_and_texts_come_as_what_they_are() -> None:
    assert run(contracts.giving(Entry("n", "number", "y")), [[1.5]])["n"] == 1.5
    assert run(contracts.giving(Entry("n", "number", "y")), [np.nan])["n"] == "NaN"
    assert run(contracts.giving(Entry("f", "flag", "y")), [1], np.uint8)["f"] is True
    table = Entry("t", "table", "y", columns=(Column("a"), Column("b")))
    assert run(contracts.giving(table), [[[1, 2], [3, np.inf]]])["t"] == [[1, 2], [3, "Infinity"]]
    text = Entry("t", "text", "y")
    assert (
        run(contracts.giving(text, datatype="BYTES"), ["a", b"b\xff"], object)["t"] == "a b\ufffd"
    )
    whole = run(contracts.giving(Entry("v", "tensor", "y")), [[1, 2]], np.int64)["v"]
    assert whole == {"shape": [1, 2], "data": [1, 2]}


def test_without_entries_every_output_is_shown_as_it_is() -> None:
    assert run(contracts.giving(), [[-np.inf]]) == {"y": {"shape": [1, 1], "data": ["-Infinity"]}}


def test_what_the_model_gives_in_another_form_is_our_fault_not_the_clients() -> None:
    for entry, y in ((Entry("n", "number", "y"), [1, 2]),
                     (Entry("t", "table", "y", columns=(Column("a"),)), [[1, 2]])):  # fmt: skip
        with pytest.raises(errors.CastironError, match="from the model") as raised:
            run(contracts.giving(entry), y)
        assert not isinstance(raised.value, errors.InputError)


def test_only_small_outputs_without_boxes_are_light() -> None:
    labels = outward.Outward(contracts.giving(Entry("v", "tensor", "y")), contracts.NOWHERE)
    assert labels.is_light({"y": np.zeros(1000, np.float32)})
    assert not labels.is_light({"y": np.zeros(1 << 15, np.float32)})
    entry = Entry("n", "number", "y", steps=(steps.CtcScore(),))
    found = outward.Outward(contracts.giving(entry), contracts.NOWHERE)
    assert found.is_light({"y": np.zeros(1 << 15, np.float32)})
    assert not found.is_light({"y": np.zeros(1 << 20, np.float32)})
    entry = Entry("b", "boxes", "y", steps=(steps.Nms(),))
    assert not outward.Outward(contracts.giving(entry), contracts.NOWHERE).is_light(
        {"y": np.zeros((1, 1, 6), np.float32)}
    )


def test_characters_come_from_the_models_metadata_a_file_or_the_step(tmp_path: Any) -> None:
    (tmp_path / "letters.txt").write_text("a\r\nb\r\n\u2028\r\n")
    found = folder.Folder(tmp_path, {"set": "a\nb\n\u2028"})
    steps_of = (
        steps.CtcText(file="letters.txt"),
        steps.CtcText(metadata="set"),
        steps.CtcText(characters="ab\u2028"),
    )
    for step in steps_of:
        assert folder.characters(found, step) == ("a", "b", "\u2028")
    assert folder.characters(found, steps.CtcText(characters="x", has_space=True)) == ("x", " ")


def test_names_of_detectors_come_as_they_are_exported(tmp_path: Any) -> None:
    found = folder.Folder(tmp_path, {"names": "{1: 'dog', 0: 'cat'}", "odd": "{1: 'dog'}"})
    assert found.names(steps.BoxLabels(metadata="names")) == ("cat", "dog")
    with pytest.raises(errors.ContractError, match="names by number in 'odd'"):
        found.names(steps.BoxLabels(metadata="odd"))


@pytest.mark.parametrize("name", ["../secret.txt", "/etc/hostname", "link.txt", "none.txt"])
def test_no_name_leads_out_of_the_folder(name: str, tmp_path: Any) -> None:
    (tmp_path / "secret.txt").write_text("x")
    inside = tmp_path / "models"
    inside.mkdir()
    (inside / "link.txt").symlink_to(tmp_path / "secret.txt")
    with pytest.raises(errors.ContractError, match="beside the contract"):
        folder.Folder(inside).names(steps.Labels(file=name))
