"""Evaluate what is known while building: nodes over constants, and contents that are constant.

The evaluator is handed in (the reference evaluator of the loader, at the newest opset), so that
this file knows no ONNX. Random ops and control flow are never folded, and a result may not be
larger than what it is made of, or 4 MiB.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from castiron.graph import graph as graphs
from castiron.graph.graph import Graph, Node, TensorType
from castiron.graph.ops import contents, onnx_form, rule
from castiron.tensor import dim as dims
from castiron.tensor import dtype as dtypes

Evaluate = Callable[[Node, Sequence["np.ndarray | None"]], "list[np.ndarray]"]

GROWTH_BYTES = 4 << 20
NEVER = frozenset({
    "RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Multinomial",
    "Bernoulli", "Dropout", "If", "Loop", "Scan", "SequenceMap", "Fused", "Interpreted",
})  # fmt: skip


def fold_constants(graph: Graph, evaluate: Evaluate) -> Graph:
    """The graph with every node folded that can be; see ``not_folded`` for the others.

    ``evaluate(node, arrays)`` gives the outputs of one ONNX-form node; an absent optional input is
    None. It may raise: the node then stays.
    """
    return _fold(graph, evaluate)[0]


def not_folded(graph: Graph, evaluate: Evaluate) -> list[str]:
    """Why nodes that read only constants stay: one line for each."""
    return _fold(graph, evaluate)[1]


def _fold(graph: Graph, evaluate: Evaluate) -> tuple[Graph, list[str]]:
    constants = dict(graph.constants)
    types = dict(graph.types)
    kept: list[Node] = []
    reasons: list[str] = []
    weights = _weights(graph)
    for node in graph.nodes:
        arrays = _known_contents(node, types)
        if arrays is None and weights & set(node.outputs):
            arrays = _filled(node, types)
        if arrays is None:
            arrays = _evaluated(node, constants, evaluate, reasons)
        if arrays is None:
            kept.append(node)
            continue
        for name, array in zip(node.outputs, arrays, strict=False):
            if name:
                constants[name] = _frozen(array)
                types[name] = graphs.constant_type(array)
    folded = graph.replace(nodes=tuple(kept), constants=constants, types=types)
    return graphs.prune(folded), reasons


def _known_contents(node: Node, types: dict[str, TensorType]) -> list[np.ndarray] | None:
    if not any(node.outputs):
        return None
    arrays = []
    for name in node.outputs:
        kind = types.get(name)
        if kind is None or kind.contents is None or kind.dtype is None or kind.shape is None:
            return None
        array = contents.array_of(kind.contents, kind.dtype, kind.shape)
        if array is None:
            return None
        arrays.append(array)
    return arrays


def _weights(graph: Graph) -> set[str]:
    """Values that kernels pack while building, and therefore must be constants."""
    return {
        name
        for node in graph.nodes
        if node.op in ("Conv", "ConvTranspose", "Gemm", "MatMul", "BatchNormalization")
        for name in node.inputs[1:]
    }


def _filled(node: Node, types: dict[str, TensorType]) -> list[np.ndarray] | None:
    """A ConstantOfShape of any size, as one element seen many times."""
    kind = types.get(node.outputs[0])
    if node.op != "ConstantOfShape" or kind is None or kind.shape is None:
        return None
    if any(isinstance(extent, dims.Dim) for extent in kind.shape):
        return None
    value = node.attr("value")
    element = np.zeros((), np.float32) if value is None else np.asarray(value).reshape(())
    return [np.broadcast_to(element, tuple(map(rule.whole, kind.shape)))]


def _evaluated(
    node: Node, constants: dict[str, np.ndarray], evaluate: Evaluate, reasons: list[str]
) -> list[np.ndarray] | None:
    if not all(name in constants for name in node.inputs if name):
        return None
    label = f"{node.op} {node.name!r}"
    if node.op in NEVER:
        reasons.append(f"{label}: {node.op} is never folded")
        return None
    restored = onnx_form.to_onnx(node, _data_dtype(node, constants))
    if restored is None:
        reasons.append(f"{label}: its sizes are symbolic")
        return None
    onnx_node, extra = restored
    arrays = [constants.get(name, extra.get(name)) for name in onnx_node.inputs]
    try:
        results = evaluate(onnx_node, arrays)
    except Exception as problem:  # noqa: BLE001 - any failure of the evaluator keeps the node
        reasons.append(f"{label}: the evaluator failed: {problem}")
        return None
    return _unless_too_large(label, arrays, results, reasons)


def _data_dtype(node: Node, constants: dict[str, np.ndarray]) -> dtypes.DType | None:
    array = constants.get(node.inputs[0]) if node.inputs else None
    return graphs.constant_type(array).dtype if array is not None else None


def _unless_too_large(
    label: str,
    arrays: Sequence[np.ndarray | None],
    results: list[np.ndarray],
    reasons: list[str],
) -> list[np.ndarray] | None:
    if not all(isinstance(array, (np.ndarray, np.generic)) for array in results):
        reasons.append(f"{label}: the result is not a tensor")
        return None
    made = [np.asarray(array) for array in results]
    read = sum(array.nbytes for array in arrays if array is not None)
    if sum(array.nbytes for array in made) > max(read, GROWTH_BYTES):
        reasons.append(f"{label}: the result would be larger than what it is made of")
        return None
    return made


def _frozen(array: np.ndarray) -> np.ndarray:
    if array.flags.writeable:
        array = np.array(array, order="C")
        array.flags.writeable = False
    return array
