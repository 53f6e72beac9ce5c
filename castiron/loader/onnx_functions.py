"""Functions inlined: model-local functions and the bodies that schemas give for some ops.

A call becomes the body's nodes with fresh names and the call's attribute values in place. The
body keeps its own opset imports, so each node is read in the version its author meant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import onnx

from castiron.loader import onnx_draft

Key = tuple[str, str, str]


def key_of(node: onnx.NodeProto | onnx.FunctionProto) -> Key:
    """Domain, name and overload: what a call and its function have in common."""
    if isinstance(node, onnx.FunctionProto):
        return onnx_draft.normal_domain(node.domain), node.name, node.overload
    return onnx_draft.normal_domain(node.domain), node.op_type, node.overload


def inline(
    call: onnx.NodeProto, function: onnx.FunctionProto, names: onnx_draft.Names
) -> list[onnx.NodeProto]:
    """The nodes of one call; a called function's own calls are left as they are."""
    actual = [*call.input, *[""] * len(function.input)]
    fixed = {"": "", **dict(zip(function.input, actual, strict=False))}
    copies = []
    for formal, out in zip(function.output, call.output, strict=False):
        if out and formal in fixed:
            copies.append(onnx.helper.make_node("Identity", [fixed[formal]], [out]))
        elif out:
            fixed[formal] = out
    given = {attr.name: attr for attr in function.attribute_proto}
    given.update((attr.name, attr) for attr in call.attribute)
    rename = _renamer(fixed, names, call.name or call.op_type)
    return [*(_copy(node, rename, given) for node in function.node), *copies]


def _renamer(fixed: dict[str, str], names: onnx_draft.Names, prefix: str) -> Callable[[str], str]:
    known = dict(fixed)

    def rename(name: str) -> str:
        if name not in known:
            known[name] = names.fresh(f"{prefix}_{name}")
        return known[name]

    return rename


def rename_graph(graph: onnx.GraphProto, known: dict[str, str]) -> onnx.GraphProto:
    """A copy of the graph with some values renamed, inside bodies too."""
    renamed = onnx.GraphProto()
    renamed.CopyFrom(graph)
    _rename_in_place(renamed, lambda name: known.get(name, name), {})
    return renamed


def _copy(
    node: onnx.NodeProto,
    rename: Callable[[str], str],
    given: dict[str, onnx.AttributeProto],
) -> onnx.NodeProto:
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    _rename_node(copy, rename, given)
    return copy


def _rename_node(
    node: onnx.NodeProto,
    rename: Callable[[str], str],
    given: dict[str, onnx.AttributeProto],
) -> None:
    node.input[:] = [rename(name) for name in node.input]
    node.output[:] = [rename(name) for name in node.output]
    attributes = list(_bound(node.attribute, given))
    del node.attribute[:]
    node.attribute.extend(attributes)
    for body in onnx_draft.bodies(node):
        _rename_in_place(body, rename, given)


def _rename_in_place(
    graph: onnx.GraphProto,
    rename: Callable[[str], str],
    given: dict[str, onnx.AttributeProto],
) -> None:
    for named in (*graph.input, *graph.output, *graph.initializer):
        named.name = rename(named.name)
    for sparse in graph.sparse_initializer:
        sparse.values.name = rename(sparse.values.name)
    for node in graph.node:
        _rename_node(node, rename, given)


def _bound(
    attributes: Iterable[onnx.AttributeProto], given: dict[str, onnx.AttributeProto]
) -> Iterable[onnx.AttributeProto]:
    """The attributes with references to the call's attributes resolved."""
    for attr in attributes:
        if not attr.ref_attr_name:
            yield attr
        elif attr.ref_attr_name in given:
            bound = onnx.AttributeProto()
            bound.CopyFrom(given[attr.ref_attr_name])
            bound.name = attr.name
            yield bound
