"""Subnormal weights become zeros, and nothing else changes."""

from __future__ import annotations

import numpy as np

from castiron.compiler.passes.flush_subnormals import flush_subnormals
from castiron.graph import graph as graphs
from castiron.graph.graph import Graph, Node, TensorType
from castiron.graph.verify import verify
from castiron.tensor import dtype as dtypes

TINY = np.float32(1e-40)


def _graph(op: str, weights: np.ndarray) -> Graph:
    types = {
        "x": TensorType(dtypes.FLOAT32, (2, 3)), "y": TensorType(dtypes.FLOAT32, (2, 3)),
        "w": graphs.constant_type(weights),
    }  # fmt: skip
    node = Node(op, ("x", "w"), ("y",))
    return Graph("test", (node,), ("x",), ("y",), types, {"w": weights})


def test_subnormal_weights_of_a_product_become_zero() -> None:
    weights = np.array([[1, TINY, 0], [-TINY, 2, 1e-30], [3, np.inf, np.nan]], np.float32)
    graph = flush_subnormals(_graph("MatMul", weights))
    verify(graph, "flush_subnormals")
    (name,) = graph.constants
    expected = np.array([[1, 0, 0], [0, 2, 1e-30], [3, np.inf, np.nan]], np.float32)
    assert graph.nodes[0].inputs == ("x", name)
    assert np.array_equal(graph.constants[name], expected, equal_nan=True)


def test_other_constants_and_normal_weights_stay() -> None:
    for op, weights in (("Add", np.full((3, 3), TINY)), ("MatMul", np.eye(3, dtype=np.float32))):
        graph = flush_subnormals(_graph(op, weights))
        assert graph.constants["w"] is weights
