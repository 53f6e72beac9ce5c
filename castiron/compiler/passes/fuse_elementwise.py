"""Elementwise nodes become expressions: in the epilogue of a product, or in one loop of their own.

Walking backwards, an elementwise node gathers the elementwise producers of its shape that nobody
else reads; that group is one expression. If the group starts at a convolution or matrix product,
as much of it as fits moves into that node's epilogue (attrs ``epilogue`` and ``num_own``); the
rest becomes a ``Fused`` node. Every elementwise node is part of one of the two afterwards.
"""

from __future__ import annotations

import dataclasses

from castiron.graph import expr as expressions
from castiron.graph import graph as graphs
from castiron.graph.expr import Expr
from castiron.graph.graph import Graph, Node
from castiron.graph.ops import elementwise

EPILOGUE_OPS = ("Conv", "ConvTranspose", "MatMul", "Gemm")
_MOST_TREE_NODES = 160
_MOST_LOOP_INPUTS = 24
_MOST_EPILOGUE_INPUTS = 12


def fuse_elementwise(graph: Graph) -> Graph:
    """The graph with every elementwise node inside an epilogue or a Fused node."""
    groups = _Groups(graph)
    fused = [node for group in groups.all() for node in _rewrite(groups, group)]
    replaced = {out for node in fused for out in node.outputs}
    kept = [
        node for node in graph.nodes if not groups.holds(node) and not set(node.outputs) <= replaced
    ]
    available = [*graph.inputs, *graph.constants]
    nodes = graphs.topological([*kept, *fused], available)
    return graphs.prune(graph.replace(nodes=nodes))


@dataclasses.dataclass(slots=True)
class _Group:
    """Elementwise nodes that end in ``root``; ``members`` in reverse topological order."""

    root: Node
    members: list[Node]


class _Groups:
    """All groups of a graph, and the graph's lookups."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.producers = graph.producers()
        self.consumers = graph.consumers()
        self.position = {id(node): at for at, node in enumerate(graph.nodes)}
        self.trees = {
            id(node): tree
            for node in graph.nodes
            if len(node.outputs) == 1
            and (tree := elementwise.expression_of(node, graph)) is not None
        }
        self._groups: list[_Group] = []
        self._group_of: dict[int, _Group] = {}
        for node in reversed(graph.nodes):
            if id(node) in self.trees and not self.holds(node):
                self._gather(node)

    def all(self) -> list[_Group]:
        return self._groups

    def holds(self, node: Node) -> bool:
        return id(node) in self._group_of

    def is_output(self, node: Node) -> bool:
        return any(out in self.graph.outputs for out in node.outputs)

    def _gather(self, root: Node) -> None:
        """Grow a group from its last node by producers that only the group reads."""
        group = _Group(root, [root])
        self._group_of[id(root)] = group
        self._groups.append(group)
        for member in group.members:  # grows on the way
            for value in member.inputs:
                producer = self.producers.get(value)
                if producer is not None and self._fits(group, producer):
                    self._take(group, producer)
        group.members.sort(key=lambda node: -self.position[id(node)])

    def _take(self, group: _Group, node: Node) -> None:
        """Add the node, unless the expression becomes too large for one kernel."""
        group.members.append(node)
        if _tree_size(self.tree(group, group.root, None)) > _MOST_TREE_NODES:
            group.members.pop()
        else:
            self._group_of[id(node)] = group

    def _fits(self, group: _Group, node: Node) -> bool:
        if id(node) not in self.trees or self.holds(node) or self.is_output(node):
            return False
        if self.graph.shape(node.outputs[0]) != self.graph.shape(group.root.outputs[0]):
            return False
        readers = self.consumers.get(node.outputs[0], [])
        members = {id(member) for member in group.members}
        if any(id(reader) not in members for reader in readers):
            return False
        inside = (*group.members, node)
        made = {member.outputs[0] for member in inside}
        external = {value for member in inside for value in member.inputs if value} - made
        return len(external) <= _MOST_LOOP_INPUTS

    def tree(self, group: _Group, root: Node, external: list[str] | None) -> Expr:
        """The expression of ``root`` over the values that enter the group.

        ``external`` collects those values in order; None leaves input numbers meaningless.
        """
        inside = {member.outputs[0]: member for member in group.members}
        values: list[str] = external if external is not None else []
        memo: dict[str, Expr] = {}

        def build(value: str, dtype: str) -> Expr:
            if value not in memo:
                member = inside.get(value)
                if member is None:
                    if value not in values:
                        values.append(value)
                    memo[value] = expressions.input_(values.index(value), dtype)
                else:
                    memo[value] = expand(member)
            return memo[value]

        def expand(node: Node) -> Expr:
            leaves = [
                build(value, self.graph.dtype(value).name) if value else expressions.const(0, "f")
                for value in _read_values(node, self.trees[id(node)])
            ]
            return expressions.substitute(self.trees[id(node)], leaves)

        return expand(root)


def _read_values(node: Node, tree: Expr) -> list[str]:
    """The node's inputs, with those that the tree holds as constants left empty."""
    used = _input_indices(tree)
    return [value if index in used else "" for index, value in enumerate(node.inputs)]


