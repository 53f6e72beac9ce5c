"""Weights too small for a normal float become zero.

Pruned or decayed weights can be subnormal; processors multiply those a hundred times slower, and
next to any other weight they change no digit of a sum. Only weights of products are touched.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from castiron.graph import graph as graphs
from castiron.graph.graph import Graph

# Op to the input positions that are multiplied and summed.
_WEIGHTS = {
    "Conv": (1,), "ConvTranspose": (1,), "MatMul": (0, 1), "Gemm": (0, 1),
    "LSTM": (1, 2), "GRU": (1, 2), "RNN": (1, 2),
}  # fmt: skip


def flush_subnormals(graph: Graph) -> Graph:
    """The graph with subnormal weights of products as zeros."""
    constants, types = dict(graph.constants), dict(graph.types)
    renamed: dict[str, str] = {}
    nodes = []
    for node in graph.nodes:
        inputs = list(node.inputs)
        for index in _WEIGHTS.get(node.op, ()):
            value = inputs[index] if index < len(inputs) else ""
            if value in graph.constants and value not in renamed:
                renamed[value] = _flushed(value, constants)
                types[renamed[value]] = graphs.constant_type(constants[renamed[value]])
            if value in renamed:
                inputs[index] = renamed[value]
        nodes.append(dataclasses.replace(node, inputs=tuple(inputs)))
    return graphs.prune(graph.replace(nodes=tuple(nodes), constants=constants, types=types))


def _flushed(value: str, constants: dict[str, np.ndarray]) -> str:
    """The constant's own name where it has nothing to flush, else that of a flushed copy."""
    array = constants[value]
    if array.dtype not in (np.float32, np.float64) or not array.size:
        return value
    small = (np.abs(array) < np.finfo(array.dtype).tiny) & (array != 0)
    if not small.any():
        return value
    flushed = np.where(small, np.zeros((), array.dtype), array)
    flushed.flags.writeable = False
    name = f"{value}:normal"
    constants[name] = flushed
    return name
