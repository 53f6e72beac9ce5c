"""Mark the nodes that have no kernel: each becomes an ``Interpreted`` node.

An interpreted node keeps its inputs and outputs and carries its source form, so that the
reference evaluator can run it between native steps. The reasons are kept for the build's report;
``strict`` refuses such a model instead.
"""

from __future__ import annotations

from collections.abc import Callable

from castiron import errors
from castiron.graph.graph import Graph, Node

GapOf = Callable[[Node, Graph], "str | None"]


def mark_interpreted(graph: Graph, gap: GapOf, strict: bool) -> Graph:
    """The graph with every node for which ``gap`` gives a reason wrapped as Interpreted.

    Raises BuildError, listing every such node, when ``strict`` is set, and always for a node
    that has no kernel and no source form either.
    """
    nodes, refused = [], []
    for node in graph.nodes:
        reason = gap(node, graph)
        if reason is None:
            nodes.append(node)
            continue
        if strict or node.origin is None:
            refused.append(f"{node.op} {node.name!r}: {reason}")
        nodes.append(_interpreted(node, reason))
    if refused:
        listing = "\n".join(f"  - {line}" for line in refused)
        raise errors.BuildError(
            f"{graph.name}: {len(refused)} nodes have no kernel and may not be interpreted; "
            f"build without strict to interpret them\n{listing}"
        )
    return graph.replace(nodes=tuple(nodes))


def _interpreted(node: Node, reason: str) -> Node:
    attrs = {"op": node.op, "reason": reason}
    return Node("Interpreted", node.inputs, node.outputs, attrs, node.name, node.origin)


def reasons(graph: Graph) -> dict[str, list[str]]:
    """Why each interpreted op has no kernel: reason to the names of its nodes."""
    found: dict[str, list[str]] = {}
    for node in graph.nodes:
        if node.op == "Interpreted":
            key = f"{node.attr('op')}: {node.attr('reason')}"
            found.setdefault(key, []).append(node.name)
    return found
