"""Ops that the reference evaluator lacks altogether."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
from onnx import helper
from onnx.reference.op_run import OpRun


class GlobalLpPool(OpRun):
    """The p-norm over all spatial axes."""

    def _run(self, x: Any, p: Any = 2) -> tuple[Any, ...]:
        axes = tuple(range(2, x.ndim))
        powers = np.abs(x.astype(np.float64)) ** p
        return ((powers.sum(axis=axes, keepdims=True) ** (1.0 / p)).astype(x.dtype),)


class MaxRoiPool(OpRun):
    """The largest element of each bin of each region [image, x1, y1, x2, y2], ends included."""

    def _run(
        self, x: Any, rois: Any, pooled_shape: Any = None, spatial_scale: Any = 1.0
    ) -> tuple[Any, ...]:
        height, width = pooled_shape
        out = np.zeros((len(rois), x.shape[1], height, width), x.dtype)
        for row, roi in enumerate(rois):
            image = x[int(roi[0])]
            left, top, right, bottom = (round_half_away(v * spatial_scale) for v in roi[1:5])
            rows = _bins(top, bottom, (height, image.shape[1]))
            columns = _bins(left, right, (width, image.shape[2]))
            for (i, (y0, y1)), (j, (x0, x1)) in itertools.product(
                enumerate(rows), enumerate(columns)
            ):
                cells = image[:, y0:y1, x0:x1]
                out[row, :, i, j] = cells.max(axis=(1, 2)) if cells.size else 0
        return (out,)


def round_half_away(value: float) -> int:
    """Halves go away from zero, as C's round does."""
    return int(math.copysign(math.floor(abs(value) + 0.5), value))


def _bins(first: int, last: int, sizes: tuple[int, int]) -> list[tuple[int, int]]:
    """(start, end) of each of ``sizes[0]`` bins from first to last, inside ``sizes[1]`` cells."""
    count, limit = sizes
    step = max(last - first + 1, 1) / count
    return [
        (
            min(max(first + math.floor(at * step), 0), limit),
            min(max(first + math.ceil((at + 1) * step), 0), limit),
        )
        for at in range(count)
    ]


class Multinomial(OpRun):
    """Samples of each row's unnormalised log-probabilities, by the Gumbel trick."""

    def _run(
        self, logits: Any, dtype: Any = 6, sample_size: Any = 1, seed: Any = None
    ) -> tuple[Any, ...]:
        random = np.random.default_rng(None if seed is None else int(np.float32(seed).view("u4")))
        shape = (logits.shape[0], sample_size, logits.shape[1])
        drawn = (logits[:, None, :] + random.gumbel(size=shape)).argmax(axis=2)
        return (drawn.astype(helper.tensor_dtype_to_np_dtype(dtype or 6)),)


OPS = [GlobalLpPool, MaxRoiPool, Multinomial]
