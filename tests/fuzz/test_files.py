"""Damaged files: short runs of the fuzzer of files, and what long ones have found."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from castiron import errors
from castiron.loader import load
from tests.fuzz import files
from tests.loader import models


@pytest.mark.parametrize("kind", ["onnx", "cast"])
def test_damaged_files_are_refused_or_work(kind: str) -> None:
    found, complaints = files.campaign(kind, 400)
    assert not complaints, complaints
    assert sum(found.values()) == 400
    assert len(found) > 1, found


def test_the_files_are_whole_before_they_are_damaged(tmp_path: Path) -> None:
    model, executable = tmp_path / "a.onnx", tmp_path / "a.cast"
    model.write_bytes(files.whole_model())
    executable.write_bytes(files.whole_executable(tmp_path))
    assert files.open_model(model) == "read"
    assert files.open_executable(executable) == "runs, whole"


def twice(body: list[onnx.NodeProto], outputs: list[str], version: int = 17) -> onnx.FunctionProto:
    opsets = [helper.make_opsetid("", version)]
    return helper.make_function("local", "F", ["a"], outputs, body, opsets)


def add(taken: str, given: str) -> onnx.NodeProto:
    return models.node("Add", [taken, taken], [given])


def several(proto: onnx.ModelProto) -> onnx.ModelProto:
    proto.functions.append(proto.functions[0])
    return proto


def called(function: onnx.FunctionProto) -> onnx.ModelProto:
    call = models.node("F", ["x"], ["f"], domain="local")
    last = models.node("Softmax", ["f"], ["y"], axis=1)
    graph_inputs = [models.value("x", [2, 3])]
    return models.model([call, last], graph_inputs, ["y"], functions=[function], opset=11)


def huge_opset() -> onnx.ModelProto:
    proto = called(twice([add("a", "b")], ["b"]))
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1 << 40))
    proto.graph.node.append(models.node("Gelu", ["x"], ["g"], domain="com.microsoft"))
    return proto


FOUND: dict[str, tuple[Callable[[], onnx.ModelProto], str]] = {
    "an opset beyond 32 bits": (huge_opset, "does not exist"),
    "a function's opset beyond 32 bits": (
        lambda: called(twice([add("a", "b")], ["b"], 1 << 40)), "does not exist"),
    "a function that reads what nothing makes": (
        lambda: called(twice([add("c", "b")], ["b"])), "which nothing makes"),
    "a function that does not make its output": (
        lambda: called(twice([add("a", "b")], ["c"])), "which nothing makes"),
    "a function that makes a value twice": (
        lambda: called(twice([add("a", "b"), add("a", "b")], ["b"])), "a second time"),
}  # fmt: skip


@pytest.mark.parametrize("name", FOUND)
def test_what_fuzzing_found_is_refused(name: str) -> None:
    make, message = FOUND[name]
    with pytest.raises(errors.LoadError, match=message):
        load(make().SerializeToString())


def test_a_function_given_twice_is_no_obstacle_to_ranks() -> None:
    proto = several(called(twice([add("a", "b")], ["b"])))
    assert load(proto.SerializeToString()).nodes


def sliced(before: list[onnx.NodeProto], last: onnx.NodeProto) -> onnx.ModelProto:
    """x of [2, 3] becomes r, of which a part s goes to the last node."""
    part = models.node("Slice", ["r", "first", "last", "axes"], ["s"])
    constants = {
        name: np.array([value]) for name, value in (("first", 0), ("last", 9), ("axes", 1))
    }
    constants["pads"] = np.array([0, -9, 0, 0])
    inputs = [models.value("x", [2, 3])]
    return models.model([*before, part, last], inputs, ["y"], constants, opset=12)


CROPPED = models.node("Pad", ["x", "pads"], ["r"])
# Old forms that need the rank of their input, and an op without rules of ours.
LAST = [
    models.node("Softmax", ["s"], ["y"], axis=1),
    models.node("NonMaxSuppression", ["s", "s"], ["y"]),
]


@pytest.mark.parametrize("last", LAST, ids=lambda node: node.op_type)
def test_a_slice_of_a_negative_extent_does_not_end_the_process(last: onnx.NodeProto) -> None:
    with contextlib.suppress(errors.LoadError):
        load(sliced([CROPPED], last).SerializeToString())


def test_a_slice_of_a_constant_of_negative_extent_does_not_end_the_process() -> None:
    proto = sliced([], LAST[0])
    proto.graph.node[0].input[0] = "w"
    weights = proto.graph.initializer.add(name="w", data_type=onnx.TensorProto.FLOAT)
    weights.dims.extend([3, -(2**63)])
    with pytest.raises(errors.LoadError):
        load(proto.SerializeToString())
