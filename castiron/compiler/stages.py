"""Cut a graph into stages: runs of nodes with kernels, and runs of interpreted nodes.

As few stages as the data allows: from the nodes that are ready, all of the current kind are taken
before the kind changes. A model without interpreted nodes is one native stage.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from castiron.graph.graph import Graph, Node
from castiron.tensor import dim

Waiting = tuple[Node, set[str]]


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
    waiting = _needs(graph)
    ready = [_is_interpreted(node) for node, needs in waiting if made.issuperset(needs)]
    is_native = not all(ready) or not ready
    stuck = 0
    while waiting:
        taken, waiting = _take(waiting, made, is_native)
        if taken:
            groups.append(taken)
        stuck = 0 if taken else stuck + 1
        assert stuck < 2, f"{waiting[0][0].name} needs {waiting[0][1] - made}, never made"
        is_native = not is_native
    if not groups or (graph.outputs and not any(map(_has_native, groups))):
        groups.append([])
    return tuple(_stage(graph, groups, position) for position in range(len(groups)))


def _has_native(group: Sequence[Node]) -> bool:
    return not group or not _is_interpreted(group[0])


def _is_interpreted(node: Node) -> bool:
    return node.op == "Interpreted"


def _needs(graph: Graph) -> list[Waiting]:
    """Each node with the values that must be there before it: what it reads, and the results of
    interpreted nodes whose extents its own shapes depend on, even where it does not read them."""
    known = _symbols(graph.types[name].shape for name in graph.inputs)
    owners: dict[str, str] = {}
    for node in filter(_is_interpreted, graph.nodes):
        for out in filter(None, node.outputs):
            for name in _symbols([graph.types[out].shape]) - known:
                owners.setdefault(name, out)
    found = []
    for node in graph.nodes:
        needs = set(node.inputs)
        if not _is_interpreted(node):
            types = [graph.types[out] for out in node.outputs if out]
            parts = [part for kind in types for part in (kind.shape, kind.contents)]
            parts += [value for value in node.attrs.values() if isinstance(value, tuple)]
            needs |= {owners[name] for name in _symbols(parts) if name in owners}
        found.append((node, needs))
    return found


def _symbols(parts: Iterable[tuple[Any, ...] | None]) -> set[str]:
    extents = [extent for part in parts for extent in part or ()]
    return set().union(*(dim.symbols_of(extent) for extent in extents))


def _take(
    waiting: list[Waiting], made: set[str], is_native: bool
) -> tuple[list[Node], list[Waiting]]:
    """All nodes of this kind that can run now, one after another; and those left."""
    taken, later = [], []
    for node, needs in waiting:
        if _is_interpreted(node) != is_native and made.issuperset(needs):
            taken.append(node)
            made.update(node.outputs)
        else:
            later.append((node, needs))
    return taken, later


def _stage(graph: Graph, groups: Sequence[Sequence[Node]], position: int) -> Stage:
    nodes = groups[position]
    is_native = _has_native(nodes)
    made = {out for node in nodes for out in node.outputs if out}
    read = dict.fromkeys(v for node in nodes for v in node.inputs if v and v not in made)
    needed = set(graph.outputs)
    needed.update(v for group in groups[position + 1 :] for node in group for v in node.inputs)
    writes = [out for node in nodes for out in node.outputs if out and out in needed]
    if is_native and not any(map(_has_native, groups[position + 1 :])):
        # The last native stage copies outputs that no node makes: inputs and constants.
        everywhere = {out for group in groups for node in group for out in node.outputs}
        loose = [out for out in graph.outputs if out not in everywhere]
        read.update(dict.fromkeys(loose))
        writes += loose
    reads = tuple(value for value in read if value not in graph.constants)
    return Stage(is_native, tuple(nodes), reads, tuple(dict.fromkeys(writes)))
