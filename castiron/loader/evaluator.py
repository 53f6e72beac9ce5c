"""The door to the reference evaluator: one node for folding, many nodes as an interpreted stage.

``evaluate_node`` and ``package`` are what the compiler is handed; ``Interpreter`` runs a package
at run time. Everything is in the newest ONNX form, as ``onnx.load`` leaves it. Ops that the
reference evaluator lacks, gets wrong or runs far too slowly are replaced by ``OPS``.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from castiron.graph import graph as graphs
from castiron.loader import (
    evaluator_fixes,
    evaluator_missing,
    evaluator_quantized,
    evaluator_windows,
    onnx_draft,
    onnx_functions,
)

OPS: list[type[Any]] = [
    *evaluator_fixes.OPS,
    *evaluator_missing.OPS,
    *evaluator_quantized.OPS,
    *evaluator_windows.OPS,
]
_MAX_IR = 10


def captured_names(node: bytes) -> tuple[str, ...]:
    """The outer values that the bodies of a serialised node read, in order of first use."""
    return onnx_draft.captured_names(onnx.NodeProto.FromString(node))


def node_proto(node: graphs.Node) -> onnx.NodeProto:
    """The ONNX form of a canonical or interpreted node, reading and making its current values.

    Attributes come from ``origin`` where there is one, since only it holds bodies; passes may
    have renamed inputs, also captured ones, and those names are put in place.
    """
    if node.origin is None:
        draft = _draft(node)
        return onnx_draft.to_proto(draft)
    proto: onnx.NodeProto = onnx.NodeProto.FromString(node.origin)
    captured = onnx_draft.captured_names(proto)
    num_formal = len(node.inputs) - len(captured)
    known = {
        old: new for old, new in zip(captured, node.inputs[num_formal:], strict=True) if old != new
    }
    del proto.input[:]
    proto.input.extend(node.inputs[:num_formal])
    del proto.output[:]
    proto.output.extend(node.outputs)
    for attr in proto.attribute if known else ():
        if attr.type == onnx.AttributeProto.GRAPH:
            attr.g.CopyFrom(onnx_functions.rename_graph(attr.g, known))
    return proto


def _draft(node: graphs.Node) -> onnx_draft.Draft:
    domain, _, op = node.attr("op", node.op).rpartition("::")
    kinds = onnx_draft.attr_kinds(op, domain)
    attrs = {key: value for key, value in node.attrs.items() if key in kinds}
    return onnx_draft.Draft(op, node.inputs, node.outputs, attrs, node.name, domain)


def evaluate_node(node: graphs.Node, arrays: Sequence[np.ndarray | None]) -> list[np.ndarray]:
    """The outputs of one node for its inputs (None where absent), without sharing memory.

    Raises whatever the evaluator raises when the operands do not fit the op.
    """
    proto = node_proto(node)
    feeds = {
        name: array
        for name, array in zip(node.inputs, arrays, strict=True)
        if name and array is not None
    }
    outputs = [name for name in proto.output if name]
    found = evaluate([proto], onnx_draft.NEWEST, feeds, outputs)
    return [np.asarray(found[name]) if name else np.zeros(0) for name in node.outputs]


def evaluate(
    nodes: Sequence[bytes | onnx.NodeProto],
    opsets: Mapping[str, int],
    inputs: Mapping[str, Any],
    outputs: Sequence[str],
) -> dict[str, Any]:
    """Run nodes in order on named arrays; the values of ``outputs`` by name."""
    protos = [
        onnx.NodeProto.FromString(node) if isinstance(node, bytes) else node for node in nodes
    ]
    infos = [_info(name, value) for name, value in inputs.items()]
    graph = helper.make_graph(protos, "evaluated", infos, [_bare(name) for name in outputs])
    return Interpreter(_model(graph, opsets)).run(inputs)


def package(
    nodes: Sequence[graphs.Node],
    graph: graphs.Graph,
    reads: Sequence[str],
    writes: Sequence[str],
) -> bytes:
    """The nodes as a self-contained model, the constants they read inside, for ``Interpreter``."""
    protos = [node_proto(node) for node in nodes]
    made = {out for node in nodes for out in node.outputs}
    wanted = dict.fromkeys(v for node in nodes for v in node.inputs if v and v not in made)
    wanted.update(dict.fromkeys(value for value in writes if value not in made))
    constants = [
        numpy_helper.from_array(np.asarray(graph.constants[name]), name)
        for name in wanted
        if name in graph.constants and name not in reads
    ]
    infos = [_typed(name, graph.types[name]) for name in reads]
    inner = helper.make_graph(
        protos, graph.name or "stage", infos, [_bare(name) for name in writes], constants
    )
    serialised: bytes = _model(inner, onnx_draft.NEWEST).SerializeToString(deterministic=True)
    return serialised


class Interpreter:
    """A package made ready to run, any number of times."""

    __slots__ = ("_evaluator", "_outputs")

    def __init__(self, model: bytes | onnx.ModelProto) -> None:
        proto = onnx.ModelProto.FromString(model) if isinstance(model, bytes) else model
        self._evaluator = ReferenceEvaluator(proto, new_ops=OPS)
        self._outputs = [info.name for info in proto.graph.output]

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Outputs by name for inputs by name."""
        feeds = {
            name: np.asarray(value) if isinstance(value, np.generic) else value
            for name, value in inputs.items()
        }
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            found = self._evaluator.run(None, feeds)
        return dict(zip(self._outputs, found, strict=True))


def _model(graph: onnx.GraphProto, opsets: Mapping[str, int]) -> onnx.ModelProto:
    imports = [helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    return helper.make_model(graph, opset_imports=imports, ir_version=_MAX_IR)


def _bare(name: str) -> onnx.ValueInfoProto:
    return onnx.ValueInfoProto(name=name)


def _typed(name: str, kind: graphs.TensorType) -> onnx.ValueInfoProto:
    if kind.dtype is None:
        return _bare(name)
    return helper.make_tensor_value_info(name, kind.dtype.onnx_code, None)


def _info(name: str, value: Any) -> onnx.ValueInfoProto:
    if not isinstance(value, np.ndarray):
        return _bare(name)
    if value.dtype.kind in "OUS":
        return helper.make_tensor_value_info(name, onnx.TensorProto.STRING, value.shape)
    code = helper.np_dtype_to_tensor_dtype(value.dtype)
    return helper.make_tensor_value_info(name, code, value.shape)
