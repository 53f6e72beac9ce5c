"""Conv: which kernel computes it.

Pointwise convolutions are products of pixels with a matrix (gemm.py), everything else runs on
strips of pixels (direct.py) or on a kernel made for its shape: one filter for each channel
(depthwise.py), 3x3 windows by fewer multiplications (winograd.py).
"""

from __future__ import annotations

import numpy as np

from castiron.compiler.codegen import step
from castiron.compiler.codegen.kernels import (
    depthwise,
    direct,
    epilogues,
    gemm,
    geometry,
    weights,
    winograd,
)
from castiron.compiler.target import Target
from castiron.graph import expr
from castiron.graph.graph import Graph, Node
from castiron.tensor import dim
from castiron.tensor.dim import Dim


def gap(node: Node, graph: Graph) -> str | None:
    """Why there is no kernel for this Conv, or None."""
    return gap_of_window_op(node, graph) or epilogues.gap(node, graph)


def gap_of_window_op(node: Node, graph: Graph) -> str | None:
    """What Conv and ConvTranspose both need: float32, known rank, weights of a known shape."""
    for value in (node.inputs[0], node.inputs[1], node.outputs[0]):
        kind = graph.types[value]
        if kind.shape is None:
            return f"{node.op} of {value}, whose rank is unknown"
        if kind.dtype is None or kind.dtype.name != "float32":
            return f"{node.op} of {kind.dtype} (there is a kernel for float32)"
    shape = graph.shape(node.inputs[1])
    if any(isinstance(extent, Dim) for extent in shape):
        return f"{node.op} whose weights {node.inputs[1]} have extents known only at run time"
    if len(shape) not in (3, 4):
        return f"{node.op} over {len(shape) - 2} axes (there are kernels for one and two)"
    if 0 in shape:
        return f"{node.op} with weights of no elements"
    return None


def lower(node: Node, graph: Graph, target: Target) -> step.Lowered:
    """The node as steps."""
    shape = geometry.of_conv(node, graph)
    if node.inputs[1] not in graph.constants:
        return _with_weights_of_run_time(node, graph, target, shape)
    filters = graph.constants[node.inputs[1]]
    if shape.is_pointwise:
        return step.Lowered((_pointwise(node, graph, target, shape),))
    bias, epilogue, extras = bias_and_epilogue(node, graph)
    if depthwise.fits(shape):
        one = depthwise.lower(
            depthwise.Convolution(
                name=node.name or node.op,
                input=step.Read(node.inputs[0]),
                output=step.Write(node.outputs[0]),
                geometry=shape,
                weights=filters,
                bias=bias,
                strides=direct.dense_strides(shape),
                epilogue=epilogue,
                extras=tuple(step.Read(value) for value in extras),
            ),
            target,
        )
        return step.Lowered((one,))
    outputs = 0
    if winograd.fits(shape):
        outputs = winograd.choose(shape, strict=node.attr("precision") == "strict")
    if outputs:
        fewer = winograd.Convolution(
            name=node.name or node.op,
            input=step.Read(node.inputs[0]),
            output=step.Write(node.outputs[0]),
            geometry=shape,
            filters=filters.reshape(*filters.shape[:2], 3, 3),
            bias=bias,
            outputs=outputs,
            epilogue=epilogue,
            extras=extras,
        )
        return step.Lowered((winograd.lower(fewer, target),))
    # (filter, channel, row, column) to one matrix of (row, column, channel) x filter a group.
    flat = filters.reshape(*filters.shape[:2], -1)
    matrices = flat.transpose(2, 1, 0).reshape(-1, shape.filters)
    parts = np.stack(np.split(matrices, shape.group, axis=1))
    return step.Lowered((_direct(node, graph, target, (shape, parts)),))


def _direct(
    node: Node,
    graph: Graph,
    target: Target,
    what: tuple[geometry.Geometry, np.ndarray | step.Read],
) -> step.Step:
    shape, weights_ = what
    bias, epilogue, extras = bias_and_epilogue(node, graph)
    convolution = direct.Convolution(
        name=node.name or node.op,
        input=step.Read(node.inputs[0]),
        output=step.Write(node.outputs[0]),
        geometry=shape,
        weights=weights_,
        bias=bias,
        strides=direct.dense_strides(shape),
        epilogue=epilogue,
        extras=tuple(step.Read(value) for value in extras),
    )
    return direct.lower(convolution, target)


def _with_weights_of_run_time(
    node: Node, graph: Graph, target: Target, shape: geometry.Geometry
) -> step.Lowered:
    """A step that packs the weights, and the direct kernel."""
    columns = direct.columns_of(shape, target)
    buffer = f"{node.outputs[0]}.weights"
    pack = weights.pack_step(node.name or node.op, node.inputs[1], buffer, (shape, columns), target)
    convolve = _direct(node, graph, target, (shape, step.Read(buffer)))
    size = weights.size_bytes(shape, columns)
    return step.Lowered((pack, convolve), buffers=(step.Buffer(buffer, size),))


def _pointwise(node: Node, graph: Graph, target: Target, shape: geometry.Geometry) -> step.Step:
    bias, epilogue, extras = bias_and_epilogue(node, graph)
    matrix = graph.constants[node.inputs[1]].reshape(shape.filters, shape.channels)
    product = gemm.Product(
        name=node.name or node.op,
        input=step.Read(node.inputs[0]),
        output=step.Write(node.outputs[0]),
        matrix=np.ascontiguousarray(matrix.T),
        rows=dim.product([shape.batch, shape.rows.output, shape.columns.output]),
        likely_rows=_likely_pixels(shape),
        a_row=shape.channels * 4,
        a_step=4,
        bias=bias,
        epilogue=epilogue,
        extras=extras,
    )
    return gemm.lower(product, target)


def _likely_pixels(shape: geometry.Geometry) -> int:
    """Pixels of one image, or of all where their number is known."""
    batch = 1 if isinstance(shape.batch, Dim) else shape.batch
    return batch * geometry.usual(shape.rows.output) * geometry.usual(shape.columns.output)


def bias_and_epilogue(
    node: Node, graph: Graph
) -> tuple[np.ndarray | None, epilogues.Epilogue | None, tuple[str, ...]]:
    """The constant bias, the epilogue, and the values it reads; a run-time bias joins these."""
    epilogue, extras = epilogues.of_node(node, graph)
    bias = node.inputs[2] if len(node.inputs) > 2 and node.attr("num_own", 3) > 2 else ""
    if not bias:
        return None, epilogue, extras
    if bias in graph.constants:
        return graph.constants[bias].reshape(-1), epilogue, extras
    total = expr.apply("add", expr.input_(0, "float32"), expr.input_(1, "float32"))
    if epilogue:
        later = [expr.input_(n + 2, "float32") for n in range(len(extras))]
        total = expr.substitute(epilogue.expression, [total, *later])
    kinds = (epilogues.VECTOR, *(epilogue.kinds if epilogue else ()))
    return None, epilogues.Epilogue(total, kinds), (bias, *extras)
