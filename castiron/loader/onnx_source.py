"""The source of a model: a path, bytes or a ModelProto, read into a ModelProto and its folder.

Only the file's form is judged here; what the nodes mean is the business of ``onnx_check``.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Iterable, Iterator

import onnx
from google.protobuf import message

from castiron import errors
from castiron.loader import external

Given = str | os.PathLike[str] | bytes | onnx.ModelProto


@dataclasses.dataclass(frozen=True, slots=True)
class Source:
    """A parsed model, the name that messages use for it, and where its external data lies."""

    name: str
    proto: onnx.ModelProto
    folder: external.ExternalFolder


def read(given: Given) -> Source:
    """Parse the model; LoadError when there is no file or it is no ONNX model."""
    if isinstance(given, onnx.ModelProto):
        return _checked("<model>", given, None)
    if isinstance(given, bytes | bytearray | memoryview):
        return _checked("<bytes>", _parse("<bytes>", bytes(given)), None)
    path = pathlib.Path(given)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise errors.LoadError(str(path), [f"cannot be read: {error.strerror}"]) from error
    return _checked(str(path), _parse(str(path), data), path.resolve().parent)


def _parse(name: str, data: bytes) -> onnx.ModelProto:
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except (message.DecodeError, ValueError, RecursionError) as error:
        problem = f"expected an ONNX model, found {len(data)} bytes that are no protobuf of one"
        raise errors.LoadError(name, [f"{problem} ({error}); export the model again"]) from error
    return proto


def _checked(name: str, proto: onnx.ModelProto, folder: pathlib.Path | None) -> Source:
    if not proto.HasField("graph"):
        problem = "expected an ONNX model with a graph, found none; is this file an ONNX model?"
        raise errors.LoadError(name, [problem])
    broken = [text for text in _texts(proto) if not isinstance(text, str)]
    if broken:
        problem = f"expected names in UTF-8, found {broken[0]!r}"
        raise errors.LoadError(name, [f"{problem} and {len(broken) - 1} more; the file is damaged"])
    return Source(name, proto, external.ExternalFolder(folder))


def _texts(proto: onnx.ModelProto) -> Iterator[object]:
    """Every text that names something; a damaged one is bytes, whatever the stubs say."""
    yield from (entry.domain for entry in proto.opset_import)
    for entry in proto.metadata_props:
        yield from (entry.key, entry.value)
    yield from _graph_texts(proto.graph)
    for function in proto.functions:
        yield from (function.name, function.domain, function.overload)
        yield from (*function.input, *function.output, *function.attribute)
        yield from (entry.domain for entry in function.opset_import)
        yield from _node_texts(function.node)
        yield from (attr.name for attr in function.attribute_proto)


def _graph_texts(graph: onnx.GraphProto) -> Iterator[object]:
    yield graph.name
    for info in (*graph.input, *graph.output, *graph.value_info):
        yield info.name
        yield from (dim.dim_param for dim in info.type.tensor_type.shape.dim)
    for tensor in (*graph.initializer, *(sparse.values for sparse in graph.sparse_initializer)):
        yield tensor.name
        yield from _external_texts(tensor)
    yield from _node_texts(graph.node)


def _external_texts(tensor: onnx.TensorProto) -> Iterator[object]:
    for entry in tensor.external_data:
        yield from (entry.key, entry.value)


def _node_texts(nodes: Iterable[onnx.NodeProto]) -> Iterator[object]:
    for node in nodes:
        yield from (node.op_type, node.name, node.domain, node.overload)
        yield from (*node.input, *node.output)
        for attr in node.attribute:
            yield from (attr.name, attr.ref_attr_name)
            yield from _external_texts(attr.t)
            for body in (attr.g, *attr.graphs):
                yield from _graph_texts(body)
