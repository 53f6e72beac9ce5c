"""ONNX to Graph: ``load`` reads a model whole, or refuses it with every problem at once.

Each node of the Graph has the newest ONNX form of its op, whatever opset the source used, and
``Graph.opsets`` says so; ``origin`` is the same node as a serialised NodeProto, bodies included.
Shapes are not inferred here: only inputs and constants have types.
"""

from __future__ import annotations

import re

import numpy as np
import onnx
from onnx import helper

from castiron import errors
from castiron.graph import graph as graphs
from castiron.graph.ops import table
from castiron.loader import (
    onnx_body,
    onnx_check,
    onnx_draft,
    onnx_functions,
    onnx_hints,
    onnx_source,
    onnx_tensor,
)
from castiron.tensor import dim as dims
from castiron.tensor import dtype as dtypes

_UNKNOWN = graphs.TensorType(None, None)
_HELD = ", ".join(known.name for known in dtypes.ALL)


def load(source: onnx_source.Given) -> graphs.Graph:
    """The Graph of an ONNX model given as a path, bytes or ModelProto; LoadError lists why not.

    Weights in external files are mapped, not copied; the files must not change while the Graph
    lives.
    """
    given = onnx_source.read(source)
    proto = given.proto
    functions = {onnx_functions.key_of(function): function for function in proto.functions}
    shared = onnx_body.Translation(
        folder=given.folder,
        functions=functions,
        names=onnx_draft.Names(onnx_draft.all_names(proto.graph)),
        hints=onnx_hints.Hints(proto),
        types=_type_texts(proto.graph),
    )
    shared.problems.extend(onnx_check.import_problems(proto))
    types = _input_types(proto.graph, shared.problems)
    if not shared.problems:
        writer = onnx_body.body(proto.graph, onnx_check.opsets(proto), shared, {})
        _check_outputs(proto.graph, writer, types, shared.problems)
    if shared.problems:
        raise errors.LoadError(given.name, list(dict.fromkeys(shared.problems)))
    return _graph(proto, writer, types)


def _graph(
    proto: onnx.ModelProto, writer: onnx_draft.Writer, types: dict[str, graphs.TensorType]
) -> graphs.Graph:
    nodes = tuple(_node(draft) for draft in writer.drafts)
    types = dict(types)
    types.update((name, onnx_tensor.type_of(array)) for name, array in writer.constants.items())
    types.update((out, _UNKNOWN) for node in nodes for out in node.outputs if out)
    types.update(_unruled_types(writer, nodes, types))
    _keep_declared_dtypes(proto.graph, types)
    for array in writer.constants.values():
        array.flags.writeable = False
    return graphs.Graph(
        name=proto.graph.name,
        nodes=nodes,
        inputs=tuple(_input_names(proto.graph)),
        outputs=tuple(info.name for info in proto.graph.output),
        types=types,
        constants=dict(writer.constants),
        opsets=dict(onnx_draft.NEWEST),
        metadata={entry.key: entry.value for entry in proto.metadata_props},
    )


def _node(draft: onnx_draft.Draft) -> graphs.Node:
    origin = onnx_draft.to_proto(draft)
    captured = onnx_draft.captured_names(origin)
    attrs = {
        key: value for key, value in draft.attrs.items() if not isinstance(value, onnx.GraphProto)
    }
    if onnx_draft.bodies(origin):
        attrs["num_formal"] = len(draft.inputs)
    return graphs.Node(
        op=f"{draft.domain}::{draft.op}" if draft.domain else draft.op,
        inputs=(*draft.inputs, *captured),
        outputs=draft.outputs,
        attrs=attrs,
        name=draft.name or next((out for out in draft.outputs if out), draft.op),
        origin=origin.SerializeToString(deterministic=True),
    )


def _unruled_types(
    writer: onnx_draft.Writer,
    nodes: tuple[graphs.Node, ...],
    types: dict[str, graphs.TensorType],
) -> dict[str, graphs.TensorType]:
    """What ONNX infers for outputs of ops that have no type rule of ours, control flow above all.

    Extents that it cannot tell become symbols named after the value and its axis.
    """
    wanted = [out for node in nodes if node.op not in table.RULES for out in node.outputs if out]
    if not wanted:
        return {}
    inputs = [_info(name, kind) for name, kind in types.items() if kind.dtype is not None]
    inputs = [info for info in inputs if info.name not in writer.constants]
    protos = [onnx_draft.to_proto(draft) for draft in writer.drafts]
    found = onnx_hints.canonical_types(protos, inputs, writer.constants, onnx_draft.NEWEST)
    return {name: _hinted(name, *found[name]) for name in wanted if name in found}


def _info(name: str, kind: graphs.TensorType) -> onnx.ValueInfoProto:
    assert kind.dtype is not None, "inputs have dtypes"
    shape = kind.shape
    extents = None if shape is None else [e if isinstance(e, int) else dims.text(e) for e in shape]
    return helper.make_tensor_value_info(name, kind.dtype.onnx_code, extents)


def _hinted(name: str, code: int, shape: list[int | str | None] | None) -> graphs.TensorType:
    if shape is None:
        return graphs.TensorType(dtypes.from_onnx(code), None)
    extents = [
        extent if isinstance(extent, int) else dims.symbol(extent or f"{name}_{axis}")
        for axis, extent in enumerate(shape)
    ]
    return graphs.TensorType(dtypes.from_onnx(code), tuple(extents))


