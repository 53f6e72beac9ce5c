"""Run a graph at any stage of the passes on the reference evaluator, checking all its types.

Nodes in castiron's canonical form are brought back to ONNX form, channels-last ones and those
with an epilogue too; symbols are bound by the inputs and by the extents that data decide. Every
value must have the dtype, shape and contents that the graph claims, and every check must hold.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from castiron.graph import expr
from castiron.graph.graph import Graph, Node
from castiron.graph.ops import onnx_form
from castiron.loader import evaluator
from castiron.tensor import dim as dims

Arrays = dict[str, np.ndarray]


def run(graph: Graph, inputs: Mapping[str, np.ndarray]) -> Arrays:
    """The graph's outputs; an AssertionError names a value that is not what its type says."""
    values: Arrays = {**graph.constants, **inputs}
    bound: dict[str, int] = {}
    for name in graph.inputs:
        _bind(graph, name, values[name], bound)
    for node in graph.nodes:
        arrays = _outputs(graph, node, values, bound)
        for name, array in zip(node.outputs, arrays, strict=False):
            if name:
                values[name] = np.asarray(array)
                _bind(graph, name, values[name], bound)
                _examine(graph, node, name, values[name], bound)
    for check in graph.checks:
        left, right = dims.evaluate(check.left, bound), dims.evaluate(check.right, bound)
        assert left == right, check
    return {name: values[name] for name in graph.outputs}


def _bind(graph: Graph, name: str, array: np.ndarray, bound: dict[str, int]) -> None:
    shape = graph.types[name].shape
    for extent, found in zip(shape or (), np.shape(array), strict=shape is not None):
        if isinstance(extent, dims.Dim) and len(dims.symbols_of(extent)) == 1:
            (symbol,) = dims.symbols_of(extent)
            if extent == dims.symbol(symbol):
                bound.setdefault(symbol, found)


def _outputs(graph: Graph, node: Node, values: Arrays, bound: dict[str, int]) -> list[np.ndarray]:
    if node.op == "Fused":
        return [expr.evaluate(node.attrs["expr"], [values[name] for name in node.inputs])]
    if node.op == "DimsToTensor":
        return [_written(node, bound)]
    if node.attr("epilogue") is not None:
        return [_with_epilogue(graph, node, values, bound)]
    if node.attr("layout") == "NHWC":
        return _channels_last(graph, node, values, bound)
    dtype = graph.types[node.inputs[0]].dtype if node.inputs else None
    attrs = {key: _bound_attr(value, bound) for key, value in node.attrs.items()}
    restored = onnx_form.restore(dataclasses.replace(node, attrs=attrs), dtype)
    assert not restored.sizes
    known = {**values, **restored.constants}
    arrays = [known[name] if name else None for name in restored.node.inputs]
    return evaluator.evaluate_node(restored.node, arrays)


def _with_epilogue(graph: Graph, node: Node, values: Arrays, bound: dict[str, int]) -> np.ndarray:
    """The product alone, then its epilogue over the result and what it reads besides."""
    own = node.attrs["num_own"]
    attrs = {key: node.attrs[key] for key in node.attrs if key not in ("epilogue", "num_own")}
    product = dataclasses.replace(node, inputs=node.inputs[:own], attrs=attrs)
    (result,) = _outputs(graph, product, values, bound)
    return expr.evaluate(node.attrs["epilogue"], [result, *(values[n] for n in node.inputs[own:])])


def _channels_last(
    graph: Graph, node: Node, values: Arrays, bound: dict[str, int]
) -> list[np.ndarray]:
    """The node channels-first, between a transpose and its inverse."""
    data = np.moveaxis(values[node.inputs[0]], -1, 1)
    skipped = ("layout", "precision")
    attrs = {key: value for key, value in node.attrs.items() if key not in skipped}
    for key in ("sizes", "scales", "roi"):
        if attrs.get(key) is not None:
            attrs[key] = _channels_first(attrs[key], data.ndim)
    plain = dataclasses.replace(node, inputs=("channels first", *node.inputs[1:]), attrs=attrs)
    kinds = {**graph.types, "channels first": graph.types[node.inputs[0]]}
    first = {**values, "channels first": np.ascontiguousarray(data)}
    found = _outputs(graph.replace(types=kinds), plain, first, bound)
    return [np.moveaxis(array, 1, -1) for array in found]


def _channels_first(items: tuple[Any, ...], rank: int) -> tuple[Any, ...]:
    """One or two runs of an item for each axis, the last axis moved to place 1."""
    runs = [items[at : at + rank] for at in range(0, len(items), rank)]
    return tuple(item for run in runs for item in (run[0], run[-1], *run[1:-1]))


def _written(node: Node, bound: dict[str, int]) -> np.ndarray:
    numbers = [dims.evaluate(item, bound) for item in node.attrs["dims"]]
    return np.array(numbers, node.attrs["dtype"]).reshape(node.attrs["shape"])


def _bound_attr(value: Any, bound: dict[str, int]) -> Any:
    if isinstance(value, dims.Dim):
        return dims.evaluate(value, bound)
    if isinstance(value, tuple):
        return tuple(_bound_attr(item, bound) for item in value)
    return value


def _examine(graph: Graph, node: Node, name: str, array: np.ndarray, bound: dict[str, int]) -> None:
    kind = graph.types[name]
    where = f"{node.op} {node.name!r} output {name!r}"
    if kind.dtype is not None and array.dtype.kind in "biuf":
        assert array.dtype.name == kind.dtype.name, f"{where}: {array.dtype}, not {kind.dtype}"
    if kind.shape is not None:
        claimed = tuple(dims.evaluate(extent, bound) for extent in kind.shape)
        assert array.shape == claimed, f"{where}: {array.shape}, not {claimed} = {kind.shape}"
    if kind.contents is not None:
        elements = [dims.evaluate(item, bound) for item in kind.contents]
        assert array.reshape(-1).tolist() == elements, f"{where}: {array}, not {kind.contents}"
