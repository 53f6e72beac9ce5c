"""Small models, built and loaded for the tests of what runs them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import castiron
from tests.loader import models

Shape = Sequence[int | str]


def one_op(op: str, *shapes: Shape, dtype: str = "float32", **attrs: Any) -> onnx.ModelProto:
    """A model ``y = op(x0, x1...)`` of inputs with these shapes."""
    names = [f"x{position}" for position in range(len(shapes))]
    kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    inputs = [models.value(name, shape, kind) for name, shape in zip(names, shapes, strict=True)]
    return models.model([models.node(op, names, ["y"], **attrs)], inputs, ["y"])


def interpreted_between() -> onnx.ModelProto:
    """Native, interpreted and native steps: the values of x above 0, doubled, in order."""
    nodes = [
        models.node("Mul", ["x", "two"], ["twice"]),
        models.node("Greater", ["twice", "zero"], ["mask"]),
        models.node("Compress", ["twice", "mask"], ["kept"], axis=0),
        models.node("Add", ["kept", "zero"], ["y"]),
    ]
    constants = {"two": np.array(2.0, np.float32), "zero": np.array(0.0, np.float32)}
    return models.model(nodes, [models.value("x", ["n"])], ["y"], constants)


def network() -> onnx.ModelProto:
    """Convolutions, a branch and a product, over images of any size: [n, 3, h, w] to [n, 5]."""
    random = np.random.default_rng(5)

    def drawn(*shape: int) -> np.ndarray:
        return (random.standard_normal(shape) * 0.3).astype(np.float32)

    nodes = [
        models.node("Conv", ["x", "w1", "b1"], ["a"], kernel_shape=[3, 3], pads=[1] * 4),
        models.node("Relu", ["a"], ["b"]),
        models.node("Conv", ["b", "w2"], ["c"], kernel_shape=[1, 1]),
        models.node("Add", ["b", "c"], ["d"]),
        models.node("GlobalAveragePool", ["d"], ["e"]),
        models.node("Flatten", ["e"], ["f"]),
        models.node("MatMul", ["f", "w3"], ["y"]),
    ]
    constants = {
        "w1": drawn(8, 3, 3, 3),
        "b1": drawn(8),
        "w2": drawn(8, 8, 1, 1),
        "w3": drawn(8, 5),
    }
    return models.model(nodes, [models.value("x", ["n", 3, "h", "w"])], ["y"], constants)


def loaded(
    model: onnx.ModelProto, folder: Path, *, threads: int = 1, name: str = "model"
) -> castiron.Instance:
    """The model built into the folder and loaded."""
    out = folder / f"{name}.cast"
    return castiron.load(castiron.build(model.SerializeToString(), out), threads=threads)
