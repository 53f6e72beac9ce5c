"""Ops where the reference evaluator is wrong, too narrow or too slow, written anew in numpy.

Each says what it mends. Base classes only lend the op's schema.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun
from onnx.reference.ops import op_loop, op_scan


class GatherElements(OpRun):
    """For any extents; the reference stops at 64 rows and at indices smaller than the data."""

    def _run(self, data: Any, indices: Any, axis: Any = None) -> tuple[Any, ...]:
        axis = (axis or 0) % data.ndim
        window = tuple(
            slice(None) if other == axis else slice(extent)
            for other, extent in enumerate(indices.shape)
        )
        wrapped = np.where(indices < 0, indices + data.shape[axis], indices)
        return (np.take_along_axis(data[window], wrapped, axis),)


class OneHot(OpRun):
    """Accepts a depth of shape [1], as exporters write it."""

    def _run(self, indices: Any, depth: Any, values: Any, axis: Any = -1) -> tuple[Any, ...]:
        size = int(np.asarray(depth).reshape(-1)[0])
        indices = np.asarray(indices)
        axis = axis % (indices.ndim + 1)
        wrapped = np.where(indices < 0, indices + size, indices)
        steps = np.arange(size).reshape(-1, *[1] * (indices.ndim - axis))
        return (np.where(np.expand_dims(wrapped, axis) == steps, values[1], values[0]),)


class LRN(OpRun):
    """Walks all channels; the reference walks as many as there are images."""

    def _run(
        self, x: Any, alpha: Any = None, beta: Any = None, bias: Any = None, size: Any = None
    ) -> tuple[Any, ...]:
        before, after = (size - 1) // 2, math.ceil((size - 1) / 2)
        pads = [(0, 0), (before, after), *[(0, 0)] * (x.ndim - 2)]
        squares = np.pad(np.square(x), pads)
        channels = x.shape[1]
        total = sum(squares[:, at : at + channels] for at in range(size))
        return ((x / (bias + alpha / size * total) ** beta).astype(x.dtype),)


class GlobalMaxPool(OpRun):
    """Right for any rank; the reference reduces the wrong axes but for rank 4."""

    def _run(self, x: Any) -> tuple[Any, ...]:
        return (x.max(axis=tuple(range(2, x.ndim)), keepdims=True),)


_SCATTERS = {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}


def _scatter(data: Any, index: tuple[Any, ...], updates: Any, reduction: str | None) -> Any:
    result = np.copy(data)
    if reduction in _SCATTERS:
        _SCATTERS[reduction].at(result, index, updates)
    else:
        result[index] = updates
    return result


class ScatterElements(OpRun):
    """All elements at once."""

    def _run(
        self, data: Any, indices: Any, updates: Any, axis: Any = 0, reduction: Any = None
    ) -> tuple[Any, ...]:
        index = list(np.ogrid[tuple(slice(extent) for extent in indices.shape)])
        axis = (axis or 0) % data.ndim
        index[axis] = np.where(indices < 0, indices + data.shape[axis], indices)
        return (_scatter(data, tuple(index), updates, reduction),)


class ScatterND(OpRun):
    """All slices at once."""

    def _run(self, data: Any, indices: Any, updates: Any, reduction: Any = None) -> tuple[Any, ...]:
        index = tuple(np.moveaxis(indices, -1, 0))
        return (_scatter(data, index, updates, reduction),)


class MatMulInteger(OpRun):
    """Through 64-bit floats, which hold every sum of products of 8-bit integers exactly."""

    def _run(
        self, a: Any, b: Any, a_zero_point: Any = None, b_zero_point: Any = None
    ) -> tuple[Any, ...]:
        left, right = a.astype(np.float64), b.astype(np.float64)
        if a_zero_point is not None:
            zero = np.asarray(a_zero_point).astype(np.float64)
            left = left - (zero[..., None] if zero.ndim == 1 and zero.size > 1 else zero)
        if b_zero_point is not None:
            right = right - np.asarray(b_zero_point).astype(np.float64)
        return ((left @ right).astype(np.int64).astype(np.int32),)


class ConvTranspose(OpRun):
    """One product for each tap, groups included; output_padding and output_shape for any rank."""

    def _run(self, x: Any, w: Any, b: Any = None, **attrs: Any) -> tuple[Any, ...]:
        work = np.float64 if x.dtype == np.float64 else np.float32
        rank, group = x.ndim - 2, attrs.get("group") or 1
        kernel = w.shape[2:]
        strides = attrs.get("strides") or [1] * rank
        dilations = attrs.get("dilations") or [1] * rank
        full = [
            (extent - 1) * stride + (size - 1) * dilation + 1
            for extent, stride, size, dilation in zip(
                x.shape[2:], strides, kernel, dilations, strict=True
            )
        ]
        crops = _transposed_crops(x.shape[2:], full, attrs)
        room = [max(size, at + out) for size, (at, out) in zip(full, crops, strict=True)]
        n, depth = x.shape[0], x.shape[1] // group
        columns = x.astype(work).reshape(n, group, depth, -1)
        weights = w.astype(work).reshape(group, depth, w.shape[1], *kernel)
        total = np.zeros((n, group, w.shape[1], *room), work)
        for tap in itertools.product(*map(range, kernel)):
            part = np.swapaxes(weights[(..., *tap)], 1, 2) @ columns
            window: Any = (
                ...,
                *(
                    slice(at * dilation, at * dilation + (extent - 1) * stride + 1, stride)
                    for at, dilation, extent, stride in zip(
                        tap, dilations, x.shape[2:], strides, strict=True
                    )
                ),
            )
            total[window] += part.reshape(n, group, w.shape[1], *x.shape[2:])
        total = total.reshape(n, group * w.shape[1], *room)
        inside: Any = (..., *(slice(at, at + out) for at, out in crops))
        total = total[inside]
        if b is not None:
            total = total + b.astype(work).reshape(1, -1, *[1] * rank)
        return (total.astype(x.dtype),)


def _transposed_crops(
    extents: tuple[int, ...], full: list[int], attrs: dict[str, Any]
) -> list[tuple[int, int]]:
    """(start, length) of the output inside the full transposed result, for each axis."""
    rank = len(extents)
    strides = attrs.get("strides") or [1] * rank
    extra = attrs.get("output_padding") or [0] * rank
    auto, wanted, pads = attrs.get("auto_pad"), attrs.get("output_shape"), attrs.get("pads")
    if wanted is not None:
        wanted = list(wanted)[-rank:]
    elif auto in ("SAME_UPPER", "SAME_LOWER"):
        wanted = [extent * stride for extent, stride in zip(extents, strides, strict=True)]
    if wanted is None:
        given = list(pads or [0] * (2 * rank))
        return [
            (given[axis], full[axis] + extra[axis] - given[axis] - given[axis + rank])
            for axis in range(rank)
        ]
    crops = []
    for axis in range(rank):
        total = max(full[axis] + extra[axis] - wanted[axis], 0)
        small = total // 2
        start = small if auto == "SAME_UPPER" else total - small
        crops.append((start, wanted[axis]))
    return crops


class Loop(op_loop.Loop):
    """Carried values win over captured ones, and scalars stack to one axis."""

    body: Any
    _run_body: Any

    def _run(self, M: Any, cond: Any, *args: Any, context: Any = None, **_: Any) -> tuple[Any, ...]:  # noqa: N803
        names = self.body.input_names
        state = list(args)
        scans: list[list[Any]] = [[] for _ in range(self.K)]
        going, step = cond is None or bool(np.asarray(cond).all()), 0
        limit = None if M is None else int(np.asarray(M).reshape(-1)[0])
        while going and (limit is None or step < limit):
            feeds = {**(context or {}), **dict(zip(names[2:], state, strict=False))}
            feeds[names[0]], feeds[names[1]] = np.asarray(step, np.int64), np.asarray(going)
            found = self._run_body(feeds)
            going = bool(np.asarray(found[0]).all())
            state = list(found[1 : 1 + self.N])
            for kept, value in zip(scans, found[1 + self.N :], strict=True):
                kept.append(value)
            step += 1
        stacked = [np.stack(kept) if kept else np.zeros((0,), np.float32) for kept in scans]
        return self._check_and_fix_outputs((*state, *stacked))


class Scan(op_scan.Scan):
    """Any axes and directions; the reference knows axis 0 and forward only."""

    body: Any
    num_scan_inputs: int
    scan_input_axes: Any
    scan_input_directions: Any
    scan_output_axes: Any
    scan_output_directions: Any
    _run_body: Any

    def __init__(self, onnx_node: Any, run_params: Any) -> None:
        OpRun.__init__(self, onnx_node, run_params)

    def _run(self, *args: Any, context: Any = None, **_: Any) -> tuple[Any, ...]:
        names_in, names_out = self.body.input_names, self.body.output_names
        count = self.num_scan_inputs
        num_states = len(args) - count
        slices = [
            np.moveaxis(array, axis, 0)[:: -1 if reverse else 1]
            for array, axis, reverse in zip(
                args[num_states:],
                self.scan_input_axes or [0] * count,
                self.scan_input_directions or [0] * count,
                strict=True,
            )
        ]
        state = list(args[:num_states])
        scans: list[list[Any]] = [[] for _ in names_out[num_states:]]
        for step in range(slices[0].shape[0]):
            feeds = {**(context or {}), **dict(zip(names_in, state, strict=False))}
            feeds.update(zip(names_in[num_states:], (part[step] for part in slices), strict=True))
            found = self._run_body(feeds)
            state = list(found[:num_states])
            for kept, value in zip(scans, found[num_states:], strict=True):
                kept.append(value)
        return self._check_and_fix_outputs((*state, *self._stacked(scans)))

    def _stacked(self, scans: list[list[Any]]) -> list[Any]:
        count = len(scans)
        axes = self.scan_output_axes or [0] * count
        directions = self.scan_output_directions or [0] * count
        return [
            np.stack(kept[:: -1 if reverse else 1], axis=axis)
            for kept, axis, reverse in zip(scans, axes, directions, strict=True)
        ]


OPS = [
    ConvTranspose, GatherElements, GlobalMaxPool, LRN, Loop, MatMulInteger, OneHot, Scan,
    ScatterElements, ScatterND,
]  # fmt: skip
