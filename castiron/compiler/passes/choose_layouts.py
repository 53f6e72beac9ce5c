"""Spatial ops run channels-last; transposes are pushed out and cancelled on the way.

One forward walk. Every value is remembered as a *view*: a stored value and the permutation that
leads from it to the value's own axis order. A Transpose only changes the view. A spatial op asks
for its data channels-last and leaves a view that leads back; elementwise ops, Concat, reductions
and others work on stored values as they lie; an op that needs the plain order, and a graph
output, make the view real. A permutation that only moves axes of extent 1 is a Reshape.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from castiron.graph import graph as graphs
from castiron.graph.graph import Graph, Node, Shape, TensorType
from castiron.graph.ops import elementwise
from castiron.tensor import dim as dims

Perm = tuple[int, ...]
Attrs = Mapping[str, Any]

SPATIAL_OPS = ("Conv", "ConvTranspose", "MaxPool", "AveragePool", "LpPool", "LRN", "Resize")
LAST_AXIS_OPS = ("Softmax", "LogSoftmax", "Hardmax", "TopK", "LpNormalization")
REDUCTIONS = (
    "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2",
    "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp",
)  # fmt: skip


def choose_layouts(graph: Graph, precision: str = "default") -> Graph:
    """The graph with spatial ops in attr ``layout="NHWC"`` and as few transposes as found.

    Convolutions also get attr ``precision``.
    """
    return _Walk(graph, precision).run()


@dataclasses.dataclass(frozen=True, slots=True)
class _View:
    """A value as ``Transpose(stored, perm)``."""

    stored: str
    perm: Perm

    def is_plain(self) -> bool:
        return self.perm == tuple(range(len(self.perm)))


class _Walk:
    """The walk's state: nodes written so far, and the view of every value."""

    def __init__(self, graph: Graph, precision: str) -> None:
        self._graph = graph
        self._precision = precision
        self._nodes: list[Node] = []
        self._types = dict(graph.types)
        self._constants = dict(graph.constants)
        self._views: dict[str, _View] = {}
        self._made: dict[tuple[str, Perm], str] = {}

    def run(self) -> Graph:
        for node in self._graph.nodes:
            self._rule(node)(node)
        for value in self._graph.outputs:
            self._settle(value)
        outputs = tuple(self._graph.outputs)
        nodes = graphs.topological(self._nodes, [*self._graph.inputs, *self._constants])
        return graphs.prune(
            self._graph.replace(
                nodes=nodes, types=self._types, constants=self._constants, outputs=outputs
            )
        )

    def _rule(self, node: Node) -> Callable[[Node], None]:
        ranks = [self._rank(value) for value in node.inputs if value]
        if node.op == "Transpose":
            return self._transpose
        if node.op in SPATIAL_OPS and ranks and ranks[0] in (3, 4):
            return self._spatial
        if node.op in LAST_AXIS_OPS:
            return self._last_axis
        by_op = {
            "Concat": self._concat, "Reshape": self._reshape, "Pad": self._pad,
            "Slice": self._slice, "Split": self._split,
        }  # fmt: skip
        if node.op in by_op:
            return by_op[node.op]
        if node.op in REDUCTIONS:
            return self._reduce
        if len(node.outputs) == 1 and elementwise.expression_of(node, self._graph) is not None:
            return self._elementwise
        return self._plain

    # -- views ------------------------------------------------------------------------------

    def _rank(self, value: str) -> int | None:
        shape = self._graph.types[value].shape
        return None if shape is None else len(shape)

    def _view(self, value: str) -> _View:
        if value not in self._views:
            self._views[value] = _View(value, tuple(range(self._rank(value) or 0)))
        return self._views[value]

    def _stored_shape(self, stored: str) -> Shape:
        shape = self._types[stored].shape
        assert shape is not None
        return shape

    def _real(self, value: str, wanted: Perm) -> str:
        """A stored value that equals ``Transpose(value, wanted)``, made once."""
        view = self._view(value)
        perm = tuple(view.perm[axis] for axis in wanted)
        if perm == tuple(range(len(perm))):
            return view.stored
        key = (view.stored, perm)
        if key not in self._made:
            self._made[key] = self._permuted(view.stored, perm)
        return self._made[key]

    def _permuted(self, stored: str, perm: Perm) -> str:
        shape = self._stored_shape(stored)
        name = self._fresh(f"{stored}:{''.join(map(str, perm))}")
        moved = tuple(shape[axis] for axis in perm)
        if stored in self._constants:
            self._constants[name] = np.ascontiguousarray(self._constants[stored].transpose(perm))
            self._types[name] = graphs.constant_type(self._constants[name])
            return name
        self._types[name] = TensorType(self._types[stored].dtype, moved)
        self._nodes.append(self._mover(stored, perm, name))
        return name

    def _mover(self, stored: str, perm: Perm, out: str) -> Node:
        """The node that makes ``out = Transpose(stored, perm)``: a view where it can be one."""
        shape = self._stored_shape(stored)
        wide = [axis for axis in perm if shape[axis] != 1]
        if wide == sorted(wide):
            moved = tuple(shape[axis] for axis in perm)
            return Node("Reshape", (stored,), (out,), {"shape": moved}, f"layout of {stored}")
        return Node("Transpose", (stored,), (out,), {"perm": perm}, f"layout of {stored}")

    def _fresh(self, name: str) -> str:
        while name in self._types:
            name += "'"
        return name

    def _plain_value(self, value: str) -> str:
        if not value or self._graph.types[value].shape is None:
            return value
        return self._real(value, tuple(range(self._rank(value) or 0)))

    def _settle(self, value: str) -> None:
        """Make a graph output real under its own name."""
        view = self._view(value)
        if view.stored == value:
            return
        if view.is_plain():
            self._nodes.append(Node("Identity", (view.stored,), (value,), {}, f"output {value}"))
        else:
            self._nodes.append(self._mover(view.stored, view.perm, value))

    def _emit(
        self, node: Node, inputs: Sequence[str], perm: Perm, attrs: Attrs | None = None
    ) -> None:
        """Write a one-output node whose stored result leads to its value by ``perm``."""
        self._emit_all(node, inputs, [perm], attrs)

    def _emit_all(
        self, node: Node, inputs: Sequence[str], perms: Sequence[Perm], attrs: Attrs | None = None
    ) -> None:
        outputs = []
        for out, perm in zip(node.outputs, perms, strict=True):
            if not out or perm == tuple(range(len(perm))):
                outputs.append(out)
                continue
            shape, name = self._graph.shape(out), self._fresh(f"{out}:stored")
            inverse = _inverse(perm)
            stored = tuple(shape[axis] for axis in inverse)
            self._types[name] = TensorType(self._graph.types[out].dtype, stored)
            self._views[out] = _View(name, perm)
            outputs.append(name)
        changed = node.attrs if attrs is None else attrs
        self._nodes.append(Node(node.op, tuple(inputs), tuple(outputs), changed, node.name))

    # -- rules ------------------------------------------------------------------------------

    def _plain(self, node: Node) -> None:
        self._nodes.append(
            dataclasses.replace(node, inputs=tuple(map(self._plain_value, node.inputs)))
        )

    def _transpose(self, node: Node) -> None:
        view = self._view(node.inputs[0])
        perm = node.attr("perm") or tuple(reversed(range(len(view.perm))))
        self._views[node.outputs[0]] = _View(view.stored, tuple(view.perm[a] for a in perm))

    def _spatial(self, node: Node) -> None:
        rank = self._rank(node.inputs[0]) or 0
        last = (0, *range(2, rank), 1)
        attrs = {**node.attrs, "layout": "NHWC"}
        if node.op == "Conv":
            attrs["precision"] = self._precision
        if node.op == "Resize":
            attrs |= {
                key: tuple(attrs[key][axis] for axis in last)
                for key in ("scales", "sizes")
                if attrs.get(key) is not None
            }
            if attrs.get("roi") is not None:
                ends = (*last, *(axis + rank for axis in last))
                attrs["roi"] = tuple(attrs["roi"][axis] for axis in ends)
        data = self._real(node.inputs[0], last)
        others = [self._plain_value(value) for value in node.inputs[1:]]
        perms = [_inverse(last) for _ in node.outputs]
        self._emit_all(node, [data, *others], perms, attrs)

    def _last_axis(self, node: Node) -> None:
        rank = self._rank(node.inputs[0]) or 0
        axis = int(node.attr("axis", -1)) % rank
        view = self._view(node.inputs[0])
        if view.perm[axis] == rank - 1:
            wanted = _inverse(view.perm)
        else:
            wanted = (*(a for a in range(rank) if a != axis), axis)
        data = self._real(node.inputs[0], wanted)
        others = [self._plain_value(value) for value in node.inputs[1:]]
        perms = [_inverse(wanted) for _ in node.outputs]
        self._emit_all(node, [data, *others], perms, {**node.attrs, "axis": rank - 1})

    def _elementwise(self, node: Node) -> None:
        shape = self._graph.shape(node.outputs[0])
        perm = self._common_perm(node, shape)
        inverse = _inverse(perm)
        inputs = [self._aligned(value, shape, inverse) for value in node.inputs]
        self._emit(node, inputs, perm)

    def _common_perm(self, node: Node, shape: Shape) -> Perm:
        """The permutation that most full-size inputs already have."""
        votes: dict[Perm, int] = {}
        for value in node.inputs:
            if value and value not in self._constants and self._rank(value) == len(shape):
                perm = self._view(value).perm
                is_full = tuple(self._graph.shape(value)) == tuple(shape)
                votes[perm] = votes.get(perm, 0) + (2 if is_full else 0)
        identity = tuple(range(len(shape)))
        return max(votes, key=lambda perm: (votes[perm], perm != identity), default=identity)

    def _aligned(self, value: str, shape: Shape, inverse: Perm) -> str:
        """The input as it must lie beside stored operands of a result with this shape."""
        if not value or all(extent == 1 for extent in self._graph.shape(value)):
            return self._plain_value(value) if value else value
        own = self._graph.shape(value)
        if inverse == tuple(range(len(shape))):
            return self._plain_value(value)
        if len(own) == len(shape):
            return self._real(value, inverse)
        padded = (*(1 for _ in range(len(shape) - len(own))), *own)
        return self._permuted(self._reshaped(self._plain_value(value), padded), inverse)

    def _reshaped(self, stored: str, shape: Shape) -> str:
        name = self._fresh(f"{stored}:{len(shape)}d")
        if stored in self._constants:
            old = self._constants[stored]
            self._constants[name] = old.reshape((1,) * (len(shape) - old.ndim) + old.shape)
            self._types[name] = graphs.constant_type(self._constants[name])
            return name
        self._types[name] = TensorType(self._types[stored].dtype, shape)
        self._nodes.append(Node("Reshape", (stored,), (name,), {"shape": shape}, name))
        return name

    def _concat(self, node: Node) -> None:
        shape = self._graph.shape(node.outputs[0])
        views = [self._view(value) for value in node.inputs if value not in self._constants]
        counts: dict[Perm, int] = {}
        for view in views:
            counts[view.perm] = counts.get(view.perm, 0) + 1
        identity = tuple(range(len(shape)))
        perm = max(counts, key=lambda p: (counts[p], p != identity), default=identity)
        inputs = [self._real(value, _inverse(perm)) for value in node.inputs]
        axis = perm[int(node.attr("axis")) % len(shape)]
        self._emit(node, inputs, perm, {**node.attrs, "axis": axis})

    def _pad(self, node: Node) -> None:
        pads = node.attr("pads")
        view = self._view(node.inputs[0])
        if pads is None or view.is_plain():
            return self._plain(node)
        rank, inverse = len(view.perm), _inverse(view.perm)
        moved = (*(pads[a] for a in inverse), *(pads[a + rank] for a in inverse))
        others = [self._plain_value(value) for value in node.inputs[1:]]
        return self._emit(node, [view.stored, *others], view.perm, {**node.attrs, "pads": moved})

    def _slice(self, node: Node) -> None:
        view = self._view(node.inputs[0])
        axes = node.attr("axes")
        if axes is None or view.is_plain():
            return self._plain(node)
        attrs = {**node.attrs, "axes": tuple(view.perm[axis] for axis in axes)}
        return self._emit(node, [view.stored], view.perm, attrs)

    def _split(self, node: Node) -> None:
        view = self._view(node.inputs[0])
        if node.attr("split") is None or view.is_plain():
            return self._plain(node)
        attrs = {**node.attrs, "axis": view.perm[int(node.attr("axis", 0)) % len(view.perm)]}
        return self._emit_all(node, [view.stored], [view.perm for _ in node.outputs], attrs)

    def _reduce(self, node: Node) -> None:
        view = self._view(node.inputs[0])
        axes = node.attr("axes")
        if axes is None or view.is_plain() or len(node.inputs) > 1:
            return self._plain(node)
        rank = len(view.perm)
        gone = {int(axis) % rank for axis in axes}
        attrs = {**node.attrs, "axes": tuple(sorted(view.perm[axis] for axis in gone))}
        if node.attr("keepdims", 1):
            return self._emit(node, [view.stored], view.perm, attrs)
        left = [view.perm[axis] for axis in range(rank) if axis not in gone]
        perm = tuple(sorted(left).index(axis) for axis in left)
        return self._emit(node, [view.stored], perm, attrs)

    def _reshape(self, node: Node) -> None:
        """A reshape that merges and splits neighbours in stored order works on what is stored."""
        view, shape = self._view(node.inputs[0]), node.attr("shape")
        source = self._graph.types[node.inputs[0]].shape
        if shape is None or source is None or view.is_plain():
            return self._plain(node)
        groups = regroup(source, shape)
        if groups is None:
            return self._plain(node)
        if not all(_are_neighbours(old, view.perm, source) for old, _ in groups):
            view = self._gathered(node.inputs[0], [old for old, _ in groups])
        moved = sorted(groups, key=lambda group: view.perm[group[0][0]])
        units = [axis for axis, extent in enumerate(shape) if extent == 1]
        stored_axes = [*units, *(axis for _, new in moved for axis in new)]
        stored_shape = tuple(shape[axis] for axis in stored_axes)
        perm = _inverse(tuple(stored_axes))
        return self._emit(node, [view.stored], perm, {**node.attrs, "shape": stored_shape})

    def _gathered(self, value: str, groups: Sequence[Sequence[int]]) -> _View:
        """A view in which each group's axes are neighbours, groups in the order of their last."""
        view = self._view(value)
        moved = sorted(groups, key=lambda axes: max(view.perm[axis] for axis in axes))
        axes = [axis for group in moved for axis in group]
        units = [axis for axis in range(len(view.perm)) if axis not in axes]
        wanted = (*units, *axes)
        return _View(self._real(value, wanted), _inverse(wanted))


