"""The nine light models of the onnx wheel, with weights that behave like trained ones.

The wheel keeps only their topology: every weight is one constant, so that all outputs are equal.
Here each weight is drawn He-normal from a seed of its own name, and each BatchNormalization gets
the statistics its input is expected to have; so activations stay near one through any depth, and
the last product is scaled so that the softmax is not saturated. `zoo.made` writes them to files.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

NAMES = (
    "bvlc_alexnet",
    "densenet121",
    "inception_v1",
    "inception_v2",
    "resnet50",
    "shufflenet",
    "squeezenet",
    "vgg19",
    "zfnet512",
)
LOGIT_DEVIATION = 2.0

# What an op does to the expected square of noise that went through a Relu, about.
_GAIN = {"Relu": 1 / 2, "MaxPool": 3.0, "AveragePool": 1 / 2, "GlobalAveragePool": 1 / 3}
_GAIN_AFTER_SUM = 0.9  # the shortcut is positive already, only the branch loses its half

_Shape = tuple[int, ...]
_Array = npt.NDArray[np.float32]


def model(name: str) -> onnx.ModelProto:
    """One of `NAMES`, as the wheel has it but for the values of its weights."""
    folder = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
    proto = onnx.load(folder / f"light_{name}.onnx")
    return _Weights(proto).filled()


class _Weights:
    """Fills one model in node order, following the expected square of every value."""

    def __init__(self, proto: onnx.ModelProto) -> None:
        self._proto = proto
        self._kept = {tensor.name: tensor for tensor in proto.graph.initializer}
        self._shapes = dict(_weight_shapes(proto.graph, self._kept))
        self._made: dict[str, _Array] = {}
        self._square: dict[str, float] = {}
        products = [node for node in proto.graph.node if node.op_type in {"Conv", "Gemm"}]
        self._last_product = products[-1]

    def filled(self) -> onnx.ModelProto:
        graph = self._proto.graph
        nodes = [node for node in graph.node if node.op_type != "ConstantOfShape"]
        for node in nodes:
            self._square[node.output[0]] = self._fill(node)
        used = {name for node in nodes for name in node.input}
        constants = [tensor for tensor in graph.initializer if tensor.name not in self._made]
        constants = [tensor for tensor in constants if tensor.name in used]
        made = [numpy_helper.from_array(array, name) for name, array in self._made.items()]
        weights = {tensor.name for tensor in [*constants, *made]}
        inputs = [value for value in graph.input if value.name in used - weights]
        _replace(graph.node, nodes)
        _replace(graph.initializer, [*constants, *made])
        _replace(graph.input, inputs)
        self._proto.ir_version = 8  # from 4 on, weights need not be inputs as well
        return self._proto

    def _fill(self, node: onnx.NodeProto) -> float:
        """Draw the weights of one node; the expected square of its output."""
        square = self._square.get(node.input[0], 1.0)
        if node.op_type in {"Conv", "Gemm"}:
            return self._fill_product(node, square)
        if node.op_type == "BatchNormalization":
            return self._fill_normalization(node, square)
        if node.op_type == "Unsqueeze":
            # A per-channel factor or term: the next node tells which.
            self._draw(node.input[0], 0.0, 1.0)
            return 1.0
        if node.op_type in {"Sum", "Add"}:
            return sum(self._square.get(name, 1.0) for name in node.input)
        if node.op_type == "Concat":
            squares = [self._square.get(name, 1.0) for name in node.input]
            return sum(squares) / len(squares)
        if node.op_type == "Relu" and self._maker(node.input[0]).op_type == "Sum":
            return square * _GAIN_AFTER_SUM
        return square * _GAIN.get(node.op_type, 1.0)

    def _fill_product(self, node: onnx.NodeProto, square: float) -> float:
        weight = self._stored(node.input[1])
        num_out = self._shapes[node.input[2] if node.op_type == "Gemm" else weight][0]
        fan_in = math.prod(self._shapes[weight]) // num_out
        deviation = math.sqrt(2 / fan_in)
        if node is self._last_product:
            deviation = LOGIT_DEVIATION / math.sqrt(fan_in * square)
        self._draw(weight, 0.0, deviation)
        if len(node.input) > 2:
            self._draw(node.input[2], 0.0, 0.05)
        return fan_in * deviation**2 * square

    def _stored(self, name: str) -> str:
        """The weight behind a value; one of the models reshapes a weight in the graph."""
        if name in self._shapes:
            return name
        return str(self._maker(name).input[0])

    def _maker(self, name: str) -> onnx.NodeProto:
        nodes: Iterable[onnx.NodeProto] = self._proto.graph.node
        return next(node for node in nodes if name in node.output)

    def _fill_normalization(self, node: onnx.NodeProto, square: float) -> float:
        scale, bias, mean, variance = node.input[1:5]
        self._draw(scale, 1.0, 0.1)
        self._draw(bias, 0.0, 0.1)
        self._draw(mean, 0.0, 0.1 * math.sqrt(square))
        self._draw(variance, square, 0.1 * square)
        return 1.0

    def _draw(self, name: str, mean: float, deviation: float) -> None:
        if name not in self._shapes:
            return  # computed in the graph
        seed = zlib.crc32(name.encode())
        draw = np.random.default_rng(seed).standard_normal(self._shapes[name], dtype=np.float32)
        self._made[name] = draw * np.float32(deviation) + np.float32(mean)


def _replace(field: Any, content: list[Any]) -> None:
    del field[:]
    field.extend(content)


def _weight_shapes(
    graph: onnx.GraphProto, constants: dict[str, onnx.TensorProto]
) -> Iterable[tuple[str, _Shape]]:
    for node in graph.node:
        if node.op_type == "ConstantOfShape":
            shape = numpy_helper.to_array(constants[node.input[0]])
            yield node.output[0], tuple(int(extent) for extent in shape)
    for tensor in constants.values():
        if tensor.data_type == onnx.TensorProto.FLOAT:
            yield tensor.name, tuple(tensor.dims)
