"""ConvTranspose as one convolution of stride 1 for each phase of the output.

Output pixels at the same place within a stride read the same taps; they form an image of their
own, computed by the direct or the depthwise kernel with wide steps between its output pixels.
Where the kernel's columns equal the stride, the phases beside each other are one matrix whose
results lie side by side.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from castiron.compiler.codegen import step
from castiron.compiler.codegen.kernels import convolution, depthwise, direct, epilogues
from castiron.compiler.codegen.kernels.geometry import Axis, Geometry
from castiron.compiler.target import Target
from castiron.graph.graph import Extent, Graph, Node
from castiron.tensor import dim
from castiron.tensor.dim import Dim


@dataclasses.dataclass(frozen=True, slots=True)
class Spread:
    """One axis: input ``i`` adds to outputs ``i * stride + tap * dilation - before``."""

    size: Extent
    output: Extent
    kernel: int
    stride: int
    dilation: int
    before: int


@dataclasses.dataclass(frozen=True, slots=True)
class Phase:
    """The outputs ``first``, ``first + stride``... and the kernel taps that they read, in order."""

    first: int
    axis: Axis
    taps: tuple[int, ...]


def gap(node: Node, graph: Graph) -> str | None:
    """Why there is no kernel for this ConvTranspose, or None."""
    missing = convolution.gap_of_window_op(node, graph) or epilogues.gap(node, graph)
    if missing:
        return missing
    if node.inputs[1] not in graph.constants:
        return f"ConvTranspose whose weights {node.inputs[1]} are computed at run time"
    rank = len(graph.shape(node.inputs[1])) - 2
    if any(isinstance(_before(node, graph, n), Dim) for n in range(rank)):
        return "ConvTranspose whose padding depends on its input's extent"
    return None


def lower(node: Node, graph: Graph, target: Target) -> step.Lowered:
    """The node as one step for each phase."""
    transposed = _Transposed(node, graph, target)
    return step.Lowered(tuple(transposed.steps()))


def phases(spread: Spread) -> list[Phase]:
    """The phases of one axis."""
    found = []
    stride, dilation = spread.stride, spread.dilation
    for first in range(stride):
        output = dim.ceildiv(dim.add(spread.output, -first), stride)
        if not isinstance(output, Dim) and output <= 0:
            continue
        place = first + spread.before
        taps = [k for k in range(spread.kernel) if (k * dilation - place) % stride == 0]
        taps.reverse()
        if taps:
            before = (taps[0] * dilation - place) // stride
            step_ = dilation // math.gcd(stride, dilation)
            axis = Axis(spread.size, output, len(taps), 1, step_, before)
        else:
            # No tap at all: windows that lie wholly in front of the input.
            axis = Axis(spread.size, output, 1, 1, 1, dim.add(output, 1))
        found.append(Phase(first, axis, tuple(taps)))
    return found


def _axis_of(node: Node, n: int) -> int:
    """The position of spatial axis ``n`` in a value's shape."""
    return n + 1 if node.attr("layout") == "NHWC" else n + 2


def _natural(node: Node, graph: Graph, n: int) -> Extent:
    """The output's extent before anything is cut off."""
    size = graph.shape(node.inputs[0])[_axis_of(node, n)]
    kernel = int(str(graph.shape(node.inputs[1])[n + 2]))
    stride = _attribute(node, "strides", n, 1)
    span = (kernel - 1) * _attribute(node, "dilations", n, 1) + 1
    extra = _attribute(node, "output_padding", n, 0)
    return dim.add(dim.mul(dim.add(size, -1), stride), span + extra)


def _before(node: Node, graph: Graph, n: int) -> Extent:
    """Outputs cut off in front: from ``pads``, or half of what the output's extent leaves over."""
    mode = node.attr("auto_pad", "NOTSET")
    same = mode in ("SAME_UPPER", "SAME_LOWER")
    if not same and not node.attr("output_shape"):
        pads = node.attr("pads")
        return pads[n] if pads and mode != "VALID" else 0
    output = graph.shape(node.outputs[0])[_axis_of(node, n)]
    total = dim.maximum(dim.add(_natural(node, graph, n), dim.mul(output, -1)), 0)
    half = dim.floordiv(total, 2)
    return half if mode == "SAME_UPPER" else dim.add(total, dim.mul(half, -1))


def _attribute(node: Node, name: str, n: int, default: int) -> int:
    values: Sequence[int] | None = node.attr(name)
    return int(values[n]) if values else default


