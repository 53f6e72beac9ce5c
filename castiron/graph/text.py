"""The readable form of a graph: one line for each input, constant and node."""

from __future__ import annotations

from typing import Any

import numpy as np

from castiron.graph import expr as expressions
from castiron.graph.graph import Graph, Node, TensorType
from castiron.tensor import dim as dims


def type_text(kind: TensorType) -> str:
    """For example ``float32[n, 3, h, w]``; ``?`` where unknown."""
    if kind.shape is None:
        return f"{kind.dtype}[?]"
    return f"{kind.dtype}[{', '.join(dims.text(extent) for extent in kind.shape)}]"


def graph_text(graph: Graph) -> str:
    """The whole graph as text, stable for the same graph."""
    lines = [f"graph {graph.name}"]
    lines += [f"  input {name}: {type_text(graph.types[name])}" for name in graph.inputs]
    lines += [
        f"  constant {name}: {type_text(graph.types[name])}" for name in sorted(graph.constants)
    ]
    lines += ["  " + node_text(graph, node) for node in graph.nodes]
    lines += [f"  output {name}" for name in graph.outputs]
    return "\n".join(lines) + "\n"


def node_text(graph: Graph, node: Node) -> str:
    """For example ``y: float32[n, 8] = Gemm(x, w, b) {transB=1}``."""
    outs = ", ".join(f"{out}: {type_text(graph.types[out])}" for out in node.outputs if out)
    ins = ", ".join(value or "-" for value in node.inputs)
    attrs = ", ".join(f"{key}={_attr_text(value)}" for key, value in sorted(node.attrs.items()))
    return f"{outs} = {node.op}({ins})" + (f" {{{attrs}}}" if attrs else "")


def _attr_text(value: Any) -> str:
    if isinstance(value, expressions.Expr):
        return expressions.text(value)
    if isinstance(value, np.ndarray):
        return f"array{list(value.shape)}"
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    return str(value)
