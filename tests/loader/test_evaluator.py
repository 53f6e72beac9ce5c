"""The evaluator's door, and the ops that it replaces, judged by onnxruntime."""

from __future__ import annotations

import hypothesis
import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import strategies as st
from onnx import helper

from castiron.graph import graph
from castiron.loader import evaluator, load
from tests.loader import models

random = np.random.default_rng(5)


def judged(proto: onnx.ModelProto, feeds: dict[str, np.ndarray], kind: int = 1) -> list[np.ndarray]:
    """onnxruntime's answers; it asks for typed outputs."""
    typed = onnx.ModelProto.FromString(proto.SerializeToString())
    for info in typed.graph.output:
        info.type.tensor_type.elem_type = kind
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(typed.SerializeToString(), options)
    return list(session.run(None, feeds))


def noise(*shape: int) -> np.ndarray:
    return random.standard_normal(shape).astype(np.float32)


def test_one_node_is_evaluated_with_absent_inputs_as_none() -> None:
    node = graph.Node("Clip", ("x", "", "high"), ("y",))
    x = np.asarray([-3, 9], np.float32)
    (found,) = evaluator.evaluate_node(node, [x, None, np.asarray(2, np.float32)])
    assert found.tolist() == [-3, 2]


def test_attributes_of_a_node_without_origin_are_typed_by_the_schema() -> None:
    node = graph.Node("LeakyRelu", ("x",), ("y",), {"alpha": 1})
    (found,) = evaluator.evaluate_node(node, [np.asarray([-3], np.float32)])
    assert found.tolist() == [-3]
    empty = graph.Node("Transpose", ("x",), ("y",), {"perm": ()})
    assert evaluator.node_proto(empty).attribute[0].type == onnx.AttributeProto.INTS


def _choice() -> graph.Graph:
    branches = {
        f"{op}_branch": helper.make_graph(
            [models.node(make, ["a", "b"], [op])], op, [], [models.value(op, None)]
        )
        for op, make in (("then", "Add"), ("else", "Sub"))
    }
    choose = models.node("If", ["c"], ["y"], **branches)
    kinds = [models.value("c", [], onnx.TensorProto.BOOL)]
    return load(
        models.model([choose], [*kinds, models.value("a", [1]), models.value("b", [1])], ["y"])
    )


def test_captured_names_are_found_in_bodies() -> None:
    (node,) = _choice().nodes
    assert node.origin is not None
    assert evaluator.captured_names(node.origin) == ("a", "b")


def test_a_pass_may_rename_what_a_body_captures() -> None:
    loaded = _choice()
    (node,) = loaded.nodes
    renamed = graph.Node(
        "Interpreted", ("c", "p", "q"), ("z",), {"op": "If"}, node.name, node.origin
    )
    types = {name: graph.TensorType(None, None) for name in ("c", "p", "q", "z")}
    moved = loaded.replace(nodes=(renamed,), inputs=("c", "p", "q"), outputs=("z",), types=types)
    feeds = {
        "c": np.asarray(False),
        "p": np.asarray([5], np.float32),
        "q": np.asarray([2], np.float32),
    }
    assert models.answers(moved, feeds)[0].tolist() == [3]


def test_a_package_holds_its_constants_and_runs_twice() -> None:
    add = models.node("Add", ["x", "w"], ["y"])
    proto = models.model([add], [models.value("x", [2])], ["y"], {"w": np.ones(2, np.float32)})
    loaded = load(proto)
    packed = evaluator.package(loaded.nodes, loaded, ["x"], ["y"])
    assert packed == evaluator.package(loaded.nodes, loaded, ["x"], ["y"])
    interpreter = evaluator.Interpreter(packed)
    for value in (1.0, 2.0):
        found = interpreter.run({"x": np.full(2, value, np.float32)})
        assert found["y"].tolist() == [value + 1] * 2


