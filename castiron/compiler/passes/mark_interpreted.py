"""Mark the nodes that have no kernel: each becomes an ``Interpreted`` node.

Whether there is a kernel shows only once a node is in its canonical form, but the reference
evaluator needs the form of the source. So the graph is simplified on trial, the gaps found there
are traced back to nodes of the source, those are marked, and that is repeated until no gap is
left. An interpreted node keeps its inputs and outputs and carries its source form; ``strict``
refuses such a model instead.
"""

from __future__ import annotations

from collections.abc import Callable

from castiron import errors
from castiron.graph.graph import Graph, Node

GapOf = Callable[[Node, Graph], "str | None"]


def mark_interpreted(
    graph: Graph, canonical: Callable[[Graph], Graph], gap: GapOf, strict: bool
) -> Graph:
    """The graph with every node wrapped as Interpreted that would end in a gap.

    ``canonical`` simplifies a graph as the next pass will; ``gap`` says why a canonical node has
    no kernel, or None. Raises BuildError, listing every such node, when ``strict`` is set, and
    always for a node that has no source form to interpret.
    """
    while True:
        trial = canonical(graph)
        reasons = _reasons(graph, trial, gap)
        if not reasons:
            return graph
        nodes = [_marked(node, reasons, strict) for node in graph.nodes]
        refused = [node for node in nodes if node.op == "Interpreted" and node.origin is None]
        if strict or refused:
            raise _refusal(graph.name, reasons)
        graph = graph.replace(nodes=tuple(nodes))


def _reasons(graph: Graph, trial: Graph, gap: GapOf) -> dict[str, str]:
    """First output of each source node that ends in a gap, and the reason."""
    sources = {out: node for node in graph.nodes for out in node.outputs if out}
    readers = trial.consumers()
    found: dict[str, str] = {}
    for node in trial.nodes:
        reason = None if node.op == "Interpreted" else gap(node, trial)
        if reason is not None:
            source = _source_of(node, sources, readers)
            if source is None or source.op == "Interpreted":
                raise errors.BuildError(f"{node.op} {node.name!r} was made by a pass: {reason}")
            found[next(filter(None, source.outputs))] = reason
    return found


def _source_of(node: Node, sources: dict[str, Node], readers: dict[str, list[Node]]) -> Node | None:
    """The source node that this canonical node came from: by its output, or a reader's."""
    waiting, seen = [node], set()
    while waiting:
        current = waiting.pop(0)
        for out in current.outputs:
            if out in sources:
                return sources[out]
        for out in current.outputs:
            waiting += [n for n in readers.get(out, []) if id(n) not in seen]
        seen.add(id(current))
    return None


def _marked(node: Node, reasons: dict[str, str], strict: bool) -> Node:
    reason = reasons.get(next(filter(None, node.outputs), ""))
    if reason is None or strict:
        return node
    attrs = {"op": node.op, "reason": reason}
    return Node("Interpreted", node.inputs, node.outputs, attrs, node.name, node.origin)


def _refusal(name: str, reasons: dict[str, str]) -> errors.BuildError:
    listing = "\n".join(f"  - the node that makes {out!r}: {why}" for out, why in reasons.items())
    counted = "1 node has" if len(reasons) == 1 else f"{len(reasons)} nodes have"
    return errors.BuildError(
        f"{name}: {counted} no kernel and may not be interpreted; "
        f"build without strict to interpret what has a source form\n{listing}"
    )


def reasons(graph: Graph) -> dict[str, list[str]]:
    """Why each interpreted op has no kernel: reason to the names of its nodes."""
    found: dict[str, list[str]] = {}
    for node in graph.nodes:
        if node.op == "Interpreted":
            key = f"{node.attr('op')}: {node.attr('reason')}"
            found.setdefault(key, []).append(node.name)
    return found