class _Transposed:
    """One ConvTranspose being lowered."""

    def __init__(self, node: Node, graph: Graph, target: Target) -> None:
        self.node, self.graph, self.target = node, graph, target
        weights = graph.constants[node.inputs[1]]
        rank = weights.ndim - 2
        self.group = node.attr("group", 1)
        self.channels = weights.shape[0]
        self.filters = weights.shape[1] * self.group
        self.weights = weights.reshape(*weights.shape[:2], *([1] * (2 - rank)), *weights.shape[2:])
        spreads = [self._spread(n) for n in range(rank)]
        if rank == 1:
            spreads.insert(0, Spread(1, 1, 1, 1, 1, 0))
        self.rows, self.columns = spreads
        self.bias, self.epilogue, self.extras = convolution.bias_and_epilogue(node, graph)

    def _spread(self, n: int) -> Spread:
        node, graph = self.node, self.graph
        before = _before(node, graph, n)
        assert not isinstance(before, Dim), "gap() refuses it"
        axis = _axis_of(node, n)
        return Spread(
            size=graph.shape(node.inputs[0])[axis],
            output=graph.shape(node.outputs[0])[axis],
            kernel=int(str(graph.shape(node.inputs[1])[n + 2])),
            stride=_attribute(node, "strides", n, 1),
            dilation=_attribute(node, "dilations", n, 1),
            before=before,
        )

    def steps(self) -> list[step.Step]:
        """A step for each pair of a row phase and a column phase, or for each row phase."""
        rows = phases(self.rows)
        if self._joins_columns():
            return [self._joined(row) for row in rows]
        return [self._phase(row, column) for row in rows for column in phases(self.columns)]

    def _joins_columns(self) -> bool:
        """Whether the outputs of one input column are ``stride`` columns that no other adds to."""
        columns = self.columns
        kinds = self.epilogue.kinds if self.epilogue else ()
        return (
            columns.kernel == columns.stride
            and columns.dilation == 1
            and columns.before == 0
            and columns.output == dim.mul(columns.size, columns.stride)
            and self.group == 1
            and epilogues.VECTOR not in kinds
        )

    def _strides(self, column_step: int) -> tuple[Extent, Extent, Extent]:
        pixel = self.filters * 4
        line = dim.mul(self.columns.output, pixel)
        return dim.mul(self.rows.output, line), dim.mul(line, self.rows.stride), pixel * column_step

    def _offset(self, row: int, column: int) -> Extent:
        return dim.mul(dim.add(dim.mul(self.columns.output, row), column), self.filters * 4)

    def _matrices(self, rows: Sequence[int], columns: Sequence[int]) -> np.ndarray:
        """[group, (row tap, column tap, channel), filter of the group]; zeros without a tap."""
        own, each = self.channels // self.group, self.filters // self.group
        if not rows or not columns:
            taps = max(1, len(rows)) * max(1, len(columns))
            return np.zeros((self.group, taps * own, each), np.float32)
        picked = self.weights[:, :, list(rows)][:, :, :, list(columns)]
        split = picked.reshape(self.group, own, each, len(rows), len(columns))
        return np.ascontiguousarray(split.transpose(0, 3, 4, 1, 2)).reshape(self.group, -1, each)

    def _reads(self, offset: Extent) -> tuple[step.Read, ...]:
        kinds = self.epilogue.kinds if self.epilogue else ()
        return tuple(
            step.Read(value, offset if kind == epilogues.FULL else 0)
            for kind, value in zip(kinds, self.extras, strict=True)
        )

    def _phase(self, row: Phase, column: Phase) -> step.Step:
        offset = self._offset(row.first, column.first)
        return self._lower(
            Geometry(
                self.graph.shape(self.node.inputs[0])[0], row.axis, column.axis,
                self.channels, self.filters, self.group,
            ),
            (self._matrices(row.taps, column.taps), self.bias),
            (offset, self._strides(self.columns.stride)),
        )  # fmt: skip

    def _joined(self, row: Phase) -> step.Step:
        """All columns of one row phase: a filter for each column within the stride."""
        stride = self.columns.stride
        axis = Axis(self.columns.size, self.columns.size, 1)
        parts = [self._matrices(row.taps, [column]) for column in range(stride)]
        bias = None if self.bias is None else np.tile(self.bias, stride)
        geometry = Geometry(
            self.graph.shape(self.node.inputs[0])[0], row.axis, axis,
            self.channels, self.filters * stride, 1,
        )  # fmt: skip
        offset = self._offset(row.first, 0)
        weights = np.concatenate(parts, axis=2)
        return self._lower(geometry, (weights, bias), (offset, self._strides(stride)))

    def _lower(
        self,
        geometry: Geometry,
        constants: tuple[np.ndarray, np.ndarray | None],
        place: tuple[Extent, tuple[Extent, Extent, Extent]],
    ) -> step.Step:
        node, (weights, bias), (offset, strides) = self.node, constants, place
        source = step.Read(node.inputs[0])
        output = step.Write(node.outputs[0], offset)
        name = node.name or node.op
        if depthwise.fits(geometry):
            taps = (geometry.rows.kernel, geometry.columns.kernel)
            filters = weights.reshape(self.channels, *taps)
            made = depthwise.Convolution(
                name, source, output, geometry, filters, bias, strides, self.epilogue,
                self._reads(offset),
            )  # fmt: skip
            return depthwise.lower(made, self.target)
        return direct.lower(
            direct.Convolution(
                name, source, output, geometry, weights, bias, strides, self.epilogue,
                self._reads(offset),
            ),
            self.target,
        )  # fmt: skip
