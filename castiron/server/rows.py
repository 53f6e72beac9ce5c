"""Which requests of a model may share a run: put together along axis 0, and taken apart again.

A model qualifies by its signature when every tensor's first dim is one and the same symbol. That
does not prove that its rows are independent (a mean over axis 0 has the same signature), so
``probe.py`` tries it out before anything is merged. When runs merge is the lane's to decide.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import numpy as np

from castiron.tensor import signature as signatures

Arrays = Mapping[str, np.ndarray]


class Rows:
    """The row axis of one model."""

    __slots__ = ("_specs",)

    def __init__(self, signature: signatures.Signature) -> None:
        self._specs = signature.inputs

    @classmethod
    def of(cls, signature: signatures.Signature) -> Rows | None:
        """None for a model whose requests can never be merged."""
        specs = (*signature.inputs, *signature.outputs)
        firsts = {spec.dims[0] if spec.dims else 0 for spec in specs}
        is_one = len(firsts) == 1 and isinstance(next(iter(firsts)), str)
        return cls(signature) if is_one and signature.inputs else None

    def count(self, inputs: Arrays) -> int | None:
        """How many rows the inputs have; None when they do not fit the model or each other.

        Those that do not fit run alone: the Instance tells their client what is wrong, and no
        other request is in the run that fails.
        """
        found: int | None = None
        for spec in self._specs:
            shape = inputs[spec.name].shape
            if len(shape) != len(spec.dims) or (found is not None and shape[0] != found):
                return None
            found = shape[0]
            for dim, extent in zip(spec.dims[1:], shape[1:], strict=True):
                if dim != extent and isinstance(dim, int):
                    return None
        return found

    def key(self, inputs: Arrays, wanted: Hashable) -> Hashable:
        """Requests with equal keys may share a run."""
        return wanted, *(inputs[spec.name].shape[1:] for spec in self._specs)


def merge(requests: Sequence[Arrays]) -> Arrays:
    """One request of all their rows, in order."""
    if len(requests) == 1:
        return requests[0]
    return {name: np.concatenate([each[name] for each in requests]) for name in requests[0]}


def cut(arrays: Arrays, begin: int, end: int) -> dict[str, np.ndarray]:
    """Views of these rows."""
    return {name: array[begin:end] for name, array in arrays.items()}


def counts(outputs: Arrays) -> list[int]:
    """The leading extent of each output; -1 for a scalar, which has no rows."""
    return [array.shape[0] if array.ndim else -1 for array in outputs.values()]
