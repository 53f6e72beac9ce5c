"""Constant scales and shifts move into the weights of the product before them.

BatchNormalization, and Mul, Div, Add or Sub with a constant that has one value for each output
channel (or one for all), are folded into a Conv, ConvTranspose, Gemm or MatMul whose result
nobody else reads. The arithmetic is in float64, rounded once. BatchNormalization elsewhere becomes
a Mul and an Add, which ``fuse_elementwise`` takes up.
"""

from __future__ import annotations

import numpy as np

from castiron.graph import graph as graphs
from castiron.graph.graph import Graph, Node
from castiron.tensor import dtype as dtypes

_PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "MatMul")


def fold_scales(graph: Graph) -> Graph:
    """The graph with scales folded; every fold is followed by another try."""
    rewriter = _Rewriter(graph)
    rewriter.run()
    return graphs.prune(rewriter.graph())


class _Rewriter:
    """Nodes under rewriting, with constants and types that grow."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._constants = dict(graph.constants)
        self._types = dict(graph.types)
        self._nodes = list(graph.nodes)

    def graph(self) -> Graph:
        return self._graph.replace(
            nodes=tuple(self._nodes), constants=self._constants, types=self._types
        )

    def run(self) -> None:
        at = 0
        while at < len(self._nodes):
            node = self._nodes[at]
            if node.op in _PRODUCTS and self._fold_next(at, node):
                continue
            if node.op == "BatchNormalization" and self._expand_norm(at, node):
                continue
            at += 1

    def _constant(self, name: str, array: np.ndarray) -> str:
        while name in self._types:
            name += "'"
        array = np.ascontiguousarray(array, np.float32)
        self._constants[name] = array
        self._types[name] = graphs.constant_type(array)
        return name

    def _fold_next(self, at: int, product: Node) -> bool:
        """Fold the only reader of a product into it; whether that was possible."""
        result = product.outputs[0]
        readers = [node for node in self._nodes if result in node.inputs]
        if len(readers) != 1 or result in self._graph.outputs:
            return False
        weights = self._constants.get(product.inputs[1])
        reader = readers[0]
        affine = None if weights is None else self._affine(reader, result, product)
        if affine is None or weights is None or weights.dtype != np.float32:
            return False
        folded = self._scaled(product, weights, affine)
        if folded is None:
            return False
        inputs, name = folded, " + ".join(filter(None, (product.name, reader.name)))
        self._nodes.remove(reader)
        self._nodes[at] = Node(product.op, inputs, reader.outputs[:1], product.attrs, name)
        return True

    def _affine(
        self, reader: Node, result: str, product: Node
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """(scale, shift) for each output channel that the reader applies, or None."""
        shape = self._graph.types[result].shape
        channel_axis = 1 if product.op.startswith("Conv") else -1
        if shape is None or len(shape) < 2:
            return None
        channels = shape[channel_axis]
        if not isinstance(channels, int):
            return None
        if reader.op == "BatchNormalization" and reader.inputs[0] == result:
            return self._norm_affine(reader) if channel_axis % len(shape) == 1 else None
        if reader.op not in ("Mul", "Div", "Add", "Sub") or len(reader.inputs) != 2:
            return None
        other = reader.inputs[1] if reader.inputs[0] == result else reader.inputs[0]
        array = self._constants.get(other)
        if array is None or array.dtype != np.float32 or other == result:
            return None
        vector = _per_channel(array, len(shape), channel_axis % len(shape), channels)
        if vector is None:
            return None
        return _affine_of(reader.op, vector, is_first=reader.inputs[0] == result)

    def _norm_affine(self, norm: Node) -> tuple[np.ndarray, np.ndarray] | None:
        parts = [self._constants.get(value) for value in norm.inputs[1:5]]
        is_training = any(norm.outputs[1:]) or norm.attr("training_mode", 0)
        if any(part is None for part in parts) or is_training:
            return None
        gamma, beta, mean, variance = (np.asarray(part, np.float64) for part in parts)
        scale = gamma / np.sqrt(variance + float(norm.attr("epsilon", 1e-5)))
        return scale, beta - mean * scale

    def _scaled(
        self, product: Node, weights: np.ndarray, affine: tuple[np.ndarray, np.ndarray]
    ) -> tuple[str, ...] | None:
        """The product's inputs with weights and bias scaled and shifted, or None."""
        scale, shift = affine
        has_shift = bool(np.any(shift))
        bias_name = product.inputs[2] if len(product.inputs) > 2 else ""
        bias = self._constants.get(bias_name) if bias_name else None
        if (bias_name and bias is None) or (product.op == "MatMul" and has_shift):
            return None
        scaled = _scale_weights(product, weights.astype(np.float64), scale)
        if scaled is None:
            return None
        name = self._constant(f"{product.inputs[1]}:scaled", scaled)
        if bias is None and not has_shift:
            return (product.inputs[0], name)
        old = 0.0 if bias is None else bias.astype(np.float64) * float(product.attr("beta", 1.0))
        if product.op == "Gemm" and float(product.attr("beta", 1.0)) != 1.0:
            return None
        return (product.inputs[0], name, self._constant(f"{name}:bias", old * scale + shift))

    def _expand_norm(self, at: int, norm: Node) -> bool:
        """BatchNormalization as Mul and Add by constants; whether it was possible."""
        affine = self._norm_affine(norm)
        kind = self._types[norm.inputs[0]]
        if affine is None or kind.shape is None or kind.dtype is not dtypes.FLOAT32:
            return False
        out = norm.outputs[0]
        form = (-1, *(1 for _ in kind.shape[2:]))
        scale = self._constant(f"{out}:scale", affine[0].reshape(form))
        shift = self._constant(f"{out}:shift", affine[1].reshape(form))
        middle = f"{out}:scaled"
        self._types[middle] = self._types[out]
        self._nodes[at : at + 1] = [
            Node("Mul", (norm.inputs[0], scale), (middle,), {}, norm.name),
            Node("Add", (middle, shift), (out,), {}, norm.name),
        ]
        return True


