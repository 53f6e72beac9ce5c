"""Cutting into stages: kinds together, and no native node before the extents that it needs."""

from __future__ import annotations

import numpy as np

from castiron.compiler import stages
from castiron.graph.graph import Graph, Node, TensorType
from castiron.tensor import dim as dims
from castiron.tensor import dtype as dtypes

N = dims.symbol("n")


def typed(*shape: int | dims.Dim) -> TensorType:
    return TensorType(dtypes.FLOAT32, shape)


def graph_of(nodes: list[Node], types: dict[str, TensorType], outputs: tuple[str, ...]) -> Graph:
    return Graph("g", tuple(nodes), ("x",), outputs, {"x": typed(N), **types}, {})


def native(op: str, *inputs: str, out: str) -> Node:
    return Node(op, inputs, (out,), name=out)


def interpreted(*inputs: str, out: str) -> Node:
    return Node("Interpreted", inputs, (out,), {"op": "NonZero"}, out)


def test_a_native_graph_is_one_stage() -> None:
    nodes = [native("Abs", "x", out="a"), native("Neg", "a", out="y")]
    (stage,) = stages.cut(graph_of(nodes, {"a": typed(N), "y": typed(N)}, ("y",)))
    assert stage.is_native
    assert (stage.reads, stage.writes) == (("x",), ("y",))


def test_kinds_are_gathered_into_few_stages() -> None:
    nodes = [
        native("Abs", "x", out="a"),
        interpreted("a", out="b"),
        native("Neg", "x", out="c"),
        native("Add", "b", "c", out="y"),
    ]
    types = {name: typed(N) for name in "abcy"}
    found = stages.cut(graph_of(nodes, types, ("y",)))
    assert [[node.name for node in stage.nodes] for stage in found] == [["a", "c"], ["b"], ["y"]]
    assert found[0].writes == ("a", "c")


def test_a_node_whose_extents_come_from_an_interpreted_result_waits_for_it() -> None:
    size = dims.symbol("b_0")
    lengths = Node("DimsToTensor", (), ("d",), {"dims": (size,), "dtype": "int64"}, "d")
    nodes = [lengths, interpreted("x", out="b"), native("Add", "b", "d", out="y")]
    types = {"d": TensorType(dtypes.INT64, (1,)), "b": typed(size), "y": typed(size)}
    found = stages.cut(graph_of(nodes, types, ("y",)))
    assert [[node.name for node in stage.nodes] for stage in found] == [["b"], ["d", "y"]]


def test_an_interpreted_graph_needs_no_native_stage_of_its_own_but_one() -> None:
    nodes = [interpreted("x", out="a"), interpreted("a", out="y")]
    found = stages.cut(graph_of(nodes, {"a": typed(N), "y": typed(N)}, ("y",)))
    assert [stage.is_native for stage in found] == [False, True]
    assert [len(stage.nodes) for stage in found] == [2, 0]
    assert found[0].writes == ("y",)


def test_kinds_alternate_where_the_data_do() -> None:
    nodes = [
        interpreted("x", out="a"),
        native("Abs", "a", out="b"),
        interpreted("b", out="c"),
        native("Abs", "c", out="y"),
    ]
    found = stages.cut(graph_of(nodes, {name: typed(N) for name in "abcy"}, ("y",)))
    assert [stage.is_native for stage in found] == [False, True, False, True]
    assert [(stage.reads, stage.writes) for stage in found] == [
        (("x",), ("a",)),
        (("a",), ("b",)),
        (("b",), ("c",)),
        (("c",), ("y",)),
    ]


def test_outputs_leave_the_stage_that_makes_them_and_serve_later_ones() -> None:
    nodes = [
        native("Abs", "x", out="a"),
        interpreted("a", out="b"),
        native("Add", "a", "b", out="y"),
    ]
    found = stages.cut(graph_of(nodes, {name: typed(N) for name in "aby"}, ("a", "b", "y")))
    assert [stage.writes for stage in found] == [("a",), ("b",), ("y",)]
    assert found[2].reads == ("a", "b")


def test_an_output_that_no_node_makes_is_copied_by_the_last_native_stage() -> None:
    graph = graph_of([native("Abs", "x", out="y")], {"y": typed(N)}, ("x", "y"))
    (stage,) = stages.cut(graph)
    assert (stage.reads, stage.writes) == (("x",), ("y", "x"))


def test_a_graph_without_nodes_is_one_native_stage() -> None:
    (stage,) = stages.cut(graph_of([], {}, ("x",)))
    assert (stage.is_native, stage.nodes, stage.reads, stage.writes) == (True, (), ("x",), ("x",))


def test_constants_enter_no_stage() -> None:
    graph = graph_of([native("Add", "x", "c", out="y")], {"y": typed(N), "c": typed(1)}, ("y",))
    (stage,) = stages.cut(graph.replace(constants={"c": np.ones(1, np.float32)}))
    assert stage.reads == ("x",)


def test_an_output_loose_from_all_nodes_leaves_also_when_the_last_stage_is_interpreted() -> None:
    nodes = [native("Abs", "x", out="a"), interpreted("a", out="y")]
    found = stages.cut(graph_of(nodes, {"a": typed(N), "y": typed(N)}, ("y", "x")))
    assert {out for stage in found for out in stage.writes} >= {"x", "y"}
