"""MatMul and Gemm: which product each becomes.

A constant matrix on the right becomes packed panels (gemm.py) with all leading axes of the left
operand as rows; anything else multiplies two run-time matrices (batched.py). Scales and a C that
is no constant vector join the epilogue.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from castiron.compiler.codegen import step
from castiron.compiler.codegen.kernels import batched, epilogues, gemm
from castiron.compiler.target import Target
from castiron.graph import expr
from castiron.graph.graph import Extent, Graph, Node, Shape
from castiron.tensor import dim

_DTYPES = ("float32", "float64", "int32", "int64")


def gap(node: Node, graph: Graph) -> str | None:
    """Why there is no kernel for this MatMul or Gemm, or None."""
    for value in (*node.inputs[:2], node.outputs[0]):
        kind = graph.types[value]
        if kind.shape is None:
            return f"{node.op} of {value}, whose rank is unknown"
        if kind.dtype is None or kind.dtype.name not in _DTYPES:
            return f"{node.op} of {kind.dtype} (there are kernels for {', '.join(_DTYPES)})"
    if node.op == "Gemm":
        return _gap_of_c(node, graph) or epilogues.gap(node, graph)
    return epilogues.gap(node, graph)


def _gap_of_c(node: Node, graph: Graph) -> str | None:
    if len(node.inputs) < 3 or not node.inputs[2] or node.attr("num_own", 3) < 3:
        return None
    shape = graph.types[node.inputs[2]].shape
    if shape is None:
        return "Gemm with a C of unknown rank"
    kind = epilogues.kind_of(shape, graph.shape(node.outputs[0]))
    return None if kind else "Gemm with a C that is broadcast along its columns"


def lower(node: Node, graph: Graph, target: Target) -> step.Lowered:
    """The node as one step."""
    if node.op == "Gemm":
        return step.Lowered((_lower_gemm(node, graph, target),))
    epilogue, extras = epilogues.of_node(node, graph)
    return step.Lowered((_lower_matmul(node, graph, target, (epilogue, extras)),))


_Fused = tuple[epilogues.Epilogue | None, tuple[str, ...]]


def _lower_matmul(node: Node, graph: Graph, target: Target, fused: _Fused) -> step.Step:
    a, b = node.inputs[:2]
    left, right = _as_matrices(graph.shape(a), graph.shape(b))
    size = graph.dtype(a).size_bytes
    single = all(extent == 1 for extent in right[:-2])
    if b in graph.constants and single and graph.constants[b].size:
        array = graph.constants[b]
        matrix = array.reshape(array.shape[-2:] if array.ndim > 1 else (-1, 1))
        product = gemm.Product(
            name=node.name or node.op,
            input=step.Read(a),
            output=step.Write(node.outputs[0]),
            matrix=matrix,
            rows=dim.product(left[:-1]),
            a_row=dim.mul(left[-1], size),
            a_step=size,
            epilogue=fused[0],
            extras=fused[1],
        )
        return gemm.lower(product, target)
    rows = dim.product(left[:-1]) if single else left[-2]
    axes = () if single else _axes(left, right, size)
    pair = batched.Product(
        name=node.name or node.op,
        a=step.Read(a),
        b=step.Read(b),
        output=step.Write(node.outputs[0]),
        element=graph.dtype(a).llvm,
        axes=axes,
        size=(rows, left[-1], right[-1]),
        a_strides=(dim.mul(left[-1], size), size),
        b_strides=(dim.mul(right[-1], size), size),
        epilogue=fused[0],
        extras=fused[1],
    )
    return batched.lower(pair, target)


def _as_matrices(left: Shape, right: Shape) -> tuple[Shape, Shape]:
    """Vectors as a row on the left and a column on the right."""
    if len(left) == 1:
        left = (1, *left)
    if len(right) == 1:
        right = (*right, 1)
    return left, right


def _axes(left: Shape, right: Shape, size: int) -> tuple[batched.Axis, ...]:
    """The batch axes with their strides, neighbours joined where they can be."""
    rank = max(len(left), len(right)) - 2
    a_extents = (1,) * (rank + 2 - len(left)) + tuple(left[:-2])
    b_extents = (1,) * (rank + 2 - len(right)) + tuple(right[:-2])
    a_strides = _strides(a_extents, dim.product((left[-2], left[-1], size)))
    b_strides = _strides(b_extents, dim.product((right[-2], right[-1], size)))
    joined: list[batched.Axis] = []
    for n in range(rank):
        extent = _broadcast(a_extents[n], b_extents[n])
        a = 0 if a_extents[n] == 1 else _if_wide(a_extents[n], extent, a_strides[n])
        b = 0 if b_extents[n] == 1 else _if_wide(b_extents[n], extent, b_strides[n])
        axis = batched.Axis(extent, a, b)
        if extent == 1:
            continue
        if joined and _follows(joined[-1], axis):
            axis = batched.Axis(dim.mul(joined.pop().extent, extent), a, b)
        joined.append(axis)
    return tuple(joined)


def _broadcast(a: Extent, b: Extent) -> Extent:
    if b in (a, 1):
        return a
    return b if a == 1 or isinstance(b, int) else dim.maximum(a, b)


def _if_wide(extent: Extent, output: Extent, stride: Extent) -> Extent:
    return stride if extent == output else dim.stride_if_wide(extent, stride)


def _follows(outer: batched.Axis, inner: batched.Axis) -> bool:
    """Whether stepping the outer axis is the same as stepping past the end of the inner one."""
    return outer.a_stride == dim.mul(inner.a_stride, inner.extent) and outer.b_stride == dim.mul(
        inner.b_stride, inner.extent
    )


def _strides(extents: Sequence[Extent], entry: Extent) -> list[Extent]:
    strides: list[Extent] = []
    for extent in reversed(extents):
        strides.append(entry)
        entry = dim.mul(entry, extent)
    return strides[::-1]


def _lower_gemm(node: Node, graph: Graph, target: Target) -> step.Step:
    a, b = node.inputs[:2]
    size = graph.dtype(a).size_bytes
    rows, depth, a_strides = _oriented(graph.shape(a), bool(node.attr("transA", 0)), size)
    if b in graph.constants and graph.constants[b].size:
        matrix = graph.constants[b]
        matrix = np.ascontiguousarray(matrix.T if node.attr("transB", 0) else matrix)
        alpha = node.attr("alpha", 1.0)
        bias = _constant_bias(node, graph, matrix.shape[1])
        if alpha != 1.0:
            matrix = (matrix * alpha).astype(matrix.dtype)
        fused = _with_c(node, graph, (1.0, bias is None))
        product = gemm.Product(
            name=node.name or node.op,
            input=step.Read(a),
            output=step.Write(node.outputs[0]),
            matrix=matrix,
            rows=rows,
            a_row=a_strides[0],
            a_step=a_strides[1],
            bias=bias,
            epilogue=fused[0],
            extras=fused[1],
        )
        return gemm.lower(product, target)
    _, columns, b_strides = _oriented(graph.shape(b), bool(node.attr("transB", 0)), size)
    fused = _with_c(node, graph, (node.attr("alpha", 1.0), True))
    return batched.lower(
        batched.Product(
            name=node.name or node.op,
            a=step.Read(a),
            b=step.Read(b),
            output=step.Write(node.outputs[0]),
            element=graph.dtype(a).llvm,
            axes=(),
            size=(rows, depth, columns),
            a_strides=a_strides,
            b_strides=b_strides,
            epilogue=fused[0],
            extras=fused[1],
        ),
        target,
    )


def _oriented(
    shape: Shape, transposed: bool, size: int
) -> tuple[Extent, Extent, tuple[Extent, Extent]]:
    """Rows, columns and (row, step) strides in bytes of a matrix or of its transpose."""
    first, second = shape
    if transposed:
        return second, first, (size, dim.mul(second, size))
    return first, second, (dim.mul(second, size), size)


def _c_of(node: Node) -> str:
    return node.inputs[2] if len(node.inputs) > 2 and node.attr("num_own", 3) > 2 else ""


def _constant_bias(node: Node, graph: Graph, columns: int) -> np.ndarray | None:
    """C times beta as a vector, when it is a constant that does not vary along the rows."""
    c = _c_of(node)
    if c not in graph.constants or graph.constants[c].size not in (1, columns):
        return None
    array = graph.constants[c]
    if array.ndim and array.size != 1 and array.shape[-1] != columns:
        return None
    scaled = (array.reshape(-1) * node.attr("beta", 1.0)).astype(array.dtype)
    return np.ascontiguousarray(np.broadcast_to(scaled, (columns,)))


def _with_c(node: Node, graph: Graph, scale: tuple[float, bool]) -> _Fused:
    """The node's epilogue behind alpha and, if asked, beta times C."""
    alpha, adds_c = scale
    epilogue, extras = epilogues.of_node(node, graph)
    dtype = graph.dtype(node.outputs[0]).name
    base = expr.input_(0, dtype)
    kinds: tuple[str, ...] = ()
    values: tuple[str, ...] = ()
    if alpha != 1.0:
        base = expr.apply("mul", base, expr.const(alpha, dtype))
    c = _c_of(node)
    if c and adds_c:
        kind = epilogues.kind_of(graph.shape(c), graph.shape(node.outputs[0]))
        assert kind, "gap() refuses other shapes of C"
        term = expr.input_(1, dtype)
        if node.attr("beta", 1.0) != 1.0:
            term = expr.apply("mul", term, expr.const(node.attr("beta"), dtype))
        base, kinds, values = expr.apply("add", base, term), (kind,), (c,)
    if epilogue:
        own = [base, *(expr.input_(n + 1 + len(kinds), dtype) for n in range(len(extras)))]
        base = expr.substitute(epilogue.expression, own)
        kinds, values = kinds + epilogue.kinds, values + extras
    if base == expr.input_(0, dtype):
        return None, ()
    return epilogues.Epilogue(base, kinds), values
