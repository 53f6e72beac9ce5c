"""Small models for the loader's tests, made here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from castiron.graph import graph
from castiron.loader import evaluator

FLOAT = onnx.TensorProto.FLOAT
Shape = Sequence[int | str | None] | None


def value(name: str, shape: Shape, kind: int = FLOAT) -> onnx.ValueInfoProto:
    """A declared tensor."""
    return helper.make_tensor_value_info(name, kind, shape)


def node(op: str, inputs: Sequence[str], outputs: Sequence[str], **attrs: Any) -> onnx.NodeProto:
    """A node of any domain."""
    return helper.make_node(op, list(inputs), list(outputs), **attrs)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[str],
    constants: dict[str, np.ndarray] | None = None,
    *,
    opset: int = 17,
    functions: Sequence[onnx.FunctionProto] = (),
) -> onnx.ModelProto:
    """A model with untyped outputs; `com.microsoft` and `local` are imported too."""
    tensors = [numpy_helper.from_array(a, name) for name, a in (constants or {}).items()]
    outs = [helper.make_tensor_value_info(name, 0, None) for name in outputs]
    body = helper.make_graph(list(nodes), "tested", list(inputs), outs, tensors)
    imports = [("", opset), ("com.microsoft", 1), ("local", 1)]
    return helper.make_model(
        body,
        ir_version=8,
        opset_imports=[helper.make_opsetid(*pair) for pair in imports],
        functions=list(functions),
    )


def answers(loaded: graph.Graph, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    """What the canonical graph computes on the evaluator, outputs in order."""
    packed = evaluator.package(loaded.nodes, loaded, loaded.inputs, loaded.outputs)
    found = evaluator.Interpreter(packed).run(feeds)
    return [found[name] for name in loaded.outputs]
