"""Bring a graph to its simplest form: canonical nodes, no identities, no shape subgraphs.

Nodes keep sizes as attrs of dims (``graph/ops/canonical.py``), so that the nodes which computed
them have no reader left and are pruned. Where data need a size, ``DimsToTensor`` writes it. Rules
that remove nodes are in ``identities.py``, rules that split ops in ``primitives.py``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from castiron.compiler.passes import identities, primitives
from castiron.compiler.passes.infer_shapes import Ratios, infer_all
from castiron.compiler.passes.rewriter import Rewriter
from castiron.graph.graph import Graph, Node
from castiron.graph.ops import canonical, contents

_ROUNDS = 20
_STEPS = 20  # rules that may follow each other on one node
_NOT_SHARED = frozenset({
    "RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Multinomial",
    "Bernoulli", "If", "Loop", "Scan", "SequenceMap", "Interpreted",
})  # fmt: skip


def simplify(graph: Graph) -> Graph:
    """The simplest form that the rules find, with types and checks inferred anew.

    Values that are graph inputs or outputs keep their names; others may vanish.
    """
    current, ratios = infer_all(graph)
    for _ in range(_ROUNDS):
        following, ratios = infer_all(_round(current, ratios))
        if following.nodes == current.nodes:
            return following
        current = following
    return current


def _round(graph: Graph, ratios: Ratios) -> Graph:
    rewriter = Rewriter(graph, ratios)
    seen: dict[Any, Node] = {}
    for original in graph.nodes:
        node = rewriter.rename_inputs(original)
        if not _write_sizes(rewriter, node):
            _simplify_node(rewriter, node, seen)
    return rewriter.finish()


def _write_sizes(rewriter: Rewriter, node: Node) -> bool:
    """Put constants, or nodes that write dims, in place of a node whose outputs are sizes."""
    kinds = [rewriter.types[name] for name in node.outputs if name]
    if not kinds or any(kind.contents is None or kind.dtype is None for kind in kinds):
        return False
    if any(kind.shape is None or len(kind.shape) > 1 for kind in kinds):
        return False
    known = [name for name in node.outputs if name]
    for name, kind in zip(known, kinds, strict=True):
        assert kind.contents is not None and kind.dtype is not None and kind.shape is not None
        array = contents.array_of(kind.contents, kind.dtype, kind.shape)
        if array is not None and name not in rewriter.outputs:
            rewriter.constants[name] = _frozen(array)
            continue
        attrs = {"dims": kind.contents, "dtype": kind.dtype.name, "shape": kind.shape}
        rewriter.emit(Node("DimsToTensor", (), (name,), attrs, node.name))
    return True


def _frozen(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


def _simplify_node(rewriter: Rewriter, node: Node, seen: dict[Any, Node]) -> None:
    """Apply canonical form and rules to one node until none applies, then emit it."""
    for _ in range(_STEPS):
        better = canonical.canonicalise(rewriter.site(node))
        node = better or node
        answer = _first_answer(rewriter, node)
        if answer is None:
            break
        if isinstance(answer, str):
            rewriter.alias(node, answer)
            return
        node = answer
    twin = None if any(map(rewriter.decides_extents, node.outputs)) else _twin(node, seen)
    if twin is not None:
        rewriter.alias(node, rewriter.renamed.get(twin, twin))
    else:
        rewriter.emit(node)


def _first_answer(rewriter: Rewriter, node: Node) -> str | Node | None:
    for rule in (*primitives.RULES.get(node.op, ()), *identities.rules_for(node)):
        answer = rule(rewriter, node)
        if answer is not None:
            return answer
    return None


def _twin(node: Node, seen: dict[Any, Node]) -> str | None:
    """The output of an equal node met before, for nodes of one output."""
    if node.op in _NOT_SHARED or len(node.outputs) != 1:
        return None
    key = (node.op, node.inputs, tuple(sorted(node.attrs.items(), key=lambda item: item[0])))
    try:
        before = seen.setdefault(key, node)
    except TypeError:  # an attr that is an array
        return None
    return None if before is node else before.outputs[0]
