"""Channels-last inside convolution nets: where transposes go, and where none is left."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from castiron.compiler.passes.choose_layouts import choose_layouts, regroup
from castiron.compiler.passes.fuse_elementwise import fuse_elementwise
from castiron.graph.graph import Graph
from castiron.tensor import dim as dims
from tests.passes import read
from tests.passes.build import Builder

N, H, W = dims.symbol("n"), dims.symbol("h"), dims.symbol("w")


def moved(graph: Graph) -> list[str]:
    """The lines of the graph after the pass, checked to compute the same."""
    after = choose_layouts(graph)
    read.assert_same(graph, after, n=2, h=6, w=5)
    return read.lines(after)


def between(lines: list[str]) -> list[str]:
    """What lies between the transpose of the input and that of the output."""
    assert lines[0] == "x:0231 = Transpose(x) {perm=0 2 3 1}"
    assert "= Transpose(" in lines[-1]
    assert "{perm=0 3 1 2}" in lines[-1]
    return lines[1:-1]


def test_convolutions_in_a_row_need_one_transpose_at_each_end() -> None:
    b = Builder()
    x = b.input("x", ("n", 4, "h", "w"))
    y = read.conv(b, b.add("Relu", read.conv(b, x, (4, 6), 3)), (6, 8))
    assert between(moved(read.canonical(b, y))) == [
        "v0:stored = Conv(x:0231, c0) {layout=NHWC}",
        "v1:stored = Relu(v0:stored)",
        "v2:stored = Conv(v1:stored, c1) {layout=NHWC}",
    ]


def test_squeeze_and_excite_stays_channels_last() -> None:
    b = Builder()
    x = read.conv(b, b.input("x", ("n", 4, "h", "w")), (4, 4), 3)
    gate = read.conv(b, b.add("GlobalAveragePool", x), (4, 4))
    y = read.conv(b, b.add("Mul", x, b.add("HardSigmoid", gate)), (4, 8))
    assert between(moved(read.canonical(b, y))) == [
        "v0:stored = Conv(x:0231, c0) {layout=NHWC}",
        "v1:stored = ReduceMean(v0:stored) {axes=1 2}",
        "v2:stored = Conv(v1:stored, c1) {layout=NHWC}",
        "v3:stored = HardSigmoid(v2:stored)",
        "v4:stored = Mul(v0:stored, v3:stored)",
        "v5:stored = Conv(v4:stored, c2) {layout=NHWC}",
    ]


def test_a_channel_shuffle_turns_two_short_axes_inside_the_pixels() -> None:
    b = Builder()
    x = read.conv(b, b.input("x", ("n", 4, "h", "w")), (4, 4))
    split = b.add("Reshape", x, b.ints(0, 2, 2, -1))
    turned = b.add("Transpose", split, perm=(0, 2, 1, 3))
    y = read.conv(b, b.add("Reshape", turned, b.add("Shape", x)), (4, 4))
    assert between(moved(read.canonical(b, y))) == [
        "v0:stored = Conv(x:0231, c0) {layout=NHWC}",
        "v1:stored = Reshape(v0:stored) {shape=[n] [h*w] 2 2}",
        "v1:stored:0132 = Transpose(v1:stored) {perm=0 1 3 2}",
        "v4:stored = Reshape(v1:stored:0132) {shape=[n] [h] [w] 4}",
        "v5:stored = Conv(v4:stored, c2) {layout=NHWC}",
    ]


def test_a_residual_sum_joins_two_branches_where_they_lie() -> None:
    b = Builder()
    x = read.conv(b, b.input("x", ("n", 4, "h", "w")), (4, 4), 3)
    y = b.add("Add", read.conv(b, x, (4, 4), 3), x)
    assert between(moved(read.canonical(b, y)))[-1] == "v2:stored = Add(v1:stored, v0:stored)"


def test_a_vector_of_channels_is_turned_while_building() -> None:
    b = Builder()
    x = read.conv(b, b.input("x", ("n", 4, "h", "w")), (4, 4))
    y = b.add("PRelu", x, b.constant(read.normal(4, 1, 1)))
    graph = read.canonical(b, y)
    assert not [line for line in moved(graph) if "Reshape" in line]


def test_transposes_of_the_model_cancel_against_ours() -> None:
    b = Builder()
    x = b.add("Transpose", b.input("x", ("n", "h", "w", 4)), perm=(0, 3, 1, 2))
    y = b.add("Transpose", read.conv(b, x, (4, 8), 3), perm=(0, 2, 3, 1))
    assert moved(read.canonical(b, y)) == [
        "v1:stored = Conv(x, c0) {layout=NHWC}",
        "v2 = Identity(v1:stored)",
    ]


def test_one_channel_needs_no_transpose_but_a_view() -> None:
    b = Builder()
    y = read.conv(b, b.input("x", ("n", 1, "h", "w")), (1, 1), 3)
    assert moved(read.canonical(b, y)) == [
        "x:0231 = Reshape(x) {shape=[n] [h] [w] 1}",
        "v0:stored = Conv(x:0231, c0) {layout=NHWC}",
        "v0 = Reshape(v0:stored) {shape=[n] 1 [h] [w]}",
    ]


@pytest.mark.parametrize("axis, stored", [(0, 0), (1, 3), (2, 1), (-1, 2)])
def test_the_axis_of_a_concat_follows_the_storage(axis: int, stored: int) -> None:
    b = Builder()
    x = read.conv(b, b.input("x", ("n", 4, "h", "w")), (4, 4))
    lines = moved(read.canonical(b, b.add("Concat", x, x, axis=axis)))
    assert f"v1:stored = Concat(v0:stored, v0:stored) {{axis={stored}}}" in lines


@pytest.mark.parametrize("axis", [1, 2, 3])
def test_softmax_over_any_axis_gets_it_last(axis: int) -> None:
    b = Builder()
    x = read.conv(b, b.input("x", ("n", 4, "h", "w")), (4, 4))
    lines = moved(read.canonical(b, b.add("Softmax", x, axis=axis)))
    turns = [line for line in lines if "= Transpose(" in line]
    # Over the channels, which lie last, it needs no transpose of its own.
    # Nor over the last axis, where the plain order is the one wanted and is the output's too.
    assert len(turns) == (3 if axis == 2 else 2)


@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("axes", [(1,), (2, 3), (0, 1), (3,), (0, 1, 2, 3)])
def test_reductions_work_on_what_is_stored(axes: tuple[int, ...], keepdims: int) -> None:
    b = Builder()
    x = read.conv(b, b.input("x", ("n", 4, "h", "w")), (4, 4))
    reduced = b.add("ReduceSum", x, b.ints(*axes), keepdims=keepdims)
    lines = moved(read.canonical(b, b.add("Relu", reduced), x))
    assert any(line.split(" = ")[1].startswith("ReduceSum(v0:stored)") for line in lines)


def test_slices_pads_and_splits_work_on_what_is_stored() -> None:
    b = Builder()
    x = read.conv(b, b.input("x", ("n", 4, "h", "w")), (4, 4))
    part = b.add("Slice", x, b.ints(1), b.ints(3), b.ints(1), b.ints(1))
    padded = b.add("Pad", part, b.ints(0, 1, 0, 2, 0, 0, 3, 0), mode="constant")
    b.add_many("Split", (padded, b.ints(1, 2)), ("left", "right"), axis=1)
    y = b.add("Mul", "left", b.add("ReduceMean", "right", b.ints(1), keepdims=1))
    lines = moved(read.canonical(b, y))
    assert [line.split(" = ")[1].split("(")[0] for line in lines].count("Transpose") == 1
    assert any("Slice(v0:stored)" in line and "axes=3" in line for line in lines)
    assert any("Split(" in line and "axis=3" in line for line in lines)


def test_what_needs_the_plain_order_gets_it_once() -> None:
    b = Builder()
    x = read.conv(b, b.input("x", ("n", 4, 6, 5)), (4, 4))
    flat = b.add("Reshape", x, b.ints(0, -1))
    y = b.add("MatMul", flat, b.constant(read.normal(120, 3)))
    z = b.add("MatMul", flat, b.constant(read.normal(120, 2)))
    lines = moved(read.canonical(b, y, z))
    assert sum("Transpose(v0:stored)" in line for line in lines) == 1


def test_a_convolution_learns_the_precision_that_was_asked_for() -> None:
    b = Builder()
    y = read.conv(b, b.input("x", ("n", 4, "h", "w")), (4, 4), 3)
    graph = choose_layouts(read.canonical(b, y), "strict")
    (found,) = [node for node in graph.nodes if node.op == "Conv"]
    assert found.attrs["precision"] == "strict"


def test_a_changed_node_carries_no_source_form_that_would_lie() -> None:
    b = Builder()
    x = read.conv(b, b.input("x", ("n", 4, "h", "w")), (4, 4))
    graph = read.canonical(b, b.add("Concat", x, x, axis=1))
    nodes = tuple(dataclasses.replace(node, origin=b"source") for node in graph.nodes)
    for node in choose_layouts(graph.replace(nodes=nodes)).nodes:
        assert node.op == "Identity" or node.origin is None


@pytest.mark.parametrize(
    "source, target, groups",
    [
        ((N, 4, H, W), (N, 2, 2, H * W), [([0], [0]), ([1], [1, 2]), ([2, 3], [3])]),
        ((N, 1, 6), (N, 6), [([0], [0]), ([2], [1])]),
        ((2, 3), (3, 2), [([0, 1], [0, 1])]),
        ((N, H), (H, N), [([0, 1], [0, 1])]),
        ((N, 4), (W, 4), None),
        ((1, 1), (1,), []),
    ],
)
def test_axes_are_regrouped_only_where_the_products_are_provably_equal(
    source: tuple[int | dims.Dim, ...],
    target: tuple[int | dims.Dim, ...],
    groups: list[tuple[list[int], list[int]]] | None,
) -> None:
    assert regroup(source, target) == groups


def test_one_value_in_two_layouts_is_stored_twice_at_most() -> None:
    b = Builder()
    x = b.input("x", ("n", 4, "h", "w"))
    left, right = read.conv(b, x, (4, 4)), read.conv(b, x, (4, 4), 3)
    lines = moved(read.canonical(b, b.add("Add", left, right), b.add("Exp", x)))
    assert sum("Transpose(x)" in line for line in lines) == 1
    assert not any(":0231'" in line for line in lines)


def _between_convolutions(op: str, more: list[Any], attrs: dict[str, Any]) -> Graph:
    """The op on the result of a convolution, and a convolution on its result where it fits."""
    b = Builder()
    x = read.conv(b, b.input("x", (2, 4, 6, 8)), (4, 4))
    others = [item if isinstance(item, str) else b.constant(item, item.dtype.name) for item in more]
    y = b.add(op, x, *others, **attrs)
    return read.canonical(b, y, b.add("Neg", y))


F = np.float32
OPS: list[tuple[str, list[Any], dict[str, Any]]] = [
    ("MaxPool", [], {"kernel_shape": (3, 2), "strides": (2, 1), "pads": (1, 0, 1, 1)}),
    ("AveragePool", [], {"kernel_shape": (3, 3), "pads": (1,) * 4, "count_include_pad": 1}),
    ("LpPool", [], {"kernel_shape": (2, 2), "p": 2}),
    ("LRN", [], {"size": 3}),
    ("Resize", ["", np.array([1, 1, 2, 3], F)], {"mode": "linear"}),
    ("Resize", ["", "", np.array([2, 4, 3, 5])], {"mode": "nearest"}),
    ("ConvTranspose", [np.ones((4, 3, 2, 2), F)], {"kernel_shape": (2, 2), "strides": (2, 2)}),
    ("LogSoftmax", [], {"axis": 1}),
    ("Hardmax", [], {"axis": 2}),
    ("CumSum", [np.array(1)], {}),
    ("Gather", [np.array([2, 0])], {"axis": 1}),
    ("Expand", [np.array([3, 1, 4, 1, 1])], {}),
    ("Tile", [np.array([1, 2, 1, 2])], {}),
    ("Transpose", [], {"perm": (3, 1, 0, 2)}),
    ("Squeeze", [], {}),
    ("Unsqueeze", [np.array([0, 3])], {}),
    ("Flatten", [], {"axis": 2}),
    ("Reshape", [np.array([2, 2, 2, 48])], {}),
    ("Reshape", [np.array([8, -1])], {}),
    ("Reshape", [np.array([2, 4, 48])], {}),
    ("Reshape", [np.array([1, 2, 4, 1, 6, 8])], {}),
    ("DepthToSpace", [], {"blocksize": 2, "mode": "DCR"}),
    ("SpaceToDepth", [], {"blocksize": 2}),
    ("InstanceNormalization", [np.ones(4, F), np.ones(4, F)], {}),
    ("ArgMax", [], {"axis": 1, "keepdims": 0}),
    ("ReduceL2", [np.array([1, 3])], {"keepdims": 0}),
    ("Slice", [np.array([1, 2]), np.array([4, 0]), np.array([1, -1]), np.array([1, -1])], {}),
    ("Pad", [np.array([0, 1, 2, 0, 1, 0, 0, 1]), np.array(3, F)], {"mode": "constant"}),
    ("Pad", [np.array([0, 0, 2, 1, 0, 0, 1, 2])], {"mode": "reflect"}),
    ("Mul", [np.arange(8, dtype=F)], {}),
    ("Mul", [np.arange(24, dtype=F).reshape(4, 6, 1)], {}),
    ("Mul", [np.arange(48, dtype=F).reshape(2, 4, 6, 1)], {}),
    ("Add", [np.ones((3, 1, 1, 1, 1), F)], {}),
    ("PRelu", [np.arange(4, dtype=F).reshape(4, 1, 1)], {}),
    ("GatherElements", [np.zeros((2, 4, 6, 3), np.int64)], {"axis": 3}),
]


@pytest.mark.parametrize(
    "op, more, attrs", OPS, ids=lambda item: item if isinstance(item, str) else ""
)
def test_any_op_computes_the_same_on_what_a_convolution_left(
    op: str, more: list[Any], attrs: dict[str, Any]
) -> None:
    graph = _between_convolutions(op, more, attrs)
    after = choose_layouts(graph)
    read.assert_same(graph, after)
    read.assert_same(graph, fuse_elementwise(after))


@pytest.mark.parametrize("kernel", [1, 3])
def test_signals_of_one_axis_run_channels_last_too(kernel: int) -> None:
    b = Builder()
    x = b.input("x", ("n", 4, "t"))
    weights = b.constant(read.normal(5, 4, kernel))
    y = b.add("Conv", x, weights, kernel_shape=(kernel,), pads=(0, 0), strides=(1,))
    graph = read.canonical(b, b.add("Sigmoid", y))
    after = choose_layouts(graph)
    read.assert_same(graph, after, n=2, t=7)
    assert [node.attr("layout") for node in after.nodes if node.op == "Conv"] == ["NHWC"]
