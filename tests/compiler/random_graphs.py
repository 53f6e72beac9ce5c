"""Random small models: the ops of convolution nets, attention and shape arithmetic, mixed.

A model is drawn by a function that picks numbers (a seeded generator or a hypothesis strategy), so
that a failing one shrinks. Weights are seeded. The batch and the image's extents are symbolic.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Pick = Callable[[int, int], int]  # an integer between both ends, included

CHANNELS = (1, 3, 8, 16, 20)


@dataclasses.dataclass(frozen=True, slots=True)
class _Made:
    """A value of the model under construction; ``shape`` holds it for one binding."""

    name: str
    shape: tuple[int, ...]


class _Maker:
    """Adds nodes, keeping the concrete shape of every value for one binding of the symbols."""

    def __init__(self, pick: Pick) -> None:
        self.pick = pick
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self._random = np.random.default_rng(7)
        self._count = 0

    def constant(self, shape: tuple[int, ...], scale: float = 0.5) -> str:
        array = (self._random.standard_normal(shape) * scale).astype(np.float32)
        return self.array(array)

    def array(self, array: np.ndarray) -> str:
        self._count += 1
        name = f"w{self._count}"
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def ints(self, *values: int) -> str:
        return self.array(np.array(values, np.int64))

    def node(self, op: str, inputs: list[str], shape: tuple[int, ...], **attrs: Any) -> _Made:
        self._count += 1
        name = f"{op.lower()}{self._count}"
        self.nodes.append(helper.make_node(op, inputs, [name], name=name, **attrs))
        return _Made(name, shape)

    # -- steps: each takes a value and gives one ----------------------------------------------

    def conv(self, x: _Made) -> _Made:
        n, c, h, w = x.shape
        kernel = (1, 3, 5)[self.pick(0, 2)]
        stride, dilation = self.pick(1, 2), 1 if kernel == 1 else self.pick(1, 2)
        group = c if self.pick(0, 3) == 0 else 1
        out = c * self.pick(1, 2) if group > 1 else CHANNELS[self.pick(0, len(CHANNELS) - 1)]
        pad = dilation * (kernel - 1) // 2
        weights = self.constant((out, c // group, kernel, kernel), 1.0 / np.sqrt(c * kernel))
        inputs = [x.name, weights] + ([self.constant((out,))] if self.pick(0, 1) else [])
        shape = (n, out, (h - 1) // stride + 1, (w - 1) // stride + 1)
        return self.node(
            "Conv", inputs, shape, kernel_shape=[kernel] * 2, strides=[stride] * 2,
            pads=[pad] * 4, dilations=[dilation] * 2, group=group,
        )  # fmt: skip

    def norm(self, x: _Made) -> _Made:
        c = x.shape[1]
        parts = [self.constant((c,)) for _ in range(3)]
        variance = self.array(np.abs(self._random.standard_normal(c)).astype(np.float32) + 0.5)
        return self.node("BatchNormalization", [x.name, *parts, variance], x.shape)

    def activation(self, x: _Made) -> _Made:
        op = ("Relu", "Sigmoid", "Tanh", "HardSwish", "LeakyRelu", "Neg", "Abs")[self.pick(0, 6)]
        return self.node(op, [x.name], x.shape)

    def scale(self, x: _Made) -> _Made:
        op = ("Mul", "Add", "Sub", "Div")[self.pick(0, 3)]
        shape: tuple[int, ...] = ((), (x.shape[1], *(1 for _ in x.shape[2:])))[self.pick(0, 1)]
        constant = self.array(np.asarray(self._random.uniform(0.5, 1.5, shape), np.float32))
        inputs = [x.name, constant] if self.pick(0, 1) else [constant, x.name]
        if op == "Div":
            inputs = [x.name, constant]
        return self.node(op, inputs, x.shape)

    def swish(self, x: _Made) -> _Made:
        gate = self.node("Sigmoid", [x.name], x.shape)
        return self.node("Mul", [x.name, gate.name], x.shape)

    def excite(self, x: _Made) -> _Made:
        n, c = x.shape[:2]
        pooled = self.node("GlobalAveragePool", [x.name], (n, c, 1, 1))
        weights = self.constant((c, c, 1, 1), 0.3)
        gate = self.node("Conv", [pooled.name, weights], pooled.shape, kernel_shape=[1, 1])
        gate = self.node("HardSigmoid", [gate.name], gate.shape)
        return self.node("Mul", [x.name, gate.name], x.shape)

    def pool(self, x: _Made) -> _Made:
        n, c, h, w = x.shape
        if min(h, w) < 4:
            return self.activation(x)
        op = ("MaxPool", "AveragePool")[self.pick(0, 1)]
        stride = self.pick(1, 2)
        shape = (n, c, (h - 1) // stride + 1, (w - 1) // stride + 1)
        return self.node(
            op, [x.name], shape, kernel_shape=[3, 3], strides=[stride] * 2, pads=[1] * 4
        )

    def resize(self, x: _Made) -> _Made:
        n, c, h, w = x.shape
        if h * w > 400:
            return self.pool(x)
        scales = self.array(np.array([1, 1, 2, 2], np.float32))
        return self.node(
            "Resize", [x.name, "", scales], (n, c, 2 * h, 2 * w), mode="nearest",
            coordinate_transformation_mode="asymmetric", nearest_mode="floor",
        )  # fmt: skip

    def shuffle(self, x: _Made) -> _Made:
        n, c, h, w = x.shape
        if c % 2:
            return self.activation(x)
        shape = self.ints(0, 2, c // 2, h, w) if self.pick(0, 1) else None
        if shape is None:
            return self.slice(x)
        split = self.node("Reshape", [x.name, self.ints(0, 2, c // 2, -1)], (n, 2, c // 2, h * w))
        turned = self.node("Transpose", [split.name], (n, c // 2, 2, h * w), perm=[0, 2, 1, 3])
        dims = self.node("Shape", [x.name], (4,))
        return self.node("Reshape", [turned.name, dims.name], x.shape)

    def slice(self, x: _Made) -> _Made:
        c = x.shape[1]
        if c < 2:
            return self.activation(x)
        take = self.pick(1, c - 1)
        inputs = [x.name, self.ints(0), self.ints(take), self.ints(1), self.ints(1)]
        return self.node("Slice", inputs, (x.shape[0], take, *x.shape[2:]))

    def pad(self, x: _Made) -> _Made:
        n, c, h, w = x.shape
        pads = self.ints(0, 0, 1, 0, 0, 0, 0, 2)
        return self.node("Pad", [x.name, pads], (n, c, h + 1, w + 2))

    def softmax(self, x: _Made) -> _Made:
        return self.node("Softmax", [x.name], x.shape, axis=self.pick(1, 3))

    def attend(self, x: _Made) -> _Made:
        """Tokens are pixels: project, attend over them, and go back to an image."""
        n, c, h, w = x.shape
        if h * w > 300:
            return self.pool(x)
        flat = self.node("Reshape", [x.name, self.ints(0, 0, -1)], (n, c, h * w))
        tokens = self.node("Transpose", [flat.name], (n, h * w, c), perm=[0, 2, 1])
        query = self.node("MatMul", [tokens.name, self.constant((c, c), 0.3)], tokens.shape)
        scores = self.node("MatMul", [query.name, flat.name], (n, h * w, h * w))
        weights = self.node("Softmax", [scores.name], scores.shape, axis=-1)
        mixed = self.node("MatMul", [weights.name, tokens.name], tokens.shape)
        mean = self.node("ReduceMean", [mixed.name, self.ints(-1)], (n, h * w, 1), keepdims=1)
        centred = self.node("Sub", [mixed.name, mean.name], mixed.shape)
        back = self.node("Transpose", [centred.name], (n, c, h * w), perm=[0, 2, 1])
        dims = self.node("Shape", [x.name], (4,))
        return self.node("Reshape", [back.name, dims.name], x.shape)


_STEPS = (
    "conv", "conv", "conv", "norm", "activation", "activation", "scale", "scale", "swish",
    "excite", "pool", "resize", "shuffle", "slice", "pad", "softmax", "attend",
)  # fmt: skip


def random_model(pick: Pick) -> onnx.ModelProto:
    """A model with input ``x`` [n, c, h, w], all symbolic but c, and one or two outputs."""
    maker = _Maker(pick)
    channels = CHANNELS[pick(0, 3)]
    values = [_Made("x", (2, channels, 10, 12))]
    for _ in range(pick(2, 9)):
        source = values[-1] if pick(0, 3) else values[pick(0, len(values) - 1)]
        made = getattr(maker, _STEPS[pick(0, len(_STEPS) - 1)])(source)
        twins = [other for other in values if other.shape == made.shape]
        if twins and pick(0, 2) == 0:
            other = twins[pick(0, len(twins) - 1)]
            made = maker.node("Add", [made.name, other.name], made.shape)
        elif pick(0, 5) == 0:
            near = [o for o in values if (o.shape[0], *o.shape[2:]) == (2, *made.shape[2:])]
            parts = [made, *near[:2]]
            shape = (2, sum(part.shape[1] for part in parts), *made.shape[2:])
            made = maker.node("Concat", [part.name for part in parts], shape, axis=1)
        values.append(made)
    outputs = [values[-1].name]
    if len(values) > 3 and pick(0, 2) == 0:
        outputs.append(values[len(values) // 2].name)
    return _model(maker, channels, list(dict.fromkeys(outputs)))


def _model(maker: _Maker, channels: int, outputs: list[str]) -> onnx.ModelProto:
    dims: list[int | str] = ["n", channels, "h", "w"]
    given = [helper.make_tensor_value_info("x", TensorProto.FLOAT, dims)]
    made = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    graph = helper.make_graph(maker.nodes, "random", given, made, maker.weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
