"""Runs of built models in memory that shows what it held before, and ends beside fences.

`run` gives every input, output and arena `fenced.Memory` of its own, twice: with the fences on
either side and another pattern in all that is not written yet. A model that lets through what
somebody left in memory answers differently; one that reads or writes outside is stopped.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import castiron
from castiron import errors
from castiron.executable import placement
from castiron.runtime import pool, views
from castiron.tensor import dtype as dtypes
from tests import fenced

Outputs = dict[str, np.ndarray]


class _Arena:
    """What `Pool.rent` gives, with fences."""

    def __init__(self, size_bytes: int, side: fenced.Side) -> None:
        self._memory = fenced.Memory(size_bytes, side, placement.ALIGN_BYTES)
        self.address = self._memory.address


def run(instance: castiron.Instance, feeds: Mapping[str, np.ndarray]) -> Outputs | str:
    """The outputs, the same in both memories; or what the InputError says that refuses them.

    The instance must run on one thread: a forked process has no others.
    """
    what = ", ".join(f"{name} {array.shape}" for name, array in feeds.items())
    first, second = fenced.survives(
        lambda: [_run_beside(instance, feeds, side) for side in fenced.SIDES],
        f"{instance.path} of {what}",
    )
    if isinstance(first, str) or isinstance(second, str):
        assert first == second
        return first
    for name, output in first.items():
        same = output.tobytes() == second[name].tobytes()
        assert same, f"{instance.path} of {what}: {name} shows what was in memory before"
    return first


def _run_beside(
    instance: castiron.Instance, feeds: Mapping[str, np.ndarray], side: fenced.Side
) -> Outputs | str:
    """One run in the child, whose pool and views it may change: nobody else uses them."""

    def rent(_pool: pool.Pool, size_bytes: int) -> _Arena:
        return _Arena(size_bytes, side)

    def empty(dtype: str, shape: tuple[int, ...]) -> views.View:
        count = int(np.prod(shape, dtype=object))
        memory = fenced.Memory(count * dtypes.named(dtype).size_bytes, side)
        array = memory.view(dtype).reshape(shape)
        return views.View(memory.address, dtype, shape, array)

    child: Any = pool.Pool
    child.rent, child.give_back = rent, lambda _pool, _block: None
    views.empty = empty
    placed = {name: empty(array.dtype.name, array.shape) for name, array in feeds.items()}
    for name, array in feeds.items():
        placed[name].owner[...] = array
    try:
        outputs = instance.run({name: view.owner for name, view in placed.items()})
    except errors.InputError as error:
        return str(error)
    return {name: np.array(output) for name, output in outputs.items()}