@hypothesis.given(data=st.data())
def test_convolutions_agree_with_onnxruntime(data: st.DataObject) -> None:
    rank = data.draw(st.sampled_from([1, 2, 3]))
    group = data.draw(st.sampled_from([1, 2]))
    kernel = data.draw(st.lists(st.integers(1, 3), min_size=rank, max_size=rank))
    pads = data.draw(st.lists(st.integers(0, 2), min_size=2 * rank, max_size=2 * rank))
    attrs = {
        "strides": data.draw(st.lists(st.integers(1, 2), min_size=rank, max_size=rank)),
        "dilations": data.draw(st.lists(st.integers(1, 2), min_size=rank, max_size=rank)),
        "group": group,
        "pads": pads,
    }
    x, w, b = noise(2, 4, *[7] * rank), noise(6, 4 // group, *kernel), noise(6)
    conv = models.node("Conv", ["x", "w", "b"], ["y"], **attrs)
    proto = models.model([conv], [models.value("x", x.shape)], ["y"], {"w": w, "b": b})
    (found,) = models.answers(load(proto), {"x": x})
    np.testing.assert_allclose(found, judged(proto, {"x": x})[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("auto", ["SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET"])
@pytest.mark.parametrize("group", [1, 2])
def test_transposed_convolutions_agree_with_onnxruntime(auto: str, group: int) -> None:
    x, w, b = noise(2, 4, 5, 6), noise(4, 3, 3, 4), noise(3 * group)
    node = models.node(
        "ConvTranspose", ["x", "w", "b"], ["y"], auto_pad=auto, strides=[2, 3], group=group
    )
    if auto == "NOTSET":
        node.attribute.extend(
            [
                helper.make_attribute("pads", [1, 0, 0, 1]),
                helper.make_attribute("output_padding", [1, 2]),
            ]
        )
    proto = models.model([node], [models.value("x", x.shape)], ["y"], {"w": w, "b": b})
    (found,) = models.answers(load(proto), {"x": x})
    np.testing.assert_allclose(found, judged(proto, {"x": x})[0], rtol=1e-4, atol=1e-5)


@hypothesis.given(
    op=st.sampled_from(["MaxPool", "AveragePool"]),
    sizes=st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(0, 1)),
    ceil=st.booleans(),
    count=st.booleans(),
)
def test_pools_agree_with_onnxruntime(
    op: str, sizes: tuple[int, int, int], ceil: bool, count: bool
) -> None:
    kernel, stride, pad = sizes
    hypothesis.assume(pad < kernel)
    attrs = {"kernel_shape": [kernel, 3], "strides": [stride, 2], "pads": [pad, 1, 0, 0]}
    if op == "AveragePool":
        attrs["count_include_pad"] = int(count)  # type: ignore[assignment]
    x = noise(2, 3, 7, 8)
    node = models.node(op, ["x"], ["y"], ceil_mode=int(ceil), **attrs)
    proto = models.model([node], [models.value("x", x.shape)], ["y"])
    (found,) = models.answers(load(proto), {"x": x})
    np.testing.assert_allclose(found, judged(proto, {"x": x})[0], rtol=1e-5, atol=1e-6)


def _check(node: onnx.NodeProto, feeds: dict[str, np.ndarray]) -> None:
    inputs = [
        models.value(name, array.shape, helper.np_dtype_to_tensor_dtype(array.dtype))
        for name, array in feeds.items()
    ]
    proto = models.model([node], inputs, ["y"], opset=18)
    (found,) = models.answers(load(proto), feeds)
    kind = helper.np_dtype_to_tensor_dtype(found.dtype)
    (expected,) = judged(proto, feeds, kind)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert found.dtype == expected.dtype


def test_gather_elements_beyond_64_rows_and_with_smaller_indices() -> None:
    indices = random.integers(-100, 100, (7, 3))
    node = models.node("GatherElements", ["x", "i"], ["y"], axis=0)
    _check(node, {"x": noise(100, 5), "i": indices})


def test_one_hot_takes_a_depth_of_one_element() -> None:
    feeds = {"i": np.asarray([[0, -1], [2, 9]]), "d": np.asarray([3]), "v": noise(2)}
    _check(models.node("OneHot", ["i", "d", "v"], ["y"], axis=1), feeds)


def test_lrn_walks_every_channel() -> None:
    _check(models.node("LRN", ["x"], ["y"], size=3, alpha=0.5), {"x": noise(1, 6, 4, 4)})


@pytest.mark.parametrize("rank", [3, 4, 5])
def test_global_max_pool_of_any_rank(rank: int) -> None:
    _check(models.node("GlobalMaxPool", ["x"], ["y"]), {"x": noise(2, 3, *[4] * (rank - 2))})


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "min", "max"])
def test_scatters_agree_with_onnxruntime(reduction: str) -> None:
    indices = np.stack([random.permutation(6)[:4] for _ in range(3)])
    feeds = {"x": noise(3, 6), "i": indices, "u": noise(3, 4)}
    attrs = {"axis": 1, "reduction": reduction}
    _check(models.node("ScatterElements", ["x", "i", "u"], ["y"], **attrs), feeds)
    feeds = {"x": noise(6, 2), "i": np.asarray([[4], [0], [5]]), "u": noise(3, 2)}
    _check(models.node("ScatterND", ["x", "i", "u"], ["y"], reduction=reduction), feeds)


