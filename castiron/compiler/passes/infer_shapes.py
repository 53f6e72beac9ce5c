"""Fill in the dtype and shape of every value, with symbolic dims, in one walk in order.

Types of inputs are taken as given; what a file claims about other values is not read. Extents
that only the data decide become symbols named after the value and its axis. The relations that a
binding of the symbols must satisfy are kept as the graph's checks.
"""

from __future__ import annotations

import numpy as np

from castiron.compiler.passes.equalities import Equalities
from castiron.graph import graph as graphs
from castiron.graph.graph import Check, Graph, Node, TensorType
from castiron.graph.ops import rule, table
from castiron.tensor import dim as dims

Ratios = dict[str, tuple[rule.Ratio, ...]]


def infer_shapes(graph: Graph) -> Graph:
    """The graph with types for all values and the checks that they rest on.

    Raises BuildError when a node cannot have any type: it names node, input, rule, what was
    expected and what was found.
    """
    return infer_all(graph)[0]


def infer_all(graph: Graph) -> tuple[Graph, Ratios]:
    """As ``infer_shapes``, and the exact elements of small float tensors of sizes."""
    known = Equalities(graph.checks, symbols_of(graph).given)
    walk = _Walk(graph, known)
    nodes = tuple(known.node(node) for node in graph.nodes)
    for node in nodes:
        walk.visit(node)
    checks = tuple(dict.fromkeys((*graph.checks, *walk.checks)))
    found = graph.replace(nodes=nodes, types=walk.types, checks=_bound(checks, walk.types))
    if set(found.checks) - set(graph.checks):
        return infer_all(found)
    return found, walk.ratios


def infer_node(graph: Graph, node: Node) -> tuple[TensorType, ...]:
    """The types of one node's outputs, given the types in the graph of what it reads."""
    types = table.infer_node(site_of(graph, node))
    return types or (rule.UNKNOWN,) * len(node.outputs)


def site_of(graph: Graph, node: Node) -> rule.Site:
    """The node as a rule sees it, with the types that the graph holds."""
    return rule.Site(node, graph.types, graph.constants, {}, [], symbols_of(graph))


def symbols_of(graph: Graph) -> rule.Symbols:
    """The symbols in the shapes of the graph's inputs."""
    extents = [extent for name in graph.inputs for extent in graph.types[name].shape or ()]
    return rule.Symbols(frozenset(name for extent in extents for name in dims.symbols_of(extent)))


class _Walk:
    """The state of one inference: types and exact float sizes found so far, checks met."""

    def __init__(self, graph: Graph, known: Equalities) -> None:
        self.known = known
        self.constants = graph.constants
        self.given = graph.types
        self.symbols = symbols_of(graph)
        self.checks: list[Check] = []
        self.ratios: Ratios = {}
        self.types: dict[str, TensorType] = {
            name: known.type(graph.types[name]) for name in graph.inputs
        }
        for name, array in graph.constants.items():
            self.types[name] = constant_type(array, graph.types.get(name))

    def visit(self, node: Node) -> None:
        at = rule.Site(node, self.types, self.constants, self.ratios, self.checks, self.symbols)
        found = table.infer_node(at)
        for index, name in enumerate(node.outputs):
            if not name:
                continue
            kind = rule.UNKNOWN
            if found is None:
                kind = self.given.get(name, rule.UNKNOWN)
            elif index < len(found):
                kind = found[index]
            for extent in kind.shape or ():
                at.at_least(extent, 0, "no extent may be negative")
            self.types[name] = self.known.type(kind)


def constant_type(array: np.ndarray, given: TensorType | None) -> TensorType:
    """The type of a constant; a dtype that numpy lacks (bfloat16) is taken as given."""
    if given is not None and given.dtype is not None and array.dtype.kind not in "biufOSU":
        return TensorType(given.dtype, tuple(array.shape))
    return graphs.constant_type(array)


def _bound(checks: tuple[Check, ...], types: dict[str, TensorType]) -> tuple[Check, ...]:
    """Checks whose symbols still appear as an extent of some value."""
    bound = set()
    for kind in types.values():
        for extent in kind.shape or ():
            bound |= dims.symbols_of(extent)
    return tuple(
        check
        for check in checks
        if dims.symbols_of(check.left) | dims.symbols_of(check.right) <= bound
    )
