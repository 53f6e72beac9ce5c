"""MobileNet-v2 at width 1 for 224x224 pictures, with seeded weights and a symbolic batch.

Depthwise convolutions and narrow 1x1 products: the topology on which compilers lose most of the
processor. The classes it answers mean nothing.
"""

from __future__ import annotations

import math

import onnx
from onnx import TensorProto, helper

from zoo import writer

# expansion, channels, repeats, stride: the table of the paper (Sandler et al., 2018)
_STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
_NUM_CLASSES = 1000


def model() -> onnx.ModelProto:
    """Input `image`: float32 [batch, 3, 224, 224], mean 0 and deviation 1; output: logits."""
    w = writer.Writer("mobilenet_v2", seed=2)
    x, channels = _relu6(w, _conv(w, "image", (32, 3, 3), stride=2)), 32
    for expansion, num_out, repeats, first_stride in _STAGES:
        for index in range(repeats):
            stride = first_stride if index == 0 else 1
            branch = _bottleneck(w, x, (channels, channels * expansion, num_out), stride)
            is_residual = stride == 1 and channels == num_out
            x = w.node("Add", x, branch) if is_residual else branch
            channels = num_out
    x = _relu6(w, _conv(w, x, (1280, channels, 1)))
    x = w.node("Flatten", w.node("GlobalAveragePool", x))
    weight = w.normal((_NUM_CLASSES, 1280), 2 / math.sqrt(1280))
    logits = w.node("Gemm", x, weight, w.normal((_NUM_CLASSES,), 0.02), transB=1)
    return w.model(
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 3, 224, 224])],
        [helper.make_tensor_value_info(logits, TensorProto.FLOAT, ["batch", _NUM_CLASSES])],
    )


def _bottleneck(w: writer.Writer, x: str, channels: tuple[int, int, int], stride: int) -> str:
    num_in, num_inner, num_out = channels
    if num_inner != num_in:
        x = _relu6(w, _conv(w, x, (num_inner, num_in, 1)))
    x = _relu6(w, _conv(w, x, (num_inner, 1, 3), stride=stride, group=num_inner))
    return _conv(w, x, (num_out, num_inner, 1))


def _conv(
    w: writer.Writer, x: str, shape: tuple[int, int, int], stride: int = 1, group: int = 1
) -> str:
    """A convolution with bias, BatchNormalization already folded: (out, in per group, kernel)."""
    num_out, num_in, kernel = shape
    deviation = math.sqrt(2 / (num_in * kernel * kernel))
    return w.node(
        "Conv",
        x,
        w.normal((num_out, num_in, kernel, kernel), deviation),
        w.normal((num_out,), 0.05),
        kernel_shape=[kernel, kernel],
        strides=[stride, stride],
        pads=[kernel // 2] * 4,
        group=group,
    )


def _relu6(w: writer.Writer, x: str) -> str:
    return w.node("Clip", x, w.constant(0.0), w.constant(6.0))
