"""Reading whole models: names, dims, constants, functions, bodies, and refusals."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from castiron import errors
from castiron.graph import verify
from castiron.loader import load, onnx_draft
from castiron.tensor import dim as dims
from tests.loader import models


def test_dims_become_readable_symbols_and_stay_apart() -> None:
    shape: models.Shape = [
        "p2o.Dynamic.0",
        3,
        None,
        "p2o.Dynamic.0",
        "p2o-Dynamic-0",
        "7up",
        "?",
        0,
    ]
    node = models.node("Relu", ["x"], ["y"])
    loaded = load(models.model([node], [models.value("x", shape)], ["y"]))
    found = [dims.text(extent) for extent in loaded.shape("x")]
    assert found == ["p2o_Dynamic_0", "3", "x_2", "p2o_Dynamic_0", "p2o_Dynamic_0_2", "d7up",
                     "x_6", "0"]  # fmt: skip


def test_minus_one_is_an_unnamed_dim_and_missing_shape_is_unknown_rank() -> None:
    inputs = [models.value("x", [-1, 2]), models.value("z", None)]
    loaded = load(models.model([models.node("Add", ["x", "z"], ["y"])], inputs, ["y"]))
    assert dims.text(loaded.shape("x")[0]) == "x_0"
    assert loaded.types["z"].shape is None


def test_constants_and_filled_inputs_are_constants_by_their_own_names() -> None:
    made = models.node(
        "Constant", [], ["two"], value=numpy_helper.from_array(np.asarray(2, np.float32))
    )
    nodes = [made, models.node("Mul", ["x", "two"], ["a"]), models.node("Add", ["a", "w"], ["y"])]
    inputs = [models.value("x", [3]), models.value("w", [3])]
    loaded = load(models.model(nodes, inputs, ["y"], {"w": np.ones(3, np.float32)}))
    assert loaded.inputs == ("x",)
    assert set(loaded.constants) == {"two", "w"}
    assert not loaded.constants["w"].flags.writeable
    verify.verify(loaded, "load")


def test_a_sparse_constant_becomes_dense() -> None:
    values = numpy_helper.from_array(np.asarray([5.0, 7.0], np.float32), "w")
    places = numpy_helper.from_array(np.asarray([1, 5], np.int64), "places")
    proto = models.model(
        [models.node("Add", ["x", "w"], ["y"])], [models.value("x", [2, 3])], ["y"]
    )
    proto.graph.sparse_initializer.append(helper.make_sparse_tensor(values, places, [2, 3]))
    assert load(proto).constants["w"].tolist() == [[0, 5, 0], [0, 0, 7]]


def test_nodes_out_of_order_are_sorted() -> None:
    nodes = [models.node("Neg", ["a"], ["y"]), models.node("Abs", ["x"], ["a"])]
    loaded = load(models.model(nodes, [models.value("x", [1])], ["y"]))
    assert [node.op for node in loaded.nodes] == ["Abs", "Neg"]


def test_a_function_is_inlined_with_its_attributes_and_its_own_opset() -> None:
    scaled = models.node("LeakyRelu", ["a"], ["b"])
    reference = onnx.AttributeProto(name="alpha", type=onnx.AttributeProto.FLOAT)
    reference.ref_attr_name = "slope"
    scaled.attribute.append(reference)
    squeezed = models.node("Unsqueeze", ["b"], ["c"], axes=[0])
    function = helper.make_function(
        "local", "Odd", ["a"], ["c", "a"], [scaled, squeezed],
        [helper.make_opsetid("", 11)], ["slope"],
    )  # fmt: skip
    call = models.node("Odd", ["x"], ["y", "same"], domain="local", slope=0.5)
    proto = models.model([call], [models.value("x", [2])], ["y", "same"], functions=[function])
    loaded = load(proto)
    assert sorted(node.op for node in loaded.nodes) == ["Identity", "LeakyRelu", "Unsqueeze"]
    y, same = models.answers(loaded, {"x": np.asarray([-2, 2], np.float32)})
    assert y.tolist() == [[-1, 2]]
    assert same.tolist() == [-2, 2]


def test_a_function_that_calls_itself_is_refused() -> None:
    call = models.node("Loopy", ["a"], ["b"], domain="local")
    function = helper.make_function(
        "local", "Loopy", ["a"], ["b"], [call], [helper.make_opsetid("local", 1)]
    )
    top = models.node("Loopy", ["x"], ["y"], domain="local")
    with pytest.raises(errors.LoadError, match="calls itself"):
        load(models.model([top], [models.value("x", [1])], ["y"], functions=[function]))


def _branches(opset: int) -> onnx.ModelProto:
    """y = relu6-like clip of x in one branch, x + w in the other; both capture."""
    clip = models.node("Clip", ["x"], ["clipped"], min=0.0, max=6.0)
    add = models.node("Add", ["x", "w"], ["added"])
    branches = {
        f"{name}_branch": helper.make_graph([node], name, [], [models.value(node.output[0], None)])
        for name, node in (("then", clip), ("else", add))
    }
    choose = models.node("If", ["c"], ["y"], **branches)
    inputs = [models.value("x", [2]), models.value("c", [], onnx.TensorProto.BOOL)]
    return models.model([choose], inputs, ["y"], {"w": np.ones(2, np.float32)}, opset=opset)


def test_captured_values_are_inputs_and_bodies_are_canonical_too() -> None:
    loaded = load(_branches(10))
    (choose,) = loaded.nodes
    assert choose.inputs[0] == "c"
    assert set(choose.inputs[1:]) == {"x", "w"}
    assert choose.attr("num_formal") == 1
    x = np.asarray([-1, 9], np.float32)
    assert models.answers(loaded, {"x": x, "c": np.asarray(True)})[0].tolist() == [0, 6]
    assert models.answers(loaded, {"x": x, "c": np.asarray(False)})[0].tolist() == [0, 10]


def test_a_body_that_shadows_an_outer_name_computes_its_own_value() -> None:
    inner = models.node("Identity", ["w"], ["out"])
    shadow = numpy_helper.from_array(np.asarray([8.0], np.float32), "w")
    branches = {
        f"{name}_branch": helper.make_graph(
            [inner], name, [], [models.value("out", None)], [shadow]
        )
        for name in ("then", "else")
    }
    choose = models.node("If", ["c"], ["y"], **branches)
    inputs = [models.value("c", [], onnx.TensorProto.BOOL)]
    loaded = load(models.model([choose], inputs, ["y"], {"w": np.zeros(1, np.float32)}))
    assert models.answers(loaded, {"c": np.asarray(True)})[0].tolist() == [8.0]


def test_opsets_say_the_newest_form_whatever_the_source_used() -> None:
    assert load(_branches(10)).opsets == onnx_draft.NEWEST


def test_metadata_is_kept() -> None:
    proto = models.model([models.node("Abs", ["x"], ["y"])], [models.value("x", [1])], ["y"])
    helper.set_model_props(proto, {"character": "abc"})
    assert load(proto).metadata == {"character": "abc"}


def test_a_refusal_lists_every_problem_with_place_and_remedy() -> None:
    nodes = [
        models.node("Softmix", ["x"], ["a"]),
        models.node("Conv", ["x"], ["b"], pad=[1]),
        models.node("Add", ["a", "ghost"], ["y"]),
    ]
    with pytest.raises(errors.LoadError) as refused:
        load(models.model(nodes, [models.value("x", ["n", 3])], ["y"]))
    text = "\n".join(refused.value.problems)
    assert "(Softmix, opset 17) on (x: float32[n, 3])" in text
    assert "did you mean Softmax?" in text
    assert "no attribute 'pad' exists; did you mean 'pads'?" in text
    assert "reads 'ghost', which nothing makes" in text
    assert "expected 2 to 3 inputs" in text


@pytest.mark.parametrize(
    "change, problem",
    [
        (lambda p: p.opset_import[0].__setattr__("version", 99), "opset 99 of domain ai.onnx"),
        (lambda p: p.opset_import[0].__setattr__("version", 0), "versions begin at 1"),
        (lambda p: p.__setattr__("ir_version", 99), "IR version 99 is newer"),
        (lambda p: p.ClearField("opset_import"), "no opset is imported"),
        (lambda p: p.graph.node[0].__setattr__("domain", "foo"), "its domain 'foo' is imported"),
        (lambda p: p.graph.node[0].input.__setitem__(0, "y"), "a cycle runs through"),
        (lambda p: p.graph.node.append(p.graph.node[0]), "makes 'y', which exists already"),
        (lambda p: p.graph.output[0].__setattr__("name", "z"), "output 'z' is made by no node"),
        (lambda p: p.graph.ClearField("output"), "the graph has no output"),
        (lambda p: p.graph.input.append(p.graph.input[0]), "the name is empty or given twice"),
        (
            lambda p: p.graph.input[0].type.tensor_type.shape.dim[0].__setattr__("dim_value", -5),
            "must not be below -1",
        ),
        (
            lambda p: p.graph.input[0].type.tensor_type.__setattr__("elem_type", 17),
            "element type float8_e4m3fn: expected one of float32",
        ),
    ],
)
def test_a_bad_model_is_refused_with_a_reason(change: object, problem: str) -> None:
    proto = models.model([models.node("Abs", ["x"], ["y"])], [models.value("x", [1])], ["y"])
    assert callable(change)
    change(proto)
    with pytest.raises(errors.LoadError, match=problem):
        load(proto)


def test_a_sequence_input_is_refused() -> None:
    kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(1, None))
    info = helper.make_value_info("s", kind)
    at = models.node("SequenceAt", ["s", "i"], ["y"])
    proto = models.model([at], [info], ["y"], {"i": np.asarray(0)})
    with pytest.raises(errors.LoadError, match="of kind sequence_type: expected a tensor"):
        load(proto)


def test_bytes_that_are_no_model_are_refused() -> None:
    with pytest.raises(errors.LoadError, match="no protobuf of one"):
        load(b"\xff" * 40)
    with pytest.raises(errors.LoadError, match="found none"):
        load(b"")


def test_a_missing_file_is_refused_by_name() -> None:
    with pytest.raises(errors.LoadError, match=r"no-such-model\.onnx"):
        load("no-such-model.onnx")


def test_types_of_ops_without_a_rule_come_from_onnx() -> None:
    loaded = load(_branches(10))
    assert str(loaded.dtype("y")) == "float32"


def test_an_output_of_a_kind_that_cannot_be_handed_out_is_refused() -> None:
    split = models.node("SplitToSequence", ["x"], ["y"])
    proto = models.model([split], [models.value("x", [2])], ["y"])
    kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(1, None))
    proto.graph.output[0].type.CopyFrom(kind)
    with pytest.raises(errors.LoadError, match="output 'y' is of sequence_type"):
        load(proto)


def test_an_op_that_nothing_runs_is_refused_with_a_remedy() -> None:
    node = models.node("ZipMap", ["x"], ["y"], domain="ai.onnx.ml", classlabels_int64s=[1])
    proto = models.model([node], [models.value("x", [1, 1])], ["y"])
    proto.opset_import.add(domain="ai.onnx.ml", version=3)
    with pytest.raises(errors.LoadError, match="zipmap switched off"):
        load(proto)
