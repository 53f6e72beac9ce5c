"""Models cut into stages of every kind answer like the reference evaluator, output by output."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from castiron.executable import program
from castiron.runtime.instance import Instance
from tests import built
from tests.loader import models

N, I = "NativeStage", "InterpretedStage"  # noqa: E741
X = np.array([0.5, -1.0, 2.0, 0.0, 2.0], np.float32)


def kinds(instance: Instance) -> list[str]:
    return [type(stage).__name__ for stage in instance._program.stages]


def compress(value: str, out: str) -> onnx.NodeProto:
    return models.node("Compress", [value, "mask"], [out], axis=0)


CASES: dict[str, tuple[list[onnx.NodeProto], list[str], list[str]]] = {
    "native only": ([models.node("Abs", ["x"], ["y"])], ["y"], [N]),
    "interpreted only": ([compress("x", "y")], ["y"], [I, N]),
    "interpreted first": ([compress("x", "a"), models.node("Abs", ["a"], ["y"])], ["y"], [I, N]),
    "interpreted last": ([models.node("Abs", ["x"], ["a"]), compress("a", "y")], ["y"], [N, I]),
    "by turns": (
        [
            compress("x", "a"),
            models.node("Exp", ["a"], ["b"]),
            models.node("Unique", ["b"], ["c"], sorted=1),
            models.node("Neg", ["c"], ["y"]),
        ],
        ["y"],
        [I, N, I, N],
    ),
    "outputs of every stage": (
        [
            models.node("Abs", ["x"], ["first"]),
            compress("first", "second"),
            models.node("Neg", ["second"], ["third"]),
        ],
        ["third", "first", "second", "x", "mask"],
        [N, I, N],
    ),
    "a value of the first stage in the last": (
        [
            models.node("ReduceMax", ["x"], ["a"], keepdims=1),
            models.node("Unique", ["x"], ["b"], sorted=1),
            models.node("ReduceSum", ["b"], ["c"], keepdims=1),
            models.node("Add", ["a", "c"], ["y"]),
        ],
        ["y"],
        [N, I, N],
    ),
}


def loaded(name: str, folder: pathlib.Path) -> tuple[Instance, onnx.ModelProto]:
    nodes, outputs, _ = CASES[name]
    inputs = [models.value("x", ["n"])]
    mask = np.array([True, False, True, True])
    model = models.model(nodes, inputs, outputs, {"mask": mask})
    return built.loaded(model, folder), model


@pytest.mark.parametrize("name", CASES)
def test_stages_answer_like_the_evaluator(name: str, tmp_path: pathlib.Path) -> None:
    instance, model = loaded(name, tmp_path)
    _, outputs, stages = CASES[name]
    assert kinds(instance) == stages
    for output in model.graph.output:
        is_mask = output.name == "mask"
        output.type.tensor_type.elem_type = 9 if is_mask else onnx.TensorProto.FLOAT
    wanted: Any = ReferenceEvaluator(model).run(None, {"x": X})
    found = instance.run({"x": X})
    assert list(found) == outputs
    for output_name, expected in zip(outputs, wanted, strict=True):
        assert found[output_name].dtype == expected.dtype
        np.testing.assert_allclose(found[output_name], expected, rtol=1e-6)


def test_the_program_says_where_each_stage_reads_and_writes(tmp_path: pathlib.Path) -> None:
    instance, _ = loaded("outputs of every stage", tmp_path)
    names = [slot.name for slot in instance._program.slots]
    first, second, third = instance._program.stages
    assert isinstance(second, program.InterpretedStage)
    assert [names[slot] for slot in first.writes] == ["first"]
    assert ([names[s] for s in second.reads], [names[s] for s in second.writes]) == (
        ["first"],
        ["second"],
    )
    assert [names[slot] for slot in third.writes] == ["third", "x", "mask"]


def test_a_profile_leaves_interpreted_stages_empty(tmp_path: pathlib.Path) -> None:
    instance, _ = loaded("by turns", tmp_path)
    assert [len(ticks) for ticks in instance.profile({"x": X})] == [0, 1, 0, 1]
    assert instance.arena_bytes({"x": X}) == 0
