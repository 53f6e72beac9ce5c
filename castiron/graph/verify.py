"""The rules of a well-formed graph, checked between any two passes.

A failure is castiron's own fault; the message names the pass, the node and the rule.
"""

from __future__ import annotations

from castiron import errors
from castiron.graph.graph import Graph, Node


def verify(graph: Graph, after: str) -> None:
    """Raise VerifyError unless every rule holds; ``after`` names the pass that just ran."""
    problems = [*_order_problems(graph), *_type_problems(graph), *_output_problems(graph)]
    if problems:
        listing = "\n".join(f"  - {problem}" for problem in problems[:20])
        raise errors.VerifyError(f"pass {after} left an ill-formed graph:\n{listing}")


def _order_problems(graph: Graph) -> list[str]:
    problems = []
    made = set(graph.inputs) | set(graph.constants)
    for node in graph.nodes:
        problems += [
            f"{_label(node)} reads {value!r} before it is made"
            for value in node.inputs
            if value and value not in made
        ]
        for out in node.outputs:
            if out and out in made:
                problems.append(f"{_label(node)} makes {out!r} a second time")
            made.add(out)
    return problems


def _type_problems(graph: Graph) -> list[str]:
    problems = []
    values = [*graph.inputs, *graph.constants]
    values += [out for node in graph.nodes for out in node.outputs if out]
    problems += [f"value {value!r} has no type" for value in values if value not in graph.types]
    for name, array in graph.constants.items():
        kind = graph.types.get(name)
        if kind and kind.shape is not None and tuple(kind.shape) != tuple(array.shape):
            problems.append(f"constant {name!r}: type says {kind.shape}, data is {array.shape}")
    return problems


def _output_problems(graph: Graph) -> list[str]:
    made = set(graph.inputs) | set(graph.constants)
    made.update(out for node in graph.nodes for out in node.outputs)
    return [f"output {value!r} is never made" for value in graph.outputs if value not in made]


def _label(node: Node) -> str:
    return f"node {node.name!r} ({node.op})"
