"""Op to kernel family, written out: who says whether a kernel exists, and who lowers the node.

``gap(node, graph)`` answers None when a kernel exists, else a sentence about what is missing;
``lower(node, graph, target)`` gives the steps. A new op is one line in each table.
"""

from __future__ import annotations

from collections.abc import Callable

from castiron.compiler.codegen import step
from castiron.compiler.codegen.kernels import (
    channel_norms,
    convolution,
    diagonal,
    dims,
    fused,
    gather,
    local_response,
    matmul,
    movement,
    normalization,
    padding,
    pooling,
    recurrent,
    reduction,
    resize,
    scatter,
    searching,
    softmax,
    sorting,
    transpose,
    transposed,
)
from castiron.compiler.target import Target
from castiron.graph.graph import Graph, Node
from castiron.tensor import dim

Gap = Callable[[Node, Graph], str | None]
Lower = Callable[[Node, Graph, Target], step.Lowered]

GAPS: dict[str, Gap] = {
    "CumSum": sorting.cumsum_gap,
    "TopK": sorting.gap,
    **dict.fromkeys(searching.OPS, searching.gap),
    **dict.fromkeys(reduction.OPS, reduction.gap),
    **dict.fromkeys(local_response.OPS, local_response.gap),
    **dict.fromkeys(channel_norms.OPS, channel_norms.gap),
    **dict.fromkeys(normalization.OPS, normalization.gap),
    **dict.fromkeys(softmax.OPS, softmax.gap),
    **dict.fromkeys(fused.OPS, fused.gap),
    "Conv": convolution.gap,
    "ConvTranspose": transposed.gap,
    "Gemm": matmul.gap,
    "MatMul": matmul.gap,
    **dict.fromkeys(movement.OPS, movement.gap),
    **dict.fromkeys(dims.OPS, dims.gap),
    "Transpose": transpose.gap,
    **dict.fromkeys(pooling.OPS, pooling.gap),
    "Resize": resize.gap,
    "Pad": padding.gap,
    **dict.fromkeys(gather.OPS, gather.gap),
    **dict.fromkeys(scatter.OPS, scatter.gap),
    **dict.fromkeys(diagonal.OPS, diagonal.gap),
    **dict.fromkeys(recurrent.OPS, recurrent.gap),
}

LOWERINGS: dict[str, Lower] = {
    "CumSum": sorting.cumsum_lower,
    "TopK": sorting.lower,
    **dict.fromkeys(searching.OPS, searching.lower),
    **dict.fromkeys(reduction.OPS, reduction.lower),
    **dict.fromkeys(local_response.OPS, local_response.lower),
    **dict.fromkeys(channel_norms.OPS, channel_norms.lower),
    **dict.fromkeys(normalization.OPS, normalization.lower),
    **dict.fromkeys(softmax.OPS, softmax.lower),
    **dict.fromkeys(fused.OPS, fused.lower),
    "Conv": convolution.lower,
    "ConvTranspose": transposed.lower,
    "Gemm": matmul.lower,
    "MatMul": matmul.lower,
    **dict.fromkeys(movement.OPS, movement.lower),
    **dict.fromkeys(dims.OPS, dims.lower),
    "Transpose": transpose.lower,
    **dict.fromkeys(pooling.OPS, pooling.lower),
    "Resize": resize.lower,
    "Pad": padding.lower,
    **dict.fromkeys(gather.OPS, gather.lower),
    **dict.fromkeys(scatter.OPS, scatter.lower),
    **dict.fromkeys(diagonal.OPS, diagonal.lower),
    **dict.fromkeys(recurrent.OPS, recurrent.lower),
}


def gap(node: Node, graph: Graph) -> str | None:
    """Why this node has no kernel, or None when it has one."""
    if node.op not in GAPS:
        return f"no kernel for op {node.op}"
    if any(_is_open(out, graph) for out in node.outputs if out):
        return "the data decide the shape of its output"
    return GAPS[node.op](node, graph)


def _is_open(value: str, graph: Graph) -> bool:
    """Whether an extent is a symbol of the value's own: known only once the value is there."""
    shape = graph.types[value].shape or ()
    return any(
        name.rstrip("'") == f"{value}_{axis}"
        for axis, extent in enumerate(shape)
        for name in dim.symbols_of(extent)
    )


def lower(node: Node, graph: Graph, target: Target) -> step.Lowered:
    """The node as steps; only for nodes without a gap."""
    return LOWERINGS[node.op](node, graph, target)
