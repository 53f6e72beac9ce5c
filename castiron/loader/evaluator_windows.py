"""Convolutions and pools for the evaluator, as matrix products and window views in numpy.

Same meaning as the reference classes they extend; cases beyond the fast form are left to those.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from onnx.reference.op_run import OpRun

# Above this many bytes of gathered windows, taps are accumulated one by one instead.
_MAX_WINDOW_BYTES = 256 << 20


def pad_amounts(
    extents: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    attrs: tuple[str | None, Sequence[int] | None],
) -> list[tuple[int, int]]:
    """(before, after) for each spatial axis; ``kernel`` is the dilated extent, ``attrs`` is
    (auto_pad, pads). SAME puts the odd cell at the end (UPPER) or at the start (LOWER)."""
    auto, pads = attrs
    rank = len(extents)
    if auto in (None, "NOTSET", ""):
        given = list(pads) if pads else [0] * (2 * rank)
        return [(given[axis], given[axis + rank]) for axis in range(rank)]
    if auto == "VALID":
        return [(0, 0)] * rank
    amounts = []
    for extent, size, stride in zip(extents, kernel, strides, strict=True):
        total = max((math.ceil(extent / stride) - 1) * stride + size - extent, 0)
        small, large = total // 2, total - total // 2
        amounts.append((large, small) if auto == "SAME_LOWER" else (small, large))
    return amounts


def convolve(x: np.ndarray, w: np.ndarray, attrs: dict[str, Any], out_dtype: Any) -> np.ndarray:
    """Grouped convolution of x [n, c, ...] with w [m, c / group, ...] for any rank."""
    rank = x.ndim - 2
    kernel = w.shape[2:]
    strides = attrs.get("strides") or [1] * rank
    dilations = attrs.get("dilations") or [1] * rank
    spread = [(size - 1) * step + 1 for size, step in zip(kernel, dilations, strict=True)]
    pads = pad_amounts(x.shape[2:], spread, strides, (attrs.get("auto_pad"), attrs.get("pads")))
    padded = np.pad(x, [(0, 0), (0, 0), *pads]) if any(map(any, pads)) else x
    out = [
        (extent - size) // step + 1
        for extent, size, step in zip(padded.shape[2:], spread, strides, strict=True)
    ]
    group = attrs.get("group") or 1
    xg = padded.reshape(x.shape[0], group, x.shape[1] // group, *padded.shape[2:])
    wg = w.reshape(group, w.shape[0] // group, *w.shape[1:])
    views = {
        tap: xg[_tap_slices(tap, (strides, dilations, out))]
        for tap in itertools.product(*map(range, kernel))
    }
    result = _accumulate(views, wg, math.prod(out))
    return result.reshape(x.shape[0], w.shape[0], *out).astype(out_dtype, copy=False)


def _tap_slices(
    tap: Sequence[int], walk: tuple[Sequence[int], Sequence[int], Sequence[int]]
) -> Any:
    return (
        ...,
        *(
            slice(at * dilation, at * dilation + (size - 1) * stride + 1, stride)
            for at, stride, dilation, size in zip(tap, *walk, strict=True)
        ),
    )


def _accumulate(
    views: dict[tuple[int, ...], np.ndarray], wg: np.ndarray, pixels: int
) -> np.ndarray:
    """Sum over taps of w[tap] @ x[tap]: in one product where the gathered windows are small."""
    n, group, depth = next(iter(views.values())).shape[:3]
    size = n * group * depth * pixels * len(views) * wg.dtype.itemsize
    flat = wg.reshape(group, wg.shape[1], depth, -1)
    if size <= _MAX_WINDOW_BYTES:
        columns = np.stack([v.reshape(n, group, depth, pixels) for v in views.values()], axis=3)
        columns = columns.reshape(n, group, depth * len(views), pixels)
        return np.asarray(flat.reshape(group, wg.shape[1], -1) @ columns)
    total = np.zeros((n, group, wg.shape[1], pixels), wg.dtype)
    for index, view in enumerate(views.values()):
        total += flat[..., index] @ view.reshape(n, group, depth, pixels)
    return total


def _work_dtype(dtype: np.dtype) -> Any:
    return np.float64 if dtype.itemsize > 4 or dtype.kind in "iu" else np.float32


class Conv(OpRun):
    """Any rank, groups and dilations; 16-bit floats are accumulated in 32 bits."""

    def _run(self, *operands: Any, **attrs: Any) -> tuple[Any, ...]:
        x, w, bias = (*operands, None)[:3]
        work = _work_dtype(x.dtype)
        result = convolve(x.astype(work), w.astype(work), attrs, work)
        if bias is not None:
            result = result + bias.astype(work).reshape(1, -1, *[1] * (x.ndim - 2))
        return (result.astype(x.dtype),)


class ConvInteger(OpRun):
    """Exact: products of 8-bit integers are summed in 64-bit floats."""

    def _run(self, *operands: Any, **attrs: Any) -> tuple[Any, ...]:
        x, w = (operand.astype(np.float64) for operand in operands[:2])
        x_zero, w_zero = (*operands[2:], None, None)[:2]
        if x_zero is not None:
            x = x - np.asarray(x_zero).astype(np.float64)
        if w_zero is not None:
            zero = np.asarray(w_zero).astype(np.float64)
            w = w - (zero.reshape(-1, *[1] * (w.ndim - 1)) if zero.ndim == 1 else zero)
        return (convolve(x, w, attrs, np.float64).astype(np.int32),)


class _Pool:
    """The windows of one pooling node over one input."""

    __slots__ = ("axes", "extra", "pads", "spread", "steps")

    def __init__(self, extents: Sequence[int], attrs: dict[str, Any]) -> None:
        kernel = attrs["kernel_shape"]
        rank = len(kernel)
        strides = attrs.get("strides") or [1] * rank
        dilations = attrs.get("dilations") or [1] * rank
        self.spread = [(size - 1) * step + 1 for size, step in zip(kernel, dilations, strict=True)]
        given = (attrs.get("auto_pad"), attrs.get("pads"))
        self.pads = pad_amounts(extents, self.spread, strides, given)
        self.axes = tuple(range(2 + rank, 2 + 2 * rank))
        self.extra = [(0, 0)] * rank
        if attrs.get("ceil_mode"):
            sizes = zip(extents, self.spread, strides, self.pads, strict=True)
            self.extra = [(0, _ceil_extra(*size)) for size in sizes]
        whole = (slice(None), slice(None))
        self.steps = (
            *whole,
            *(slice(None, None, stride) for stride in strides),
            *(slice(None, None, dilation) for dilation in dilations),
        )

    def view(self, x: np.ndarray, fill: Any, beyond: Any = None) -> np.ndarray:
        """All windows [n, c, out axes, kernel axes]; ``fill`` in the padding, ``beyond`` past it."""
        padded = np.pad(x, [(0, 0), (0, 0), *self.pads], constant_values=fill)
        beyond = fill if beyond is None else beyond
        padded = np.pad(padded, [(0, 0), (0, 0), *self.extra], constant_values=beyond)
        spatial = tuple(range(2, x.ndim))
        return sliding_window_view(padded, self.spread, axis=spatial)[self.steps]


def _ceil_extra(extent: int, spread: int, stride: int, pads: tuple[int, int]) -> int:
    """Cells past the padding that the last window of ceil_mode needs; it must start before."""
    total = extent + sum(pads)
    out = -(-(total - spread) // stride) + 1
    if (out - 1) * stride >= extent + pads[0]:
        out -= 1
    return max((out - 1) * stride + spread - total, 0)


class MaxPool(OpRun):
    """Windows that lie wholly in the padding give the lowest value."""

    def _run(self, x: Any, **attrs: Any) -> tuple[Any, ...]:
        pool = _Pool(x.shape[2:], attrs)
        lowest = -np.inf if x.dtype.kind not in "iu" else np.iinfo(x.dtype).min
        view = pool.view(x, lowest)
        top = view.max(axis=pool.axes)
        if len(self.output) < 2:
            return (top,)
        order: Any = "F" if attrs.get("storage_order") else "C"
        places = np.arange(math.prod(x.shape[2:])).reshape(x.shape[2:], order=order)
        images = np.arange(x.shape[0] * x.shape[1]).reshape(*x.shape[:2], *[1] * places.ndim)
        found = pool.view(np.broadcast_to(places, (1, 1, *places.shape)), -1)
        flat = view.reshape(*top.shape, -1)
        where = flat.argmax(axis=-1)[..., None]
        spots = np.broadcast_to(found.reshape(1, 1, *top.shape[2:], -1), flat.shape)
        indices = np.take_along_axis(spots, where, axis=-1)[..., 0] + images * places.size
        return top, indices.astype(np.int64)


class AveragePool(OpRun):
    """The divisor counts the padding only when asked, and never what ceil_mode adds."""

    def _run(self, x: Any, **attrs: Any) -> tuple[Any, ...]:
        pool = _Pool(x.shape[2:], attrs)
        total = pool.view(x, 0).sum(axis=pool.axes, dtype=_work_dtype(x.dtype))
        inside = 1 if attrs.get("count_include_pad") else 0
        ones = np.ones((1, 1, *x.shape[2:]), np.float32)
        count = pool.view(ones, inside, beyond=0).sum(axis=pool.axes)
        return ((total / count).astype(x.dtype),)


OPS = [Conv, ConvInteger, MaxPool, AveragePool]
