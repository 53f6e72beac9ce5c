"""The model that is asked: y = x after some milliseconds of products, in rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from castiron.contract import document, model

NAME = "busy"
_LINES, _WIDTH = 128, 512
_LAYERS = 5


def save(folder: Path) -> None:
    """The model and a contract by which its requests are not merged: all runs cost the same."""
    path = folder / NAME / "1" / "model.onnx"
    path.parent.mkdir(parents=True)
    mixing = np.random.default_rng(7).normal(0, (2 / _WIDTH) ** 0.5, (_WIDTH, _WIDTH))
    constants: dict[str, np.ndarray] = {
        "apart": np.array([-1, 1, 1], np.int64),
        "lines": np.ones((_LINES, _WIDTH), np.float32),
        "mixing": mixing.astype(np.float32),
        "inner": np.array([1, 2], np.int64),
        "zero": np.zeros(1, np.float32),
        "column": np.array([-1, 1], np.int64),
    }
    nodes = [
        helper.make_node("Reshape", ["x", "apart"], ["apart_x"]),
        helper.make_node("Add", ["apart_x", "lines"], ["h0"]),
    ]
    for layer in range(_LAYERS):
        nodes.append(helper.make_node("MatMul", [f"h{layer}", "mixing"], [f"p{layer}"]))
        nodes.append(helper.make_node("Relu", [f"p{layer}"], [f"h{layer + 1}"]))
    nodes += [
        helper.make_node("ReduceMean", [f"h{_LAYERS}", "inner"], ["mean"], keepdims=0),
        helper.make_node("Mul", ["mean", "zero"], ["zeros"]),
        helper.make_node("Reshape", ["zeros", "column"], ["nothing"]),
        helper.make_node("Add", ["x", "nothing"], ["y"]),
    ]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", 1]) for name in "xy"]
    held = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, NAME, values[:1], values[1:], held)
    opsets = [helper.make_opsetid("", 20)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    tensors = [(model.Tensor(name, "FP32", ("rows", 1)),) for name in "xy"]
    contract = model.Contract(
        name=NAME, input=tensors[0], output=tensors[1], limits=model.Limits(batch_rows=1)
    )
    (path.parent / document.FILE_NAME).write_text(document.text(contract))
