"""Cutting into stages: kinds together, and no native node before the extents that it needs."""

from __future__ import annotations

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
