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
from onnx.reference.ops import op_average_pool, op_conv, op_conv_integer, op_max_pool

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


def convolve(
    x: np.ndarray, w: np.ndarray, attrs: dict[str, Any], out_dtype: Any
) -> np.ndarray:
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
        tap: xg[(..., *_tap_slices(tap, (strides, dilations, out)))]
        for tap in itertools.product(*map(range, kernel))
    }
    result = _accumulate(views, wg, math.prod(out))
    return result.reshape(x.shape[0], w.shape[0], *out).astype(out_dtype, copy=False)


def _tap_slices(
    tap: Sequence[int], walk: tuple[Sequence[int], Sequence[int], Sequence[int]]
) -> tuple[slice, ...]:
    return tuple(
        slice(at * dilation, at * dilation + (size - 1) * stride + 1, stride)
        for at, stride, dilation, size in zip(tap, *walk, strict=True)
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
        return flat.reshape(group, wg.shape[1], -1) @ columns
    total = np.zeros((n, group, wg.shape[1], pixels), wg.dtype)
    for index, view in enumerate(views.values()):
        total += flat[..., index] @ view.reshape(n, group, depth, pixels)
    return total


def _work_dtype(dtype: np.dtype) -> Any:
    return np.float64 if dtype.itemsize > 4 or dtype.kind in "iu" else np.float32


class Conv(op_conv.Conv):  # type: ignore[misc]
    """Any rank, groups and dilations; 16-bit floats are accumulated in 32 bits."""

    def _run(self, X: Any, W: Any, B: Any = None, **attrs: Any) -> tuple[Any, ...]:  # noqa: N803
        work = _work_dtype(X.dtype)
        result = convolve(X.astype(work), W.astype(work), attrs, work)
        if B is not None:
            result = result + B.astype(work).reshape(1, -1, *[1] * (X.ndim - 2))
        return (result.astype(X.dtype),)


class ConvInteger(op_conv_integer.ConvInteger):  # type: ignore[misc]
    """Exact: products of 8-bit integers are summed in 64-bit floats."""

    def _run(
        self, X: Any, W: Any, x_zero_point: Any = None, w_zero_point: Any = None, **attrs: Any  # noqa: N803
    ) -> tuple[Any, ...]:
        x, w = X.astype(np.float64), W.astype(np.float64)
        if x_zero_point is not None:
            x = x - np.asarray(x_zero_point).astype(np.float64)
        if w_zero_point is not None:
            zero = np.asarray(w_zero_point).astype(np.float64)
            w = w - (zero.reshape(-1, *[1] * (w.ndim - 1)) if zero.ndim == 1 else zero)
        return (convolve(x, w, attrs, np.float64).astype(np.int32),)


def _windows(
    x: np.ndarray, attrs: dict[str, Any], fill: Any
) -> tuple[np.ndarray, tuple[int, ...]]:
    """All pooling windows as a view [..., out axes, kernel axes], and the kernel axes."""
    kernel = attrs["kernel_shape"]
    rank = len(kernel)
    strides = attrs.get("strides") or [1] * rank
    dilations = attrs.get("dilations") or [1] * rank
    spread = [(size - 1) * step + 1 for size, step in zip(kernel, dilations, strict=True)]
    pads = pad_amounts(x.shape[2:], spread, strides, (attrs.get("auto_pad"), attrs.get("pads")))
    padded = np.pad(x, [(0, 0), (0, 0), *pads], constant_values=fill)
    view = sliding_window_view(padded, spread, axis=tuple(range(2, 2 + rank)))
    steps = (*(slice(None, None, s) for s in strides), *(slice(None, None, d) for d in dilations))
    return view[(slice(None), slice(None), *steps)], tuple(range(2 + rank, 2 + 2 * rank))


class MaxPool(op_max_pool.MaxPool):  # type: ignore[misc]
    """One output without ceil_mode; the rest as in the reference."""

    def _run(self, x: Any, **attrs: Any) -> tuple[Any, ...]:
        if len(self.output) > 1 or attrs.get("ceil_mode"):
            return super()._run(x, **attrs)  # type: ignore[no-any-return]
        lowest = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
        view, axes = _windows(x, attrs, lowest)
        return (view.max(axis=axes),)


class AveragePool(op_average_pool.AveragePool_19):  # type: ignore[misc]
    """Without ceil_mode; the divisor counts the padding only when asked."""

    def _run(self, x: Any, **attrs: Any) -> tuple[Any, ...]:
        if attrs.get("ceil_mode"):
            return super()._run(x, **attrs)  # type: ignore[no-any-return]
        view, axes = _windows(x, attrs, 0)
        total = view.sum(axis=axes, dtype=_work_dtype(x.dtype))
        if attrs.get("count_include_pad"):
            count: Any = math.prod(attrs["kernel_shape"])
        else:
            count = _windows(np.ones((1, 1, *x.shape[2:]), x.dtype), attrs, 0)[0].sum(axis=axes)
        return ((total / count).astype(x.dtype),)


OPS = [Conv, ConvInteger, MaxPool, AveragePool]
