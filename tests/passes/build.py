"""Small graphs for the tests of passes, written in a few lines."""

from __future__ import annotations

from typing import Any

import numpy as np

from castiron.graph.graph import Extent, Graph, Node, TensorType
from castiron.tensor import dim as dims
from castiron.tensor import dtype as dtypes

Declared = tuple[int | str, ...]


class Builder:
    """Collects inputs, constants and nodes; ``graph`` gives the graph."""

    def __init__(self) -> None:
        self._nodes: list[Node] = []
        self._inputs: list[str] = []
        self._types: dict[str, TensorType] = {}
        self._constants: dict[str, np.ndarray] = {}

    def input(self, name: str, shape: Declared, dtype: str = "float32") -> str:
        """A graph input; strings in the shape are symbols."""
        extents: list[Extent] = [dims.symbol(e) if isinstance(e, str) else e for e in shape]
        self._inputs.append(name)
        self._types[name] = TensorType(dtypes.named(dtype), tuple(extents))
        return name

    def constant(self, value: Any, dtype: str = "float32") -> str:
        """A constant; its name is a number."""
        name = f"c{len(self._constants)}"
        self._constants[name] = np.array(value, dtype)
        return name

    def ints(self, *values: int) -> str:
        """A constant vector of int64."""
        return self.constant(list(values), "int64")

    def add(self, op: str, *inputs: str, out: str = "", **attrs: Any) -> str:
        """A node of one output."""
        out = out or f"v{len(self._nodes)}"
        self._nodes.append(Node(op, inputs, (out,), attrs, f"n{len(self._nodes)}"))
        return out

    def add_many(
        self, op: str, inputs: tuple[str, ...], outs: tuple[str, ...], **attrs: Any
    ) -> None:
        """A node of several outputs."""
        self._nodes.append(Node(op, inputs, outs, attrs, f"n{len(self._nodes)}"))

    def graph(self, *outputs: str) -> Graph:
        """The graph, not yet inferred."""
        return Graph(
            "test", tuple(self._nodes), tuple(self._inputs), outputs, self._types, self._constants
        )
