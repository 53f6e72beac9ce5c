"""Layer normalisation spelled out in primitives becomes one LayerNormalization node.

The pattern, as exporters write it:
``d = x - mean(x); y = d / sqrt(mean(d ** 2) + epsilon) * scale + bias`` with both means over the
last axis and the last two factors optional.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from castiron.graph import graph as graphs
from castiron.graph.graph import Graph, Node


def fuse_norms(graph: Graph) -> Graph:
    """The graph with every such chain replaced."""
    match = _Matcher(graph)
    nodes: list[Node] = []
    replaced: dict[str, Node] = {}
    constants, types = dict(graph.constants), dict(graph.types)
    for node in graph.nodes:
        found = match.chain(node)
        if found is not None:
            for value in (found.scale, found.bias):
                if value and value not in constants:
                    constants[value] = found.made[value]
                    types[value] = graphs.constant_type(found.made[value])
            replaced[found.output] = found.node()
    for node in graph.nodes:
        nodes.append(replaced.get(node.outputs[0], node))
    changed = graph.replace(nodes=tuple(nodes), constants=constants, types=types)
    return graphs.prune(changed)


@dataclasses.dataclass(slots=True)
class _Norm:
    """One recognised chain."""

    data: str
    output: str
    epsilon: float
    name: str
    scale: str = ""
    bias: str = ""
    made: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)

    def node(self) -> Node:
        inputs = (self.data, self.scale, *((self.bias,) if self.bias else ()))
        attrs = {"axis": -1, "epsilon": self.epsilon}
        return Node("LayerNormalization", inputs, (self.output,), attrs, self.name)


class _Matcher:
    """Recognises the chain from its Div."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._producers = graph.producers()
        self._consumers = graph.consumers()

    def chain(self, node: Node) -> _Norm | None:
        """The chain whose division this node is, or None."""
        if node.op != "Div" or self._graph.dtype(node.outputs[0]).name != "float32":
            return None
        deviation, root = self._made(node.inputs[0], "Sub"), self._made(node.inputs[1], "Sqrt")
        if deviation is None or root is None:
            return None
        mean = self._mean_of_last(deviation.inputs[1])
        if mean is None or mean.inputs[0] != deviation.inputs[0]:
            return None
        epsilon = self._epsilon(root.inputs[0], deviation.outputs[0])
        if epsilon is None:
            return None
        norm = _Norm(deviation.inputs[0], node.outputs[0], epsilon, node.name)
        self._take_scale_and_bias(norm)
        return norm

    def _made(self, value: str, op: str) -> Node | None:
        node = self._producers.get(value)
        return node if node is not None and node.op == op else None

    def _mean_of_last(self, value: str) -> Node | None:
        node = self._made(value, "ReduceMean")
        if node is None or not node.attr("keepdims", 1):
            return None
        rank = len(self._graph.shape(node.inputs[0]))
        axes = node.attr("axes")
        return node if axes is not None and tuple(axes) in ((-1,), (rank - 1,)) else None

    def _epsilon(self, value: str, deviation: str) -> float | None:
        """epsilon when ``value`` is mean(deviation ** 2) + epsilon."""
        added = self._made(value, "Add")
        if added is None:
            return None
        for mean_value, constant in (added.inputs, tuple(reversed(added.inputs))):
            number, mean = self._number(constant), self._mean_of_last(mean_value)
            if number is None or mean is None:
                continue
            square = self._producers.get(mean.inputs[0])
            if square is not None and self._is_square(square, deviation):
                return number
        return None

    def _is_square(self, node: Node, value: str) -> bool:
        if node.op == "Mul":
            return node.inputs == (value, value)
        return node.op == "Pow" and node.inputs[0] == value and self._number(node.inputs[1]) == 2.0

    def _number(self, value: str) -> float | None:
        array = self._graph.constants.get(value)
        return float(array.reshape(-1)[0]) if array is not None and array.size == 1 else None

    def _take_scale_and_bias(self, norm: _Norm) -> None:
        """Extend the chain by a Mul and an Add with vectors along the last axis."""
        width = self._graph.shape(norm.data)[-1]
        for op, field in (("Mul", "scale"), ("Add", "bias")):
            vector = self._next_vector(norm.output, op, width)
            if vector is None:
                break
            node, value = vector
            array = self._graph.constants[value]
            name = value if array.ndim == 1 else f"{value}:vector"
            setattr(norm, field, name)
            norm.output = node.outputs[0]
            norm.made[name] = array.reshape(-1)
        if not norm.scale:
            norm.scale = f"{norm.output}:ones"
            norm.made[norm.scale] = np.ones(int(width), np.float32)  # type: ignore[arg-type]

    def _next_vector(self, value: str, op: str, width: graphs.Extent) -> tuple[Node, str] | None:
        readers = self._consumers.get(value, [])
        if len(readers) != 1 or readers[0].op != op or value in self._graph.outputs:
            return None
        node = readers[0]
        other = node.inputs[1] if node.inputs[0] == value else node.inputs[0]
        array = self._graph.constants.get(other)
        if array is None or array.size != width or array.shape[-1:] != (width,):
            return None
        return node, other