def _keep_declared_dtypes(graph: onnx.GraphProto, types: dict[str, graphs.TensorType]) -> None:
    """Of outputs whose dtype nobody can infer, the exporter's word is taken; never their shapes."""
    for info in graph.output:
        kind = types[info.name]
        declared = dtypes.from_onnx(info.type.tensor_type.elem_type)
        if kind.dtype is None and declared is not None:
            types[info.name] = graphs.TensorType(declared, kind.shape)


def _input_names(graph: onnx.GraphProto) -> list[str]:
    """The inputs without those that an initialiser fills (IR 3 lists them as inputs too)."""
    filled = {tensor.name for tensor in graph.initializer}
    filled |= {sparse.values.name for sparse in graph.sparse_initializer}
    return [info.name for info in graph.input if info.name not in filled]


def _input_types(graph: onnx.GraphProto, problems: list[str]) -> dict[str, graphs.TensorType]:
    wanted = set(_input_names(graph))
    symbols = _Symbols()
    types: dict[str, graphs.TensorType] = {}
    for info in graph.input:
        if info.name not in wanted:
            continue
        if not info.name or info.name in types:
            problems.append(f"input {info.name!r}: the name is empty or given twice")
            continue
        types[info.name] = _input_type(info, symbols, problems)
    return types


def _input_type(
    info: onnx.ValueInfoProto, symbols: _Symbols, problems: list[str]
) -> graphs.TensorType:
    kind = info.type.WhichOneof("value")
    if kind != "tensor_type":
        problems.append(
            f"input {info.name!r} is of kind {kind or 'unknown'}: expected a tensor; "
            "pass the parts as tensors of their own"
        )
        return _UNKNOWN
    tensor = info.type.tensor_type
    dtype = dtypes.from_onnx(tensor.elem_type)
    if dtype is None:
        problems.append(
            f"input {info.name!r} has element type {_code_name(tensor.elem_type)}: "
            f"expected one of {_HELD}; cast it outside the model"
        )
    if not tensor.HasField("shape"):
        return graphs.TensorType(dtype, None)
    shape = [_extent(info.name, axis, dim, symbols) for axis, dim in enumerate(tensor.shape.dim)]
    if any(isinstance(extent, int) and extent < 0 for extent in shape):
        problems.append(f"input {info.name!r}: dims {shape} must not be below -1")
    return graphs.TensorType(dtype, tuple(shape))


def _extent(
    name: str, axis: int, dim: onnx.TensorShapeProto.Dimension, symbols: _Symbols
) -> graphs.Extent:
    if dim.HasField("dim_value") and dim.dim_value != -1:
        return int(dim.dim_value)
    return dims.symbol(symbols.name(dim.dim_param, f"{name}_{axis}"))


class _Symbols:
    """Readable identifiers for the exporters' dim names; different names stay different."""

    __slots__ = ("_by_source", "_taken")

    def __init__(self) -> None:
        self._by_source: dict[str, str] = {}
        self._taken: set[str] = set()

    def name(self, param: str, unnamed: str) -> str:
        """The symbol of a dim parameter; of its place when the parameter is no name."""
        is_name = bool(re.search(r"[A-Za-z]", param)) and param not in ("None", "none", "nan")
        source = param if is_name else f"\0{unnamed}"
        if source not in self._by_source:
            self._by_source[source] = self._fresh(param if is_name else unnamed)
        return self._by_source[source]

    def _fresh(self, text: str) -> str:
        plain = re.sub(r"\W+", "_", text, flags=re.ASCII).strip("_") or "dim"
        plain = f"d{plain}" if plain[0].isdigit() else plain
        chosen, number = plain, 1
        while chosen in self._taken:
            number += 1
            chosen = f"{plain}_{number}"
        self._taken.add(chosen)
        return chosen


def _check_outputs(
    graph: onnx.GraphProto,
    writer: onnx_draft.Writer,
    types: dict[str, graphs.TensorType],
    problems: list[str],
) -> None:
    made = set(types) | set(writer.constants)
    made.update(out for draft in writer.drafts for out in draft.outputs)
    seen: set[str] = set()
    if not graph.output:
        problems.append("the graph has no output; expected at least one")
    for info in graph.output:
        if info.name not in made and not problems:
            problems.append(f"output {info.name!r} is made by no node")
        if info.name in seen:
            problems.append(f"output {info.name!r} is given twice")
        code = info.type.tensor_type.elem_type
        kind = info.type.WhichOneof("value") or "tensor_type"
        if kind != "tensor_type" or (code and dtypes.from_onnx(code) is None):
            found = _code_name(code) if kind == "tensor_type" else kind
            problems.append(
                f"output {info.name!r} is of {found}: expected a tensor of one of {_HELD}; "
                "convert it inside the model"
            )
        seen.add(info.name)


def _type_texts(graph: onnx.GraphProto) -> dict[str, str]:
    """``name: dtype[shape]`` as the source declares it, for messages only."""
    texts = {}
    for info in (*graph.value_info, *graph.output, *graph.input):
        tensor = info.type.tensor_type
        dims_text = [dim.dim_param or str(dim.dim_value) for dim in tensor.shape.dim]
        texts[info.name] = f"{info.name}: {_code_name(tensor.elem_type)}[{', '.join(dims_text)}]"
    for tensor in graph.initializer:
        shape = ", ".join(map(str, tensor.dims))
        texts[tensor.name] = f"{tensor.name}: {_code_name(tensor.data_type)}[{shape}]"
    return texts


def _code_name(code: int) -> str:
    if code not in onnx.TensorProto.DataType.values():
        return f"type {code}"
    if code == 0:
        return "undefined"
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(code))
    return "string" if dtype.hasobject else dtype.name
