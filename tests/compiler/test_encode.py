"""What the compiler writes into the plan section for graphs of known form."""

from __future__ import annotations

import onnx

from castiron.compiler import pipeline
from castiron.compiler import target as targets
from castiron.executable import program
from castiron.loader import evaluator
from castiron.loader import onnx as loader
from tests import built
from tests.loader import models


def encoded(model: onnx.ModelProto) -> program.Program:
    options = pipeline.Options(
        targets.named("baseline"), evaluator.evaluate_node, evaluator.package
    )
    contents = pipeline.compile_graph(loader.load(model.SerializeToString()), options)
    return program.decode(contents.plan)


def native(written: program.Program) -> program.NativeStage:
    (stage,) = written.stages
    assert isinstance(stage, program.NativeStage)
    return stage


def test_slots_are_the_edges_of_stages_with_dims_a_person_reads() -> None:
    written = encoded(built.one_op("Concat", ("n", 3), ("n", 5), axis=1))
    slots = {slot.name: (slot.dtype, list(slot.labels)) for slot in written.slots}
    assert slots == {
        "x0": ("float32", ["n", "3"]),
        "x1": ("float32", ["n", "5"]),
        "y": ("float32", ["n", "8"]),
    }
    assert [written.slots[slot].name for slot in written.inputs] == ["x0", "x1"]
    assert [written.slots[slot].name for slot in written.outputs] == ["y"]
    assert list(written.symbols) == ["n"]


def test_a_static_stage_is_placed_while_building() -> None:
    stage = native(encoded(built.one_op("Softmax", (4, 8), axis=0)))
    assert list(stage.symbols) == []
    assert len(stage.placed) == len(stage.buffers) // 3 + 1
    assert native(encoded(built.one_op("Softmax", ("n", 8), axis=0))).placed != stage.placed
    assert len(native(encoded(built.one_op("Softmax", ("n", 8), axis=0))).placed) == 0


def test_every_dim_is_one_row_however_often_it_is_used() -> None:
    stage = native(encoded(built.network()))
    rows = [tuple(stage.dims[at : at + 3]) for at in range(0, len(stage.dims), 3)]
    assert len(set(rows)) == len(rows)


def test_only_relations_that_can_fail_are_checked() -> None:
    nodes = [
        models.node("Concat", ["a", "b"], ["wide"], axis=1),
        models.node("MatMul", ["wide", "c"], ["y"]),
    ]
    shapes: dict[str, built.Shape] = {"a": (2, "m"), "b": (2, "n"), "c": ("k", 3)}
    inputs = [models.value(name, shape) for name, shape in shapes.items()]
    stage = native(encoded(models.model(nodes, inputs, ["y"])))
    assert len(stage.reasons) == 1
    sides = [program.evaluate(stage.dims, (5, 6, 7))[row] for row in stage.checks]
    assert len(sides) == 2
    assert len(native(encoded(built.network())).reasons) == 0


def test_kernels_are_named_with_their_offsets_inside_the_image() -> None:
    written = encoded(built.network())
    assert len(written.kernels) == len(written.kernel_offsets)
    assert {"castiron_run", "castiron_peak"} <= set(written.kernels)
    stage = native(written)
    steps, at, used = stage.steps, 0, set()
    for _ in range(stage.num_steps):
        used.add(written.kernels[steps[at]])
        at += 5 + 3 * steps[at + 3] + steps[at + 4]
    assert at == len(steps)
    assert used.isdisjoint({"castiron_run", "castiron_peak"})


def test_an_interpreted_stage_names_its_ops_and_its_bytes() -> None:
    written = encoded(built.interpreted_between())
    first, inner, last = written.stages
    assert isinstance(inner, program.InterpretedStage)
    assert isinstance(first, program.NativeStage)
    assert isinstance(last, program.NativeStage)
    assert inner.label == "Compress"
    assert inner.length > 0
    names = [written.slots[slot].name for slot in inner.writes]
    assert names == ["kept"]


def test_metadata_of_the_model_comes_along() -> None:
    model = built.one_op("Abs", ("n",))
    onnx.helper.set_model_props(model, {"author": "nobody", "classes": "a\nb"})
    assert encoded(model).metadata == {"author": "nobody", "classes": "a\nb"}
