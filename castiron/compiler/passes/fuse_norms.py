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
    matcher = _Matcher(graph)
    found = [norm for node in graph.nodes if (norm := matcher.chain(node)) is not None]
    made = {name: array for norm in found for name, array in norm.made.items()}
    constants = {**graph.constants, **made}
    types = {**graph.types, **{name: graphs.constant_type(made[name]) for name in made}}
    replaced = {norm.output: norm.node() for norm in found}
    nodes = tuple(replaced.get(node.outputs[0], node) for node in graph.nodes)
    return graphs.prune(graph.replace(nodes=nodes, constants=constants, types=types))


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
        width = self._graph.shape(deviation.inputs[0])[-1]
        if not isinstance(width, int):
            return None
        norm = _Norm(deviation.inputs[0], node.outputs[0], epsilon, node.name)
        self._take_scale_and_bias(norm, width)
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

    def _take_scale_and_bias(self, norm: _Norm, width: int) -> None:
        """Extend the chain by a Mul and an Add with vectors along the last axis."""
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
            norm.made[norm.scale] = np.ones(width, np.float32)

    def _next_vector(self, value: str, op: str, width: int) -> tuple[Node, str] | None:
        readers = self._consumers.get(value, [])
        if len(readers) != 1 or readers[0].op != op or value in self._graph.outputs:
            return None
        node = readers[0]
        other = node.inputs[1] if node.inputs[0] == value else node.inputs[0]
        array = self._graph.constants.get(other)
        if array is None or array.size != width or array.shape[-1:] != (width,):
            return None
        if array.ndim > len(self._graph.shape(value)):
            return None
        return node, other
