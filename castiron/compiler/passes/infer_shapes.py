"""Fill in the dtype and shape of every value, with symbolic dims, in one walk in order.

Types of inputs are taken as given; what a file claims about other values is not read. Extents
that only the data decide become symbols named after the value and its axis. The relations that a
binding of the symbols must satisfy are kept as the graph's checks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from castiron.compiler.passes.equalities import Equalities
from castiron.graph import graph as graphs
from castiron.graph.graph import Check, Graph, Node, TensorType
from castiron.graph.ops import rule, table
from castiron.tensor import dim as dims


def infer_shapes(graph: Graph) -> Graph:
    """The graph with types for all values and the checks that they rest on.

    Raises BuildError when a node cannot have any type: it names node, input, rule, what was
    expected and what was found.
    """
    known = Equalities(graph.checks, symbols_of_inputs(graph))
    walk = _Walk(graph, known)
    nodes = tuple(known.node(node) for node in graph.nodes)
    for node in nodes:
        walk.visit(node)
    checks = tuple(dict.fromkeys((*graph.checks, *walk.checks)))
    found = graph.replace(nodes=nodes, types=walk.types, checks=_bound(checks, walk.types))
    return infer_shapes(found) if set(found.checks) - set(graph.checks) else found


def infer_node(graph: Graph, node: Node) -> tuple[TensorType, ...]:
    """The types of one node's outputs, given the types in the graph of what it reads."""
    types = table.infer_node(site_of(graph, node))
    return types or (rule.UNKNOWN,) * len(node.outputs)


def site_of(graph: Graph, node: Node) -> rule.Site:
    """The node as a rule sees it, with the types that the graph holds."""
    return rule.Site(node, graph.types, graph.constants, {}, [], symbol_maker(graph))


def symbol_maker(graph: Graph) -> Callable[[str, int], dims.Dim]:
    """The function that names extents which only the data decide."""
    return _Symbols(symbols_of_inputs(graph))


def symbols_of_inputs(graph: Graph) -> set[str]:
    """The names of all symbols in the shapes of the graph's inputs."""
    extents = [extent for name in graph.inputs for extent in graph.types[name].shape or ()]
    return set().union(*(dims.symbols_of(extent) for extent in extents)) if extents else set()


@dataclasses.dataclass(frozen=True, slots=True)
class _Symbols:
    taken: set[str]

    def __call__(self, value: str, axis: int) -> dims.Dim:
        name = f"{value}_{axis}"
        return dims.symbol(f"{name}'" if name in self.taken else name)


class _Walk:
    """The state of one inference: types and exact float sizes found so far, checks met."""

    def __init__(self, graph: Graph, known: Equalities) -> None:
        self.known = known
        self.constants = graph.constants
        self.given = graph.types
        self.symbols = symbol_maker(graph)
        self.checks: list[Check] = []
        self.ratios: dict[str, tuple[rule.Ratio, ...]] = {}
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
