"""Graphs as data: what is read from them, what pruning keeps, the order of nodes, the rules."""

from __future__ import annotations

import numpy as np
import pytest

from castiron import errors
from castiron.graph import graph as graphs
from castiron.graph.graph import Graph, Node, TensorType
from castiron.graph.text import graph_text
from castiron.graph.verify import verify
from castiron.tensor import dim as dims
from castiron.tensor import dtype as dtypes

N = dims.symbol("n")
ROW = TensorType(dtypes.FLOAT32, (N, 4))


def small() -> Graph:
    """y = Relu(x + c), beside a node that nobody needs."""
    nodes = (
        Node("Add", ("x", "c"), ("a",), {}, "add"),
        Node("Relu", ("a",), ("y",), {}, "relu"),
        Node("Split", ("a",), ("", "loose"), {"axis": 0, "shape": (N, 2)}, "split"),
    )
    constants = {"c": np.ones(4, np.float32), "unused": np.ones(1, np.float32)}
    types = dict.fromkeys(("x", "a", "y", "loose"), ROW)
    types |= {name: graphs.constant_type(array) for name, array in constants.items()}
    return Graph("small", nodes, ("x",), ("y",), types, constants)


def test_producers_and_consumers_leave_absent_values_out() -> None:
    graph = small()
    assert set(graph.producers()) == {"a", "y", "loose"}
    assert [node.name for node in graph.consumers()["a"]] == ["relu", "split"]
    assert "" not in graph.consumers()


def test_a_node_that_reads_a_value_twice_is_one_consumer() -> None:
    graph = small().replace(nodes=(Node("Mul", ("x", "x"), ("y",)),))
    assert len(graph.consumers()["x"]) == 1


def test_pruning_keeps_what_the_outputs_need_and_the_inputs() -> None:
    graph = graphs.prune(small())
    assert [node.name for node in graph.nodes] == ["add", "relu"]
    assert set(graph.constants) == {"c"}
    assert set(graph.types) == {"x", "a", "y", "c"}
    assert graphs.prune(graph.replace(outputs=("c",))).inputs == ("x",)


def test_nodes_are_ordered_by_what_they_read_and_otherwise_stay() -> None:
    graph = small()
    turned = graphs.topological(reversed(graph.nodes), ["x", "c"])
    assert [node.name for node in turned] == ["add", "split", "relu"]
    assert graphs.topological(graph.nodes, ["x", "c"]) == graph.nodes
    with pytest.raises(ValueError, match=r"node add reads \['c'\], never made"):
        graphs.topological(graph.nodes, ["x"])


@pytest.mark.parametrize(
    "array, contents",
    [
        (np.array([3, -1]), (3, -1)),
        (np.array(5, np.int32), (5,)),
        (np.array([True, False]), (1, 0)),
        (np.array([1.5]), None),
        (np.zeros((2, 2), np.int64), None),
        (np.zeros(65, np.int64), None),
    ],
)
def test_small_integer_constants_are_known_by_their_contents(
    array: np.ndarray, contents: tuple[int, ...] | None
) -> None:
    kind = graphs.constant_type(array)
    assert kind.contents == contents
    assert (kind.shape, kind.dtype) == (array.shape, dtypes.named(array.dtype.name))


def test_the_text_shows_every_edge_with_its_type_and_every_attribute() -> None:
    assert graph_text(small()) == (
        "graph small\n"
        "  input x: float32[n, 4]\n"
        "  constant c: float32[4]\n"
        "  constant unused: float32[1]\n"
        "  a: float32[n, 4] = Add(x, c)\n"
        "  y: float32[n, 4] = Relu(a)\n"
        "  loose: float32[n, 4] = Split(a) {axis=0, shape=(n, 2)}\n"
        "  output y\n"
    )


def test_a_well_formed_graph_passes() -> None:
    verify(small(), "no pass")


@pytest.mark.parametrize(
    "nodes, problem",
    [
        ((Node("Relu", ("a",), ("y",), {}, "r"),), "node 'r' (Relu) reads 'a' before it is made"),
        (
            (Node("Abs", ("x",), ("y",)), Node("Abs", ("x",), ("y",), {}, "b")),
            "node 'b' (Abs) makes 'y' a second time",
        ),
        ((Node("Abs", ("x",), ("y",)), Node("Abs", ("x",), ("x",), {}, "b")), "makes 'x' a second"),
        ((Node("Abs", ("x",), ("untyped",)),), "value 'untyped' has no type"),
        ((), "output 'y' is never made"),
    ],
)
def test_each_broken_rule_is_named_with_the_pass_and_the_node(
    nodes: tuple[Node, ...], problem: str
) -> None:
    with pytest.raises(errors.VerifyError) as caught:
        verify(small().replace(nodes=nodes), "fuse_nothing")
    assert "pass fuse_nothing left an ill-formed graph" in str(caught.value)
    assert problem in str(caught.value)


def test_a_constant_must_be_what_its_type_says() -> None:
    graph = small().replace(constants={"c": np.ones((2, 2), np.float32)})
    with pytest.raises(errors.VerifyError, match="constant 'c'"):
        verify(graph, "a pass")
