"""A pencil for ONNX graphs: nodes and weights in the order in which they are written down.

Only what the makers in this folder need; a product of its own it is not.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

_OPSET = 17


class Writer:
    """Collects nodes and weights; every `node` call answers with the name of its output."""

    def __init__(self, name: str, seed: int) -> None:
        self.name = name
        self._random = np.random.default_rng(seed)
        self._nodes: list[onnx.NodeProto] = []
        self._weights: list[onnx.TensorProto] = []
        self._constants: dict[tuple[str, bytes, tuple[int, ...]], str] = {}

    def node(self, op: str, *inputs: str, **attributes: Any) -> str:
        """Append a node with one output."""
        output = f"{op.lower()}_{len(self._nodes)}"
        self._nodes.append(helper.make_node(op, list(inputs), [output], **attributes))
        return output

    def normal(self, shape: tuple[int, ...], deviation: float, mean: float = 0.0) -> str:
        """A weight of normally distributed float32 values."""
        draw = self._random.standard_normal(shape, dtype=np.float32)
        return self._weight(draw * np.float32(deviation) + np.float32(mean))

    def constant(self, value: npt.ArrayLike, dtype: npt.DTypeLike = np.float32) -> str:
        """A given value; equal values share one constant."""
        array = np.asarray(value, dtype=dtype)
        key = (array.dtype.str, array.tobytes(), array.shape)
        if key not in self._constants:
            self._constants[key] = self._weight(array)
        return self._constants[key]

    def model(
        self, inputs: list[onnx.ValueInfoProto], outputs: list[onnx.ValueInfoProto]
    ) -> onnx.ModelProto:
        """The finished model, checked; the outputs name values that nodes gave."""
        graph = helper.make_graph(self._nodes, self.name, inputs, outputs, self._weights)
        opsets = [helper.make_opsetid("", _OPSET)]
        proto = helper.make_model(graph, opset_imports=opsets, ir_version=8)
        onnx.checker.check_model(proto)
        return proto

    def _weight(self, array: npt.NDArray[np.generic]) -> str:
        name = f"weight_{len(self._weights)}"
        self._weights.append(numpy_helper.from_array(array, name))
        return name
