"""Nodes without a kernel are set aside under their own name; strict refuses them all at once."""

from __future__ import annotations

import dataclasses

import pytest

from castiron import errors
from castiron.compiler.passes import mark_interpreted as marking
from castiron.compiler.passes.infer_shapes import infer_shapes
from castiron.graph.graph import Graph, Node
from tests.passes.build import Builder


def gap(node: Node, graph: Graph) -> str | None:
    """No kernel for Erf and Tan, nor for a Mul of three rows."""
    if node.op == "Mul" and graph.shape(node.outputs[0])[0] == 3:
        return "three rows are too many"
    return f"no kernel for op {node.op}" if node.op in ("Erf", "Tan") else None


def sourced(graph: Graph) -> Graph:
    """The graph as a loader gives it: each node with its source form."""
    nodes = tuple(dataclasses.replace(node, origin=b"source") for node in graph.nodes)
    return infer_shapes(graph.replace(nodes=nodes))


def chain(*ops: str) -> Graph:
    b = Builder()
    value = b.input("x", ("n", 4))
    for op in ops:
        value = b.add(op, value)
    return sourced(b.graph(value))


def marked(graph: Graph) -> Graph:
    return marking.mark_interpreted(graph, lambda g: g, gap, strict=False)


def test_a_graph_without_gaps_is_left_as_it_is() -> None:
    graph = chain("Exp", "Abs")
    assert marked(graph) is graph


def test_a_gap_becomes_an_interpreted_node_with_op_reason_and_source() -> None:
    exp, erf = marked(chain("Exp", "Erf")).nodes
    assert exp.op == "Exp"
    assert (erf.op, erf.attrs) == ("Interpreted", {"op": "Erf", "reason": "no kernel for op Erf"})
    assert erf.origin == b"source"


def test_a_gap_that_shows_only_in_canonical_form_is_traced_to_the_source() -> None:
    def split(graph: Graph) -> Graph:
        """Each Softsign in two nodes, the second of which has no kernel."""
        nodes: list[Node] = []
        for node in graph.nodes:
            if node.op == "Softsign":
                middle = f"{node.outputs[0]}:half"
                nodes.append(Node("Tan", node.inputs, (middle,)))
                nodes.append(Node("Abs", (middle,), node.outputs))
            else:
                nodes.append(node)
        return graph.replace(nodes=tuple(nodes), types={**graph.types, **_halves(graph)})

    found = marking.mark_interpreted(chain("Softsign", "Exp"), split, gap, strict=False)
    assert [node.op for node in found.nodes] == ["Interpreted", "Exp"]
    assert found.nodes[0].attrs["op"] == "Softsign"


def _halves(graph: Graph) -> dict[str, object]:
    return {f"{out}:half": graph.types[out] for node in graph.nodes for out in node.outputs}


def test_strict_names_every_gap_at_once() -> None:
    with pytest.raises(errors.BuildError) as caught:
        marking.mark_interpreted(chain("Erf", "Exp", "Tan"), lambda g: g, gap, strict=True)
    assert "2 nodes have no kernel" in str(caught.value)
    assert "no kernel for op Erf" in str(caught.value)
    assert "no kernel for op Tan" in str(caught.value)


def test_a_gap_without_a_source_form_is_refused_even_without_strict() -> None:
    graph = chain("Exp", "Erf")
    nodes = tuple(dataclasses.replace(node, origin=None) for node in graph.nodes)
    with pytest.raises(errors.BuildError, match="may not be interpreted"):
        marked(graph.replace(nodes=nodes))


def test_reasons_gather_the_nodes_that_share_them() -> None:
    assert marking.reasons(marked(chain("Erf", "Tan", "Erf"))) == {
        "Erf: no kernel for op Erf": ["n0", "n2"],
        "Tan: no kernel for op Tan": ["n1"],
    }
