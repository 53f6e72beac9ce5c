"""Graphs before and after simplify: what remains, in which form, with the same numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from castiron.compiler.passes.fold_constants import fold_constants
from castiron.compiler.passes.infer_shapes import infer_shapes
from castiron.compiler.passes.simplify import simplify
from castiron.graph.graph import Graph, Node
from castiron.graph.verify import verify
from castiron.loader import evaluator, onnx
from castiron.tensor import dim as dims
from tests.passes import run_graph
from tests.passes.build import Builder

_RNG = np.random.default_rng(3)


def _numbers(*shape: int) -> np.ndarray:
    return _RNG.standard_normal(shape).astype(np.float32)


def _simple(graph: Graph, **inputs: np.ndarray) -> Graph:
    """The simple form, after checking that it is well-formed and gives the same numbers."""
    before = infer_shapes(graph)
    after = simplify(before)
    verify(after, "simplify")
    wanted, found = run_graph.run(before, inputs), run_graph.run(after, inputs)
    assert list(found) == list(wanted)
    for name, array in wanted.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-6)
    return after


def _ops(graph: Graph) -> list[str]:
    return [node.op for node in graph.nodes]


def _only(graph: Graph) -> Node:
    (node,) = graph.nodes
    return node


def test_shape_arithmetic_leaves_no_nodes() -> None:
    b = Builder()
    x = b.input("x", ("n", 6, "w"))
    shape = b.add("Shape", x)
    last = b.add("Gather", shape, b.constant(2, "int64"), axis=0)
    first = b.add("Gather", shape, b.constant(0, "int64"), axis=0)
    parts = [b.add("Unsqueeze", part, b.ints(0)) for part in (first, last)]
    y = b.add("Reshape", x, b.add("Concat", parts[0], b.ints(-1), parts[1], axis=0))
    z = b.add("Transpose", y, perm=(0, 2, 1))
    graph = _simple(b.graph(z), x=_numbers(2, 6, 5))
    assert _ops(graph) == ["Transpose"]


def test_a_size_that_data_need_is_written_by_one_node() -> None:
    b = Builder()
    x = b.input("x", ("n", 4))
    count = b.add("Cast", b.add("Gather", b.add("Shape", x), b.ints(0), axis=0), to=1)
    y = b.add("Div", x, count)
    graph = _simple(b.graph(y), x=_numbers(3, 4))
    assert _ops(graph) == ["DimsToTensor", "Cast", "Div"]
    assert graph.nodes[0].attrs["dims"] == (dims.symbol("n"),)


def test_views_are_one_canonical_reshape() -> None:
    b = Builder()
    x = b.input("x", ("n", 2, 3))
    y = b.add("Unsqueeze", b.add("Flatten", x, axis=1), b.ints(0, 3))
    graph = _simple(b.graph(y), x=_numbers(4, 2, 3))
    node = _only(graph)
    assert (node.op, node.inputs) == ("Reshape", ("x",))
    assert node.attrs == {"shape": (1, dims.symbol("n"), 6, 1)}


def test_a_reshape_and_back_is_nothing() -> None:
    b = Builder()
    x = b.input("x", ("n", 6))
    y = b.add("Relu", b.add("Squeeze", b.add("Unsqueeze", x, b.ints(1)), b.ints(1)))
    assert _ops(_simple(b.graph(y), x=_numbers(2, 6))) == ["Relu"]


def test_two_transposes_are_one_or_none() -> None:
    b = Builder()
    x = b.input("x", (2, 3, 4))
    once = b.add("Transpose", b.add("Transpose", x, perm=(1, 2, 0)), perm=(2, 0, 1))
    twice = b.add("Transpose", b.add("Transpose", x, perm=(1, 2, 0)), perm=(1, 2, 0))
    graph = _simple(b.graph(b.add("Relu", once), twice), x=_numbers(2, 3, 4))
    assert sorted(_ops(graph)) == ["Relu", "Transpose"]


def test_a_transpose_of_ones_is_a_view() -> None:
    b = Builder()
    y = b.add("Transpose", b.input("x", (1, "n", 4, 1)), perm=(1, 0, 3, 2))
    assert _only(_simple(b.graph(y), x=_numbers(1, 3, 4, 1))).op == "Reshape"


@pytest.mark.parametrize(
    "op, inputs, attrs",
    [
        ("Identity", [], {}),
        ("Dropout", [], {}),
        ("Cast", [], {"to": 1}),
        ("Mul", [1.0], {}),
        ("Add", [[0.0, 0.0, 0.0, 0.0]], {}),
        ("Sub", [0.0], {}),
        ("Div", [1.0], {}),
        ("Pow", [1.0], {}),
        ("Concat", [], {"axis": 1}),
        ("Max", [], {}),
    ],
)
def test_what_does_nothing_vanishes(op: str, inputs: list[Any], attrs: dict[str, Any]) -> None:
    b = Builder()
    x = b.add("Relu", b.input("x", ("n", 4)))
    y = b.add("Exp", b.add(op, x, *(b.constant(value) for value in inputs), **attrs))
    assert _ops(_simple(b.graph(y), x=_numbers(3, 4))) == ["Relu", "Exp"]


def test_a_zero_that_widens_is_kept() -> None:
    b = Builder()
    y = b.add("Add", b.input("x", (1, 4)), b.constant(np.zeros((3, 1))))
    assert _ops(_simple(b.graph(y), x=_numbers(1, 4))) == ["Add"]


def test_chains_of_constants_merge() -> None:
    b = Builder()
    x = b.input("x", ("n", 4))
    scaled = b.add("Div", b.add("Mul", x, b.constant([1.0, 2.0, 3.0, 4.0])), b.constant(6.0))
    y = b.add("Sub", b.add("Add", scaled, b.constant(5.0)), b.constant([1.0, 2.0, 3.0, 4.0]))
    assert _ops(_simple(b.graph(y), x=_numbers(3, 4))) == ["Mul", "Add"]


def test_a_chain_that_others_read_is_kept() -> None:
    b = Builder()
    inner = b.add("Mul", b.input("x", ("n",)), b.constant(3.0))
    y = b.add("Mul", inner, b.constant(5.0))
    assert _ops(_simple(b.graph(inner, y), x=_numbers(3))) == ["Mul", "Mul"]


def test_equal_nodes_are_shared_but_random_ones_are_not() -> None:
    b = Builder()
    x = b.input("x", ("n", 4))
    y = b.add("Add", b.add("Exp", x), b.add("Exp", x))
    assert _ops(_simple(b.graph(y), x=_numbers(2, 4))) == ["Exp", "Add"]
    b = Builder()
    y = b.add("Add", b.add("RandomNormal", shape=(2,)), b.add("RandomNormal", shape=(2,)))
    assert _ops(simplify(b.graph(y))) == ["RandomNormal", "RandomNormal", "Add"]


def test_nodes_whose_extents_data_decide_are_not_shared() -> None:
    b = Builder()
    x = b.input("x", ("n",), "int64")
    y = b.add("Add", b.add("NonZero", x), b.add("NonZero", x))
    graph = _simple(b.graph(y), x=np.array([1, 0, 2]))
    assert _ops(graph) == ["NonZero", "NonZero", "Add"]


def test_global_pools_are_reductions() -> None:
    b = Builder()
    x = b.input("x", (2, 3, "h", 4))
    graph = _simple(
        b.graph(b.add("GlobalAveragePool", x), b.add("GlobalMaxPool", x)), x=_numbers(2, 3, 5, 4)
    )
    assert _ops(graph) == ["ReduceMean", "ReduceMax"]
    assert graph.nodes[0].attrs == {"axes": (2, 3), "keepdims": 1}


@pytest.mark.parametrize(
    "op", ["ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp"]
)
@pytest.mark.parametrize("keepdims", [0, 1])
def test_compound_reductions_are_written_with_sums(op: str, keepdims: int) -> None:
    b = Builder()
    y = b.add(op, b.input("x", ("n", 5)), b.ints(1), keepdims=keepdims)
    graph = _simple(b.graph(y), x=np.abs(_numbers(3, 5)))
    assert "ReduceSum" in _ops(graph)
    assert op not in _ops(graph)


def test_the_logarithm_of_a_sum_of_powers_survives_infinities() -> None:
    b = Builder()
    y = b.add("ReduceLogSumExp", b.input("x", (4, 2)), b.ints(1), keepdims=0)
    inf = np.inf
    x = np.array([[-inf, -inf], [inf, 1.0], [-inf, 2.0], [1e4, 1e4]], np.float32)
    found = run_graph.run(simplify(b.graph(y)), {"x": x})[y]
    np.testing.assert_allclose(found, [-inf, inf, 2.0, 1e4 + np.log(2.0)], rtol=1e-6)


@pytest.mark.parametrize("op, by", [("Max", "Max"), ("Sum", "Add"), ("Min", "Min")])
def test_many_operands_are_taken_by_twos(op: str, by: str) -> None:
    b = Builder()
    y = b.add(op, *(b.input(name, ("n", 3)) for name in ("p", "q", "r")))
    numbers = {name: _numbers(2, 3) for name in ("p", "q", "r")}
    assert _ops(_simple(b.graph(y), **numbers)) == [by, by]


def test_a_mean_of_many_is_a_sum_divided() -> None:
    b = Builder()
    y = b.add("Mean", *(b.input(name, (3,)) for name in ("p", "q", "r")))
    numbers = {name: _numbers(3) for name in ("p", "q", "r")}
    assert _ops(_simple(b.graph(y), **numbers)) == ["Add", "Add", "Div"]


def test_picking_one_place_is_a_slice_and_a_view() -> None:
    b = Builder()
    y = b.add("Gather", b.input("x", ("n", 5, 2)), b.constant(-1, "int64"), axis=1)
    graph = _simple(b.graph(y), x=_numbers(2, 5, 2))
    assert _ops(graph) == ["Slice", "Reshape"]
    assert graph.nodes[0].attrs == {"axes": (1,), "starts": (4,), "steps": (1,), "sizes": (1,)}


def test_a_slice_keeps_only_the_axes_that_it_cuts() -> None:
    b = Builder()
    x = b.input("x", ("n", 8))
    y = b.add("Slice", x, b.ints(0, -3), b.ints(2**62, 2**62), b.ints(0, 1), b.ints(1, 2))
    node = _only(_simple(b.graph(y), x=_numbers(3, 8)))
    assert node.attrs == {"axes": (1,), "starts": (5,), "steps": (2,), "sizes": (2,)}


def test_padding_of_same_windows_is_written_out() -> None:
    b = Builder()
    weights = b.constant(_numbers(4, 3, 3))
    static = b.add("Conv", b.input("x", (1, 3, 9)), weights, auto_pad="SAME_UPPER", strides=(2,))
    moving = b.add("Conv", b.input("z", (1, 3, "w")), weights, auto_pad="SAME_LOWER", strides=(2,))
    graph = _simple(b.graph(static, moving), x=_numbers(1, 3, 9), z=_numbers(1, 3, 10))
    first, second = graph.nodes
    assert first.attrs["pads"] == (1, 1)
    assert "auto_pad" not in first.attrs
    bound = [dims.evaluate(pad, {"w": 10}) for pad in second.attrs["pads"]]
    assert bound == [1, 0]


def test_transposed_convolutions_get_explicit_pads() -> None:
    b = Builder()
    x = b.input("x", (1, 2, 5))
    y = b.add(
        "ConvTranspose", x, b.constant(_numbers(2, 3, 4)), auto_pad="SAME_UPPER", strides=(2,)
    )
    node = _only(_simple(b.graph(y), x=_numbers(1, 2, 5)))
    assert node.attrs["pads"] == (1, 1)
    assert node.attrs["output_padding"] == (0,)


def test_what_broadcasts_anyway_is_not_expanded() -> None:
    b = Builder()
    x = b.input("x", ("n", 4))
    wide = b.add("Expand", b.input("z", (1, 4)), b.add("Shape", x))
    ones = b.add("ConstantOfShape", b.add("Shape", x), value=np.array([2.0], np.float32))
    y = b.add("Mul", b.add("Add", x, wide), ones)
    graph = _simple(b.graph(y), x=_numbers(3, 4), z=_numbers(1, 4))
    assert _ops(graph) == ["Add", "Mul"]


def test_an_output_keeps_its_name_when_its_node_vanishes() -> None:
    b = Builder()
    inner = b.add("Exp", b.input("x", ("n",)))
    graph = _simple(b.graph(b.add("Identity", inner, out="result")), x=_numbers(3))
    assert graph.outputs == ("result",)
    assert _only(graph).outputs == ("result",)


def test_an_input_that_is_an_output_is_copied() -> None:
    b = Builder()
    graph = _simple(b.graph(b.add("Identity", b.input("x", (2,)), out="y")), x=_numbers(2))
    assert _ops(graph) == ["Identity"]


def test_two_outputs_of_one_value_both_remain() -> None:
    b = Builder()
    inner = b.add("Exp", b.input("x", (2,)))
    outs = b.add("Identity", inner, out="p"), b.add("Identity", inner, out="q")
    graph = _simple(b.graph(*outs), x=_numbers(2))
    assert sorted(_ops(graph)) == ["Exp", "Identity"]


def test_a_mask_of_dropout_is_all_true() -> None:
    b = Builder()
    b.add_many("Dropout", (b.input("x", ("n", 2)),), ("y", "mask"))
    graph = simplify(b.graph("y", "mask"))
    verify(graph, "simplify")
    assert run_graph.run(graph, {"x": _numbers(3, 2)})["mask"].all()


def test_a_range_of_sizes_needs_no_inputs() -> None:
    b = Builder()
    x = b.input("x", ("n", 3))
    count = b.add("Gather", b.add("Shape", x), b.constant(0, "int64"), axis=0)
    y = b.add("Range", b.constant(0, "int64"), count, b.constant(1, "int64"))
    node = _only(_simple(b.graph(y), x=_numbers(4, 3)))
    assert (node.inputs, node.attrs["limit"]) == ((), dims.symbol("n"))


@pytest.mark.parametrize(
    "name, shapes",
    [
        ("alexa", {}),
        ("ocr_cls", {"x": (1, 3, 48, 64)}),
        ("ocr_rec", {"x": (1, 3, 48, 32)}),
        ("silero_sequence", {"input": (2, 576)}),
    ],
)
@pytest.mark.realmodel
def test_real_models_give_the_same_numbers(
    model_file: Callable[[str], Path], name: str, shapes: dict[str, tuple[int, ...]]
) -> None:
    graph = infer_shapes(onnx.load(model_file(name)))
    inputs = {}
    for value in graph.inputs:
        declared = graph.shape(value)
        inputs[value] = _numbers(*shapes.get(value, tuple(e for e in declared if type(e) is int)))
    wanted = run_graph.run(graph, inputs)
    after = simplify(infer_shapes(fold_constants(graph, evaluator.evaluate_node)))
    found = run_graph.run(after, inputs)
    for key, array in wanted.items():
        np.testing.assert_allclose(found[key], array, rtol=1e-3, atol=1e-4)


def test_padding_by_zeros_joins_the_convolution() -> None:
    b = Builder()
    x = b.input("x", ("n", 2, 8))
    padded = b.add("Pad", x, b.ints(0, 0, 1, 0, 0, 2))
    y = b.add("Conv", padded, b.constant(_numbers(3, 2, 3)), strides=(2,), pads=(1, 0))
    node = _only(_simple(b.graph(y), x=_numbers(2, 2, 8)))
    assert node.attrs["pads"] == (2, 2)


def test_padding_that_is_not_of_zeros_stays() -> None:
    b = Builder()
    x = b.input("x", ("n", 2, 8))
    padded = b.add("Pad", x, b.ints(0, 0, 1, 0, 0, 2), b.constant(1.0))
    y = b.add("Conv", padded, b.constant(_numbers(3, 2, 3)))
    assert _ops(_simple(b.graph(y), x=_numbers(2, 2, 8))) == ["Pad", "Conv"]


@pytest.mark.parametrize("to, ops", [(11, ["Cast"]), (7, ["Cast", "Cast"])])
def test_a_cast_through_a_wider_dtype_is_one_cast(to: int, ops: list[str]) -> None:
    b = Builder()
    y = b.add("Cast", b.add("Cast", b.input("x", ("n",)), to=to), to=6)
    assert _ops(_simple(b.graph(y), x=_numbers(4) * 9)) == ops


def test_a_dropout_that_trains_stays() -> None:
    b = Builder()
    y = b.add("Dropout", b.input("x", ("n",)), "", b.input("t", (), "bool"))
    assert _ops(simplify(b.graph(y))) == ["Dropout"]


def test_a_range_of_whole_floats_needs_no_inputs() -> None:
    b = Builder()
    x = b.input("x", ("n", 3))
    count = b.add("Gather", b.add("Shape", x), b.constant(0, "int64"), axis=0)
    y = b.add("Range", b.constant(0.0), b.add("Cast", count, to=1), b.constant(1.0))
    node = _only(_simple(b.graph(y), x=_numbers(4, 3)))
    assert (node.inputs, node.attrs["dtype"]) == ((), "float32")


def test_extents_that_data_decide_may_broadcast() -> None:
    b = Builder()
    picked = b.add("NonZero", b.input("x", ("n",), "int64"))
    y = b.add("Add", picked, b.input("z", (1, "m"), "int64"))
    graph = _simple(b.graph(y), x=np.array([0, 3, 0]), z=np.array([[5, 6, 7]]))
    assert _ops(graph) == ["NonZero", "Add"]


def test_padding_reaches_the_convolution_through_a_view() -> None:
    b = Builder()
    padded = b.add("Pad", b.input("x", ("n", 8, 1, 2)), b.ints(0, 1, 0, 0, 0, 2, 0, 0))
    line = b.add("Transpose", b.add("Squeeze", padded, b.ints(2)), perm=(0, 2, 1))
    kept = b.add("Squeeze", b.add("Pad", line, b.ints(0, 0, 2, 0, 0, 0)), b.ints())
    y = b.add("Conv", kept, b.constant(_numbers(3, 2, 3)))
    graph = _simple(b.graph(y), x=_numbers(2, 8, 1, 2))
    assert _ops(graph) == ["Reshape", "Pad", "Transpose", "Conv"]
    assert graph.nodes[-1].attrs["pads"] == (2, 0)