def _input_indices(tree: Expr) -> set[int]:
    if tree.op == "input":
        return {tree.index}
    return set().union(*(_input_indices(arg) for arg in tree.args)) if tree.args else set()


def _tree_size(tree: Expr) -> int:
    return 1 + sum(_tree_size(arg) for arg in tree.args)


def _rewrite(groups: _Groups, group: _Group) -> list[Node]:
    """The nodes that stand for one group: an anchor with an epilogue, a Fused node, or both."""
    for anchor in _anchors(groups, group):
        for end in group.members:
            taken = _closed_part(groups, group, (anchor, end))
            node = taken and _with_epilogue(groups, _Group(end, taken), anchor)
            if not node:
                continue
            assert taken is not None
            rest = [member for member in group.members if member not in taken]
            if not rest:
                return [node]
            return [node, _fused(groups, _Group(group.root, rest))]
    return [_fused(groups, group)]


def _anchors(groups: _Groups, group: _Group) -> list[Node]:
    """Products whose result only this group reads, the latest first."""
    inside = {id(member) for member in group.members}
    found = {}
    for member in group.members:
        for value in member.inputs:
            node = groups.producers.get(value)
            if node is None or node.op not in EPILOGUE_OPS or node.attr("epilogue") is not None:
                continue
            readers = groups.consumers[value]
            if not groups.is_output(node) and all(id(reader) in inside for reader in readers):
                found[id(node)] = node
    return sorted(found.values(), key=lambda node: -groups.position[id(node)])


def _closed_part(groups: _Groups, group: _Group, ends: tuple[Node, Node]) -> list[Node] | None:
    """The members from the anchor's result to ``end``, or None if others read between them."""
    anchor, end = ends
    inside = {member.outputs[0]: member for member in group.members}
    taken, waiting = [], [end]
    while waiting:
        node = waiting.pop()
        if node in taken:
            continue
        taken.append(node)
        waiting += [inside[value] for value in node.inputs if value in inside]
    part = {id(node) for node in taken}
    for node in taken:
        if node is not end and any(
            id(reader) not in part for reader in groups.consumers[node.outputs[0]]
        ):
            return None
    readers = groups.consumers[anchor.outputs[0]]
    if any(id(reader) not in part for reader in readers):
        return None
    return sorted(taken, key=lambda node: -groups.position[id(node)])


def _with_epilogue(groups: _Groups, group: _Group, anchor: Node) -> Node | None:
    """The anchor with the group as its epilogue, or None where it does not fit."""
    graph = groups.graph
    result, end = anchor.outputs[0], group.root.outputs[0]
    shape = graph.shape(end)
    values = [result]
    tree = groups.tree(group, group.root, values)
    if graph.shape(result) != shape or len(values) > _MOST_EPILOGUE_INPUTS:
        return None
    if any(graph.dtype(value).name != "float32" for value in (*values, end)):
        return None
    if any(graph.dtype(m.outputs[0]).name not in ("float32", "bool") for m in group.members):
        return None
    if not all(_fits_epilogue(graph, value, shape) for value in values[1:]):
        return None
    attrs = {**anchor.attrs, "epilogue": tree, "num_own": len(anchor.inputs)}
    name = " + ".join(filter(None, (anchor.name, group.root.name)))
    return Node(anchor.op, (*anchor.inputs, *values[1:]), (end,), attrs, name)


def _fits_epilogue(graph: Graph, value: str, output: graphs.Shape) -> bool:
    """Whether the value is a full tensor, a vector along the last axis, or one element."""
    shape = graph.shape(value)
    if all(extent == 1 for extent in shape) or tuple(shape) == tuple(output):
        return True
    return all(extent == 1 for extent in shape[:-1]) and shape[-1] == output[-1]


def _fused(groups: _Groups, group: _Group) -> Node:
    values: list[str] = []
    tree = groups.tree(group, group.root, values)
    name = " + ".join(member.name for member in reversed(group.members) if member.name)
    return Node("Fused", tuple(values), group.root.outputs, {"expr": tree}, name[:200])