def _per_channel(array: np.ndarray, rank: int, axis: int, channels: int) -> np.ndarray | None:
    """The constant as one float64 value for each channel, or None if it varies otherwise."""
    if array.ndim > rank:
        return None
    if array.size == 1:
        return np.full(channels, float(array.reshape(-1)[0]))
    shape = (1,) * (rank - array.ndim) + array.shape
    if array.size != channels or shape[axis] != channels:
        return None
    return array.reshape(-1).astype(np.float64)


def _affine_of(
    op: str, vector: np.ndarray, *, is_first: bool
) -> tuple[np.ndarray, np.ndarray] | None:
    zeros, ones = np.zeros_like(vector), np.ones_like(vector)
    if op == "Mul":
        return vector, zeros
    if op == "Add":
        return ones, vector
    if op == "Div":
        return (1.0 / vector, zeros) if is_first and np.all(vector != 0) else None
    return (ones, -vector) if is_first else (-ones, vector)


def _scale_weights(product: Node, weights: np.ndarray, scale: np.ndarray) -> np.ndarray | None:
    """The weights times the scale of their output channel."""
    if product.op == "Conv":
        return np.asarray(weights * scale.reshape(-1, *(1 for _ in weights.shape[1:])))
    if product.op == "ConvTranspose":
        groups = int(product.attr("group", 1))
        parts = weights.reshape(groups, weights.shape[0] // groups, *weights.shape[1:])
        form = (groups, 1, weights.shape[1], *(1 for _ in weights.shape[2:]))
        return np.asarray(parts * scale.reshape(form)).reshape(weights.shape)
    if product.op == "Gemm" and product.attr("transB", 0):
        return np.asarray(weights * scale.reshape(-1, 1))
    if weights.ndim < 2 or weights.shape[-1] != scale.size:
        return None
    return np.asarray(weights * scale)