def regroup(source: Shape, target: Shape) -> list[tuple[list[int], list[int]]] | None:
    """Pairs of axis groups with equal products, in order, or None when none can be proved.

    Axes of extent 1 belong to no group.
    """
    old = [axis for axis, extent in enumerate(source) if extent != 1]
    new = [axis for axis, extent in enumerate(target) if extent != 1]
    groups = []
    while old and new:
        found = _smallest_group([source[a] for a in old], [target[a] for a in new])
        if found is None:
            return None
        groups.append((old[: found[0]], new[: found[1]]))
        old, new = old[found[0] :], new[found[1] :]
    return groups if not old and not new else None


def _smallest_group(source: Sequence[graphs.Extent], target: Sequence[graphs.Extent]) -> (
    tuple[int, int] | None
):  # fmt: skip
    for total in range(2, len(source) + len(target) + 1):
        for taken in range(max(1, total - len(target)), min(len(source), total - 1) + 1):
            if dims.product(source[:taken]) == dims.product(target[: total - taken]):
                return taken, total - taken
    return None


def _are_neighbours(axes: Sequence[int], perm: Perm, shape: Shape) -> bool:
    """Whether the axes lie one behind the other in stored order, units aside."""
    stored = [axis for axis in _inverse(perm) if shape[axis] != 1]
    start = stored.index(axes[0])
    return stored[start : start + len(axes)] == list(axes)


def _inverse(perm: Perm) -> Perm:
    back = [0] * len(perm)
    for position, axis in enumerate(perm):
        back[axis] = position
    return tuple(back)
