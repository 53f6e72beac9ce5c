"""Where the windows of a convolution lie: attributes and shapes of a node as numbers per axis.

Reads Conv and ConvTranspose in either layout; one spatial axis becomes two, of which the first
has extent 1. Nothing here emits code.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from castiron.graph.graph import Extent, Graph, Node
from castiron.tensor import dim
from castiron.tensor.dim import Dim

# What a symbol in an extent is taken to be where a choice needs a number.
_USUAL_EXTENT = 320


def usual(extent: Extent) -> int:
    """The extent, or what it would be for images of a usual size."""
    if not isinstance(extent, Dim):
        return extent
    return max(1, dim.evaluate(extent, dict.fromkeys(dim.symbols_of(extent), _USUAL_EXTENT)))


@dataclasses.dataclass(frozen=True, slots=True)
class Axis:
    """Windows along one axis: window ``o`` reads ``o * stride - before + tap * dilation``.

    Positions outside ``[0, size)`` read as zero. ``before`` may be negative: windows that start
    inside.
    """

    size: Extent
    output: Extent
    kernel: int
    stride: int = 1
    dilation: int = 1
    before: Extent = 0

    @property
    def span(self) -> int:
        """Positions from a window's first tap to its last, both included."""
        return (self.kernel - 1) * self.dilation + 1

    @property
    def reach(self) -> Extent:
        """Positions from the first window's first tap to the last window's last."""
        return dim.add(dim.mul(dim.add(self.output, -1), self.stride), self.span)

    @property
    def is_inside(self) -> bool:
        """Whether no window is known to read outside: then nothing need be filled with zeros."""
        if isinstance(self.before, Dim) or self.before != 0:
            return False
        room = dim.add(self.size, dim.mul(self.reach, -1))
        if not isinstance(room, Dim):
            return room >= 0
        # Without padding the output's extent is floor((size - span) / stride) + 1.
        exact = dim.add(dim.floordiv(dim.add(self.size, -self.span), self.stride), 1)
        return exact == self.output


@dataclasses.dataclass(frozen=True, slots=True)
class Geometry:
    """A whole convolution: ``batch`` images of ``rows`` by ``columns`` of ``channels``."""

    batch: Extent
    rows: Axis
    columns: Axis
    channels: int
    filters: int
    group: int

    @property
    def is_pointwise(self) -> bool:
        """Whether every output pixel reads exactly the input pixel at its place."""
        return self.group == 1 and all(
            axis.kernel == 1 and axis.stride == 1 and axis.before == 0 and axis.is_inside
            for axis in (self.rows, self.columns)
        )


def of_conv(node: Node, graph: Graph) -> Geometry:
    """The geometry of a Conv in NHWC layout with constant extents of its weights."""
    inputs, outputs = graph.shape(node.inputs[0]), graph.shape(node.outputs[0])
    weights = [int(str(extent)) for extent in graph.shape(node.inputs[1])]
    rank = len(weights) - 2
    strides = node.attr("strides") or (1,) * rank
    dilations = node.attr("dilations") or (1,) * rank
    axes = []
    for n in range(rank):
        axis = Axis(inputs[n + 1], outputs[n + 1], weights[n + 2], strides[n], dilations[n])
        before = _pad_before(node, axis, n)
        axes.append(dataclasses.replace(axis, before=before))
    rows, columns = _two(axes)
    return Geometry(
        inputs[0], rows, columns, weights[1] * node.attr("group", 1), weights[0],
        node.attr("group", 1),
    )  # fmt: skip


def _two(axes: Sequence[Axis]) -> tuple[Axis, Axis]:
    """Rows and columns: a single axis, or one beside an axis of extent 1, becomes the columns."""
    one = Axis(1, 1, 1)
    if len(axes) == 1:
        return one, axes[0]
    rows, columns = axes
    if columns == one:
        return one, rows
    return rows, columns


def _pad_before(node: Node, axis: Axis, n: int) -> Extent:
    """Zeros in front of the axis, from ``pads`` or by ``auto_pad``'s rule."""
    mode = node.attr("auto_pad", "NOTSET")
    if mode == "VALID":
        return 0
    if mode == "NOTSET":
        pads = node.attr("pads")
        return int(pads[n]) if pads else 0
    needed = dim.add(axis.reach, dim.mul(axis.size, -1))
    total = dim.maximum(needed, 0)
    if mode == "SAME_UPPER":
        return dim.floordiv(total, 2)
    return dim.ceildiv(total, 2)
