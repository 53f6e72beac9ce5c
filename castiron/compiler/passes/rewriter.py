"""One walk over a graph that builds the next: what rules of ``simplify`` see and how they write.

A rule is ``rule(rewriter, node)``; it answers None (keep the node), a value name (the node's first
output is that value), or a node that takes its place. It may first ``add`` nodes and constants.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from castiron.compiler.passes import infer_shapes as inference
from castiron.graph import graph as graphs
from castiron.graph.graph import Graph, Node, Shape, TensorType
from castiron.graph.ops import rule, table
from castiron.tensor import dim as dims

Answer = str | Node | None
Rule = Callable[["Rewriter", Node], Answer]


class Rewriter:
    """The graph under construction; ``types`` and ``constants`` grow as nodes are added."""

    def __init__(self, graph: Graph, ratios: inference.Ratios) -> None:
        self.graph = graph
        self.ratios = dict(ratios)
        self.types = dict(graph.types)
        self.constants = dict(graph.constants)
        self.nodes: list[Node] = []
        self.makers: dict[str, Node] = {}
        self.uses = Counter(value for node in graph.nodes for value in node.inputs if value)
        self.uses.update(graph.outputs)
        self.renamed: dict[str, str] = {}
        self.outputs = frozenset(graph.outputs)
        self._fixed = frozenset(graph.inputs) | self.outputs
        self._symbols = inference.symbols_of(graph)

    def shape(self, value: str) -> Shape | None:
        """The value's shape, None when unknown."""
        kind = self.types.get(value)
        return kind.shape if kind else None

    def is_float(self, value: str) -> bool:
        """Whether the value is known to hold floats."""
        kind = self.types.get(value)
        return kind is not None and kind.dtype is not None and kind.dtype.is_float

    def maker(self, value: str, op: str) -> Node | None:
        """The node that makes the value, when it is an ``op`` and nobody else reads it."""
        node = self.makers.get(value)
        return node if node is not None and node.op == op and self.uses[value] == 1 else None

    def site(self, node: Node) -> rule.Site:
        """The node as a type rule sees it."""
        return rule.Site(node, self.types, self.constants, self.ratios, [], self._symbols)

    def add(self, op: str, inputs: tuple[str, ...], attrs: dict[str, Any], near: Node) -> str:
        """A new node of one output beside ``near``; the name of its output."""
        out = self.fresh_name(f"{near.outputs[0]}:{op.lower()}")
        self.emit(Node(op, inputs, (out,), attrs, f"{near.name or near.outputs[0]}:{op.lower()}"))
        self.uses.update((*(value for value in inputs if value), out))
        return out

    def constant(self, array: np.ndarray, near: Node) -> str:
        """A new constant; its name."""
        name = self.fresh_name(f"{near.outputs[0]}:constant")
        frozen = np.array(array)
        frozen.flags.writeable = False
        self.constants[name] = frozen
        self.types[name] = graphs.constant_type(frozen)
        self.uses[name] += 1
        return name

    def fresh_name(self, wanted: str) -> str:
        """``wanted``, or with a number where it is taken."""
        name, count = wanted, 0
        while name in self.types or name in self.makers:
            count += 1
            name = f"{wanted}{count}"
        return name

    def emit(self, node: Node) -> None:
        """Append a node and note the types of outputs that have none yet."""
        self.nodes.append(node)
        found = table.infer_node(self.site(node))
        for index, name in enumerate(node.outputs):
            self.makers[name] = node
            if name and name not in self.types:
                known = found is not None and index < len(found)
                self.types[name] = found[index] if known and found else rule.UNKNOWN

    def rename_inputs(self, node: Node) -> Node:
        """The node reading what its inputs have become."""
        if not any(value in self.renamed for value in node.inputs):
            return node
        inputs = tuple(self.renamed.get(value, value) for value in node.inputs)
        return dataclasses.replace(node, inputs=inputs)

    def alias(self, node: Node, value: str) -> None:
        """Let the node's first output be ``value``; an output of the graph keeps its name."""
        out = node.outputs[0]
        if out not in self.outputs:
            self.renamed[out] = value
            self.uses[value] += self.uses[out] - 1
        elif value in self._fixed or value not in self.makers or self.decides_extents(value):
            attrs: dict[str, Any] = {}
            self.emit(Node("Identity", (value,), (out,), attrs, node.name, None))
        else:
            self._give_name(value, out)

    def decides_extents(self, value: str) -> bool:
        """Whether symbols are named after the value, or may be, as its rank is unknown."""
        shape = self.shape(value)
        prefix = f"{value}_"
        names = set().union(*(dims.symbols_of(extent) for extent in shape or ())) if shape else ()
        return shape is None or any(name.startswith(prefix) for name in names)

    def _give_name(self, value: str, out: str) -> None:
        """Rename a value already made to the name of a graph output."""
        old = self.makers.pop(value)
        outputs = tuple(out if name == value else name for name in old.outputs)
        new = dataclasses.replace(old, outputs=outputs)
        self.nodes[self.nodes.index(old)] = new
        for name in outputs:
            self.makers[name] = new
        self.renamed[value] = out
        for name, target in list(self.renamed.items()):
            if target == value:
                self.renamed[name] = out
        self.types[out] = self.types[value]
        self.uses[out] += self.uses[value]
        self.nodes = [self.rename_inputs(item) for item in self.nodes]
        self.makers = {name: item for item in self.nodes for name in item.outputs if name}

    def finish(self) -> Graph:
        """The graph built, without what nothing reads."""
        built = self.graph.replace(
            nodes=tuple(self.nodes), constants=self.constants, types=self.types
        )
        return graphs.prune(built)


def uniform(rewriter: Rewriter, value: str) -> float | None:
    """The number that every element of a constant is, or None."""
    array = rewriter.constants.get(value)
    if array is None or array.size == 0 or array.dtype.kind not in "biuf":
        return None
    first = array.reshape(-1)[0]
    return float(first) if array.size == 1 or bool((array == first).all()) else None


def type_of(rewriter: Rewriter, value: str) -> TensorType:
    """The value's type; unknown for an absent one."""
    return rewriter.types.get(value, rule.UNKNOWN)
