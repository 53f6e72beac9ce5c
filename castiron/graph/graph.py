"""Graph, Node and the types of values: the immutable model that passes rewrite.

A graph holds nodes in topological order. A value is a name: a graph input, a constant, or a
node's output. Nothing mutates a graph; passes build a new one with ``replace``. The rules of a
well-formed graph are in ``verify.py``, what each op means in ``ops/``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from castiron.tensor import dtype as dtypes
from castiron.tensor.dim import Dim

Extent = int | Dim
Shape = tuple[Extent, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class TensorType:
    """dtype and shape of a value; ``shape`` is None when even the rank is unknown.

    ``contents`` holds, for a small integer tensor computed from dims, each element in row-major
    order as a dim: the symbolic value of shape arithmetic.
    """

    dtype: dtypes.DType | None
    shape: Shape | None
    contents: tuple[Extent, ...] | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Node:
    """One op application. ``""`` among inputs or outputs means an absent optional.

    ``op`` is an ONNX op name in its newest form that ``ops/`` knows (older forms are rewritten by
    the loader), or one of castiron's own: ``Fused`` (an expression over elementwise inputs),
    ``Interpreted`` (runs on the reference evaluator). ``origin`` is the serialised ONNX node as it
    stood in the source, kept so that an op without a kernel can be interpreted; whoever changes
    ``op`` or ``attrs`` drops it.
    """

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    name: str = ""
    origin: bytes | None = None

    def attr(self, key: str, default: Any = None) -> Any:
        """The attribute, or ``default`` when it is absent."""
        return self.attrs.get(key, default)


@dataclasses.dataclass(frozen=True, slots=True)
class Check:
    """A relation between dims that a binding must satisfy: ``left == right``.

    ``reason`` completes the sentence "the inputs do not fit: ..." for the user.
    """

    left: Extent
    right: Extent
    reason: str


@dataclasses.dataclass(frozen=True, slots=True)
class Graph:
    """A whole model. ``types`` covers every value; constants are read-only arrays."""

    name: str
    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    types: Mapping[str, TensorType]
    constants: Mapping[str, np.ndarray]
    checks: tuple[Check, ...] = ()
    opsets: Mapping[str, int] = dataclasses.field(default_factory=dict)
    metadata: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def shape(self, value: str) -> Shape:
        """The value's shape; only for values of known rank."""
        shape = self.types[value].shape
        assert shape is not None, f"{value} has unknown rank"
        return shape

    def dtype(self, value: str) -> dtypes.DType:
        """The value's dtype; only for values of known dtype."""
        dtype = self.types[value].dtype
        assert dtype is not None, f"{value} has unknown dtype"
        return dtype

    def producers(self) -> dict[str, Node]:
        """Value name to the node that makes it."""
        return {out: node for node in self.nodes for out in node.outputs if out}

    def consumers(self) -> dict[str, list[Node]]:
        """Value name to the nodes that read it, in order; graph outputs do not count."""
        readers: dict[str, list[Node]] = {}
        for node in self.nodes:
            for value in dict.fromkeys(node.inputs):
                if value:
                    readers.setdefault(value, []).append(node)
        return readers

    def replace(self, **changes: Any) -> Graph:
        """The graph with some fields replaced."""
        return dataclasses.replace(self, **changes)


def constant_type(array: np.ndarray) -> TensorType:
    """The type of a constant, with contents when it is a small integer tensor."""
    is_known = array.dtype.kind in "biuf" or array.dtype.name == "bfloat16"
    dtype = dtypes.named(array.dtype.name) if is_known else dtypes.STRING
    contents = None
    if array.dtype.kind in "iub" and array.size <= 64 and array.ndim <= 1:
        contents = tuple(int(item) for item in array.reshape(-1))
    return TensorType(dtype, tuple(array.shape), contents)


def prune(graph: Graph) -> Graph:
    """The graph without nodes, constants and types that no output depends on."""
    live = set(graph.outputs)
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        if any(out in live for out in node.outputs):
            kept.append(node)
            live.update(value for value in node.inputs if value)
    kept.reverse()
    produced = {out for node in kept for out in node.outputs if out}
    used = live | set(graph.inputs) | produced
    return graph.replace(
        nodes=tuple(kept),
        constants={key: array for key, array in graph.constants.items() if key in live},
        types={key: kind for key, kind in graph.types.items() if key in used},
    )


def topological(nodes: Iterable[Node], available: Iterable[str]) -> tuple[Node, ...]:
    """The nodes in an order in which every input exists before it is read (stable)."""
    ready = set(available) | {""}
    waiting = list(nodes)
    ordered: list[Node] = []
    while waiting:
        later = []
        for node in waiting:
            if all(value in ready for value in node.inputs):
                ordered.append(node)
                ready.update(node.outputs)
            else:
                later.append(node)
        if len(later) == len(waiting):
            missing = [value for value in later[0].inputs if value not in ready]
            raise ValueError(f"node {later[0].name or later[0].op} reads {missing}, never made")
        waiting = later
    return tuple(ordered)
