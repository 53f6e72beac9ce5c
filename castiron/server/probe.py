"""Whether rows of a model are independent of each other: tried out before requests are merged.

Runs three rows together, and the same rows apart. If their outputs differ by more than rounding,
a row depends on its neighbours, and merging would give clients wrong answers. Runs on the lane,
before the version answers, so it also warms the version up.
"""

from __future__ import annotations

import asyncio
import math
from typing import Any

import numpy as np

from castiron import errors
from castiron.registry import supply
from castiron.server import rows
from castiron.tensor import dtype as dtypes
from castiron.tensor import elements
from castiron.tensor import signature as signatures

_ROWS = 3
# What symbols other than the rows may be; the first that the model takes is used.
_EXTENTS = (16, 8, 32, 64, 128, 224, 1)
_MOST_ELEMENTS = 1 << 22
# Kernels may sum in another order for another number of rows; a row that depends on its
# neighbours differs by far more than this.
_TOLERANCE = 0.02
_PATIENCE_S = 60.0


async def are_independent(instance: supply.Instance, lane: Any) -> bool | None:
    """True or False as the runs say; None when no inputs were found that the model takes."""
    for extent in _EXTENTS:
        inputs = _inputs(instance.signature, extent)
        if inputs is None:
            continue
        try:
            async with asyncio.timeout(_PATIENCE_S):
                together = await run(instance, inputs, lane)
                first = await run(instance, rows.cut(inputs, 0, 2), lane)
                last = await run(instance, rows.cut(inputs, 2, _ROWS), lane)
        except (errors.CastironError, TimeoutError):
            continue
        return all(_agree(together[name], first[name], last[name]) for name in together)
    return None


def try_out(instance: supply.Instance) -> bool:
    """Run it once, on this thread; False when no inputs were found that it takes."""
    for extent in _EXTENTS:
        inputs = _inputs(instance.signature, extent)
        if inputs is None:
            continue
        try:
            instance.run(rows.cut(inputs, 0, 1))
        except errors.CastironError:
            continue
        return True
    return False


async def run(instance: supply.Instance, inputs: rows.Arrays, lane: Any) -> rows.Arrays:
    """One run, awaited. Raises what it fails with."""
    ended: asyncio.Future[rows.Arrays] = asyncio.get_running_loop().create_future()

    def on_done(outputs: rows.Arrays | None, error: Exception | None) -> None:
        if ended.done():
            return
        if error is not None:
            ended.set_exception(error)
        else:
            assert outputs is not None
            ended.set_result(outputs)

    instance.start(inputs, lane, on_done)
    return await ended


def _inputs(signature: signatures.Signature, extent: int) -> dict[str, np.ndarray] | None:
    """Random inputs of three rows with every other symbol at ``extent``; None when too large."""
    random = np.random.default_rng(5)
    found: dict[str, np.ndarray] = {}
    for spec in signature.inputs:
        shape = (_ROWS, *(dim if isinstance(dim, int) else extent for dim in spec.dims[1:]))
        if math.prod(shape) > _MOST_ELEMENTS:
            return None
        found[spec.name] = _values(spec.dtype, shape, random)
    return found


def _values(dtype: dtypes.DType, shape: tuple[int, ...], random: np.random.Generator) -> np.ndarray:
    if dtype is dtypes.STRING:
        words = random.integers(0, 2, shape)
        return np.where(words == 1, "a", "b").astype(object)
    if dtype.is_float:
        return random.random(shape).astype(elements.numpy_dtype(dtype))
    # Integers are often positions in a table; 0 and 1 are in every table.
    return random.integers(0, 2, shape).astype(elements.numpy_dtype(dtype))


def _agree(together: np.ndarray, first: np.ndarray, last: np.ndarray) -> bool:
    shapes = [(_ROWS, *array.shape[1:]) for array in (together, first, last) if array.ndim]
    if len(shapes) < _ROWS or len(set(shapes)) > 1:
        return False
    if (together.shape[0], first.shape[0], last.shape[0]) != (_ROWS, 2, 1):
        return False
    apart = np.concatenate([first, last])
    if together.dtype.kind in "OSUbiu":
        return bool(np.array_equal(together, apart))
    one, other = together.astype(np.float64), apart.astype(np.float64)
    scale = float(np.max(np.abs(other), initial=0.0, where=np.isfinite(other)))
    return bool(np.allclose(one, other, rtol=_TOLERANCE, atol=_TOLERANCE * scale, equal_nan=True))