def test_integer_products_are_exact() -> None:
    a = random.integers(0, 256, (4, 900)).astype(np.uint8)
    b = random.integers(-128, 128, (900, 5)).astype(np.int8)
    feeds = {"a": a, "b": b, "az": np.asarray(200, np.uint8)}
    _check(models.node("MatMulInteger", ["a", "b", "az"], ["y"]), feeds)
    x = random.integers(0, 256, (1, 3, 6, 6)).astype(np.uint8)
    w = random.integers(0, 256, (2, 3, 3, 3)).astype(np.uint8)
    feeds = {"x": x, "w": w, "xz": np.asarray(7, np.uint8), "wz": np.asarray(9, np.uint8)}
    _check(models.node("ConvInteger", ["x", "w", "xz", "wz"], ["y"], pads=[1, 1, 1, 1]), feeds)


def _loop() -> onnx.NodeProto:
    body = helper.make_graph(
        [
            models.node("Add", ["a", "step"], ["next"]),
            models.node("ReduceSum", ["next"], ["scalar"], keepdims=0),
            models.node("Identity", ["going"], ["on"]),
        ],
        "body",
        [
            models.value("i", [], onnx.TensorProto.INT64),
            models.value("going", [], onnx.TensorProto.BOOL),
            models.value("a", [2]),
        ],
        [
            models.value("on", [], onnx.TensorProto.BOOL),
            models.value("next", [2]),
            models.value("scalar", []),
        ],
    )
    return models.node("Loop", ["n", "", "x"], ["last", "y"], body=body)


def test_a_loop_stacks_scalars_and_reads_captured_values() -> None:
    inputs = [models.value("x", [2]), models.value("step", [2])]
    proto = models.model([_loop()], inputs, ["last", "y"], {"n": np.asarray(3)}, opset=13)
    feeds = {"x": np.asarray([1, 2], np.float32), "step": np.ones(2, np.float32)}
    last, stacked = models.answers(load(proto), feeds)
    assert last.tolist() == [4, 5]
    assert stacked.tolist() == [5, 7, 9]


def test_a_scan_goes_backwards_along_any_axis() -> None:
    body = helper.make_graph(
        [models.node("Add", ["s", "x"], ["t"]), models.node("Identity", ["t"], ["o"])],
        "body",
        [models.value("s", [2]), models.value("x", [2])],
        [models.value("t", [2]), models.value("o", [2])],
    )
    node = models.node(
        "Scan", ["s0", "xs"], ["last", "y"], body=body, num_scan_inputs=1,
        scan_input_axes=[1], scan_input_directions=[1], scan_output_axes=[1],
    )  # fmt: skip
    inputs = [models.value("s0", [2]), models.value("xs", [2, 3])]
    proto = models.model([node], inputs, ["last", "y"], opset=16)
    feeds = {"s0": np.zeros(2, np.float32), "xs": noise(2, 3)}
    for left, right in zip(models.answers(load(proto), feeds), judged(proto, feeds), strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-6)


def test_global_lp_pool_and_max_roi_pool() -> None:
    _check(models.node("GlobalLpPool", ["x"], ["y"], p=3), {"x": noise(2, 3, 4, 5)})
    rois = np.asarray([[0, 1, 1, 6, 4], [1, 0, 2, 3, 7], [1, 5, 5, 5, 5]], np.float32)
    attrs = {"pooled_shape": [2, 3], "spatial_scale": 0.9}
    feeds = {"x": noise(2, 2, 8, 9), "r": rois}
    _check(models.node("MaxRoiPool", ["x", "r"], ["y"], **attrs), feeds)


def test_multinomial_follows_its_weights_and_its_seed() -> None:
    logits = np.log(np.asarray([[0.9, 0.1], [0.2, 0.8]], np.float32))
    node = graph.Node("Multinomial", ("x",), ("y",), {"sample_size": 4000, "seed": 1.5})
    (found,) = evaluator.evaluate_node(node, [logits])
    np.testing.assert_allclose(found.mean(axis=1), [0.1, 0.8], atol=0.03)
    assert found.dtype == np.int32
    np.testing.assert_array_equal(found, evaluator.evaluate_node(node, [logits])[0])
