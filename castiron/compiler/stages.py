"""Cut a graph into stages: runs of nodes with kernels, and runs of interpreted nodes.

As few stages as the data allows: from the nodes that are ready, all of the current kind are taken
before the kind changes. A model without interpreted nodes is one native stage.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from castiron.graph.graph import Graph, Node


@dataclasses.dataclass(frozen=True, slots=True)
class Stage:
    """Consecutive nodes of one kind, the values that enter and those that leave.

    ``reads`` never contains constants.
    """

    is_native: bool
    nodes: tuple[Node, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]


def cut(graph: Graph) -> tuple[Stage, ...]:
    """The stages in order; together they hold every node once."""
    groups: list[list[Node]] = []
    made = {"", *graph.inputs, *graph.constants}
    waiting = list(graph.nodes)
    is_native = not any(_is_interpreted(node) for node in _ready(waiting, made)) or any(
        not _is_interpreted(node) for node in _ready(waiting, made)
    )
    while waiting:
        taken, waiting = _take(waiting, made, is_native)
        if taken:
            groups.append(taken)
        is_native = not is_native
    if not groups or (graph.outputs and not any(map(_has_native, groups))):
        groups.append([])
    return tuple(_stage(graph, groups, position) for position in range(len(groups)))


def _has_native(group: Sequence[Node]) -> bool:
    return not group or not _is_interpreted(group[0])


def _is_interpreted(node: Node) -> bool:
    return node.op == "Interpreted"


def _ready(nodes: Sequence[Node], made: set[str]) -> list[Node]:
    return [node for node in nodes if all(value in made for value in node.inputs)]


def _take(waiting: list[Node], made: set[str], is_native: bool) -> tuple[list[Node], list[Node]]:
    """All nodes of this kind that can run now, one after another; and those left."""
    taken, later = [], []
    for node in waiting:
        fits = _is_interpreted(node) != is_native
        if fits and all(value in made for value in node.inputs):
            taken.append(node)
            made.update(node.outputs)
        else:
            later.append(node)
    return taken, later


def _stage(graph: Graph, groups: Sequence[Sequence[Node]], position: int) -> Stage:
    nodes = groups[position]
    is_native = _has_native(nodes)
    made = {out for node in nodes for out in node.outputs if out}
    read = dict.fromkeys(v for node in nodes for v in node.inputs if v and v not in made)
    needed = set(graph.outputs)
    needed.update(v for group in groups[position + 1 :] for node in group for v in node.inputs)
    writes = [out for node in nodes for out in node.outputs if out and out in needed]
    if position == len(groups) - 1:
        everywhere = {out for group in groups for node in group for out in node.outputs}
        loose = [out for out in graph.outputs if out not in everywhere]
        if is_native:
            read.update(dict.fromkeys(loose))
            writes += loose
    reads = tuple(value for value in read if value not in graph.constants)
    return Stage(is_native, tuple(nodes), reads, tuple(dict.fromkeys(writes)))
