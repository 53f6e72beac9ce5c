"""Element types and ranks that old forms need before castiron infers shapes itself.

They come from ONNX's own inference over a copy without big weights, computed on first use. The
exporter's value_info and output shapes do not enter it, since they may be wrong.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np
import onnx
from google.protobuf import message
from onnx import checker, helper, numpy_helper, shape_inference

_SMALL_ELEMENTS = 1024
# What ONNX's inference raises about models that it cannot follow.
_GIVES_UP = (
    shape_inference.InferenceError, checker.ValidationError, message.Error, ValueError,
    RuntimeError,
)  # fmt: skip
# The name of a value that nothing makes.
_UNKNOWN = "castiron.unknown"


class Hints:
    """Answers None wherever nothing is known."""

    __slots__ = ("_arrays", "_inferred", "_proto")

    def __init__(self, proto: onnx.ModelProto) -> None:
        self._proto = proto
        self._arrays: dict[str, tuple[np.dtype, int]] = {}
        self._inferred: dict[str, tuple[int, int | None]] | None = None

    def add_array(self, name: str, array: np.ndarray) -> None:
        """Learn from a constant."""
        self._arrays[name] = (array.dtype, array.ndim)

    def rank(self, name: str) -> int | None:
        """The number of dims, or None."""
        if name in self._arrays:
            return self._arrays[name][1]
        return self._infer().get(name, (0, None))[1]

    def dtype(self, name: str) -> np.dtype | None:
        """The numpy dtype, or None."""
        if name in self._arrays:
            return self._arrays[name][0]
        code = self._infer().get(name, (0, None))[0]
        return np.dtype(helper.tensor_dtype_to_np_dtype(code)) if code else None

    def _infer(self) -> dict[str, tuple[int, int | None]]:
        if self._inferred is None:
            self._inferred = _inferred(self._proto)
        return self._inferred


def _inferred(proto: onnx.ModelProto) -> dict[str, tuple[int, int | None]]:
    try:
        model = shape_inference.infer_shapes(_light_copy(proto), data_prop=False)
    except _GIVES_UP:
        return {}
    infos = (*model.graph.input, *model.graph.value_info, *model.graph.output)
    return {info.name: _kind(info.type) for info in infos}


def _kind(kind: onnx.TypeProto) -> tuple[int, int | None]:
    tensor = kind.tensor_type
    rank = len(tensor.shape.dim) if tensor.HasField("shape") else None
    return tensor.elem_type, rank


def _light_copy(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with big initialisers turned into inputs, and without the exporter's hints."""
    copy = onnx.ModelProto(ir_version=max(proto.ir_version, 4))
    copy.opset_import.extend(proto.opset_import or [helper.make_opsetid("", 1)])
    copy.functions.extend(proto.functions)
    graph = copy.graph
    graph.node.extend(proto.graph.node)
    _hide_starts(graph.node)
    for function in copy.functions:
        _hide_starts(function.node)
    given = {info.name for info in proto.graph.input}
    graph.input.extend(proto.graph.input)
    for tensor in proto.graph.initializer:
        external = tensor.data_location == onnx.TensorProto.EXTERNAL
        if math.prod(tensor.dims) <= _SMALL_ELEMENTS and not external:
            graph.initializer.append(tensor)
        elif tensor.name not in given:
            info = helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            graph.input.append(info)
    graph.output.extend(onnx.ValueInfoProto(name=info.name) for info in proto.graph.output)
    return copy


def _hide_starts(nodes: Iterable[onnx.NodeProto]) -> None:
    """Let each Slice begin where nobody knows, also inside bodies.

    ONNX's inference ends the whole process where a Slice meets an extent below 0, which broken
    models have, or get by a Pad or a window. Ranks do not need where a Slice begins.
    """
    for node in nodes:
        if node.op_type == "Slice" and len(node.input) > 1:
            node.input[1] = _UNKNOWN
        for attr in node.attribute:
            for graph in (attr.g, *attr.graphs):
                _hide_starts(graph.node)


Kind = tuple[int, list[int | str | None] | None]


def canonical_types(
    nodes: Iterable[onnx.NodeProto],
    inputs: Iterable[onnx.ValueInfoProto],
    constants: Mapping[str, np.ndarray],
    opsets: Mapping[str, int],
) -> dict[str, Kind]:
    """Element type code and dims (int, parameter or None) of what canonical nodes make.

    For values of ops that castiron has no rule for; empty where ONNX's inference gives up.
    """
    model = onnx.ModelProto(ir_version=onnx.IR_VERSION)
    model.opset_import.extend(helper.make_opsetid(*entry) for entry in opsets.items())
    model.graph.node.extend(nodes)
    model.graph.input.extend(inputs)
    for name, array in constants.items():
        if array.size <= _SMALL_ELEMENTS:
            model.graph.initializer.append(numpy_helper.from_array(array, name))
        else:
            code = helper.np_dtype_to_tensor_dtype(array.dtype)
            model.graph.input.append(helper.make_tensor_value_info(name, code, array.shape))
    careful = onnx.ModelProto()
    careful.CopyFrom(model)
    _hide_starts(careful.graph.node)
    found = _full_kinds(careful)
    is_broken = any(
        isinstance(dim, int) and dim < 0 for _, dims in found.values() for dim in dims or ()
    )
    return found if is_broken else _full_kinds(model)


def _full_kinds(model: onnx.ModelProto) -> dict[str, Kind]:
    try:
        inferred = shape_inference.infer_shapes(model, data_prop=True)
    except _GIVES_UP:
        return {}
    return {info.name: _full_kind(info.type) for info in inferred.graph.value_info}


def _full_kind(kind: onnx.TypeProto) -> Kind:
    tensor = kind.tensor_type
    if not tensor.HasField("shape"):
        return tensor.elem_type, None
    return tensor.elem_type, [
        dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None
        for dim in tensor.shape.dim
    ]
