"""Ops that move data unchanged, as strided copies: Slice, Concat, Split, Expand, Tile, Identity.

Each says which axes are copied between which strides; strided.py has the kernel. Reshape is a
view without a step. Pad is in padding.py, Transpose in transpose.py.
"""

from __future__ import annotations

from castiron.compiler.codegen import step
from castiron.compiler.codegen.kernels import joining, strided
from castiron.compiler.codegen.kernels.strided import Axis
from castiron.compiler.target import Target
from castiron.graph.graph import Extent, Graph, Node
from castiron.tensor import dim as dims

OPS = ("Identity", "Reshape", "Expand", "Slice", "Split", "Tile", "Concat")
_NEEDED = {
    "Reshape": "shape", "Expand": "shape", "Slice": "sizes", "Split": "split", "Tile": "repeats",
}  # fmt: skip


def gap(node: Node, graph: Graph) -> str | None:
    """None where every size is known before the data are."""
    for value in (*node.inputs, *node.outputs):
        kind = graph.types.get(value)
        if value and (kind is None or kind.shape is None or kind.dtype is None):
            return f"{node.op} of a value whose rank is not known"
        if value and kind is not None and kind.dtype is not None and not kind.dtype.size_bytes:
            return f"{node.op} of strings"
    needed = _NEEDED.get(node.op)
    if needed is not None and node.attr(needed) is None:
        return f"{node.op} whose {needed} depends on the data"
    return None


def lower(node: Node, graph: Graph, target: Target) -> step.Lowered:
    """The node as copies, or as a view."""
    if node.op == "Reshape":
        return step.Lowered(aliases=(step.Alias(node.outputs[0], node.inputs[0]),))
    if node.op == "Concat":
        return step.Lowered(steps=_concat(node, graph, target))
    if node.op == "Split":
        return step.Lowered(steps=_split(node, graph, target))
    size = graph.dtype(node.inputs[0]).size_bytes
    start: Extent = 0
    if node.op == "Slice":
        start, axes = _slice(node, graph, size)
    elif node.op == "Tile":
        axes = _tile(node, graph, size)
    else:
        axes = _expand(node, graph, size)
    read, write = step.Read(node.inputs[0], start), step.Write(node.outputs[0])
    return step.Lowered(
        steps=(strided.copy_step(node.name or node.op, write, read, axes, size, target),)
    )


def _slice(node: Node, graph: Graph, size: int) -> tuple[Extent, list[Axis]]:
    """Byte offset of the first element, and the axes."""
    source = strided.strides_of(graph.shape(node.inputs[0]), size)
    shape = graph.shape(node.outputs[0])
    result = strided.strides_of(shape, size)
    start: Extent = 0
    for axis, first, by in zip(
        node.attr("axes"), node.attr("starts"), node.attr("steps"), strict=True
    ):
        start = dims.add(start, dims.mul(source[axis], first))
        source[axis] = dims.mul(source[axis], by)
    return start, [Axis(*each) for each in zip(shape, source, result, strict=True)]


def _expand(node: Node, graph: Graph, size: int) -> list[Axis]:
    """Expand and Identity: axes of extent 1 do not move the source."""
    shape = graph.shape(node.outputs[0])
    own = graph.shape(node.inputs[0])
    strides = strided.strides_of(own, size)
    missing = len(shape) - len(own)
    source: list[Extent] = [0] * missing
    for extent, stride, wanted in zip(own, strides, shape[missing:], strict=True):
        source.append(stride if extent == wanted else dims.stride_if_wide(extent, stride))
    result = strided.strides_of(shape, size)
    return [Axis(*each) for each in zip(shape, source, result, strict=True)]


def _tile(node: Node, graph: Graph, size: int) -> list[Axis]:
    """Each axis as (repeats, extent); repeats do not move the source."""
    own = graph.shape(node.inputs[0])
    source = strided.strides_of(own, size)
    result = strided.strides_of(graph.shape(node.outputs[0]), size)
    axes = []
    for axis, repeats in enumerate(node.attr("repeats")):
        axes.append(Axis(repeats, 0, dims.mul(own[axis], result[axis])))
        axes.append(Axis(own[axis], source[axis], result[axis]))
    return axes


def _concat(node: Node, graph: Graph, target: Target) -> tuple[step.Step, ...]:
    """One pass where rows are short, else one copy for each input to its place."""
    shape, size = graph.shape(node.outputs[0]), graph.dtype(node.outputs[0]).size_bytes
    axis = int(node.attr("axis"))
    axis += len(shape) if axis < 0 else 0
    rows = dims.product(list(shape[:axis]))
    sizes = [_row_bytes(graph, value, axis) for value in node.inputs]
    if joining.fits(rows, sizes):
        reads = [(step.Read(v), int(str(n))) for v, n in zip(node.inputs, sizes, strict=True)]
        whole = step.Write(node.outputs[0])
        return (joining.join_step(node.name or node.op, whole, reads, rows, target),)
    result = strided.strides_of(shape, size)
    start: Extent = 0
    steps = []
    for value in node.inputs:
        own = graph.shape(value)
        source = strided.strides_of(own, size)
        axes = [Axis(*each) for each in zip(own, source, result, strict=True)]
        write = step.Write(node.outputs[0], start)
        name = node.name or node.op
        steps.append(strided.copy_step(name, write, step.Read(value), axes, size, target))
        start = dims.add(start, dims.mul(own[axis], result[axis]))
    return tuple(steps)


def _split(node: Node, graph: Graph, target: Target) -> tuple[step.Step, ...]:
    """One pass where rows are short, else one copy for each output from its place."""
    shape, size = graph.shape(node.inputs[0]), graph.dtype(node.inputs[0]).size_bytes
    axis = int(node.attr("axis"))
    axis += len(shape) if axis < 0 else 0
    rows = dims.product(list(shape[:axis]))
    if all(node.outputs):
        sizes = [_row_bytes(graph, value, axis) for value in node.outputs]
        if joining.fits(rows, sizes):
            writes = [
                (step.Write(v), int(str(n))) for v, n in zip(node.outputs, sizes, strict=True)
            ]
            whole = step.Read(node.inputs[0])
            return (joining.split_step(node.name or node.op, whole, writes, rows, target),)
    source = strided.strides_of(shape, size)
    start: Extent = 0
    steps = []
    for value, part in zip(node.outputs, node.attr("split"), strict=True):
        if value:
            own = graph.shape(value)
            result = strided.strides_of(own, size)
            axes = [Axis(*each) for each in zip(own, source, result, strict=True)]
            read, write = step.Read(node.inputs[0], start), step.Write(value)
            name = node.name or node.op
            steps.append(strided.copy_step(name, write, read, axes, size, target))
        start = dims.add(start, dims.mul(part, source[axis]))
    return tuple(steps)


def _row_bytes(graph: Graph, value: str, axis: int) -> Extent:
    """Bytes of a value from one position before ``axis`` to the next."""
    return dims.mul(dims.product(list(graph.shape(value)[axis:])), graph.dtype(value).size_bytes)
