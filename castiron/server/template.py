"""Binary requests whose JSON was read before: clients send the same head with every tensor.

What the head says is kept for its bytes, so that the next request with it only needs views of the
tensors behind it, and its answer only their bytes. A head with an ``id`` or with values in its
JSON is never kept, nor a long one; a version keeps a few dozen at most. Small ones get a run of
their own, ``fixed.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from castiron.server import values
from castiron.tensor import dtype as dtypes

if TYPE_CHECKING:
    from castiron.server import fixed

_MOST = 64
_MOST_BYTES = 4096


class Place(NamedTuple):
    """Where the bytes of one input lie behind the head."""

    name: str
    dtype: dtypes.DType
    shape: tuple[int, ...]
    begin: int
    end: int
    path: str


@dataclass(slots=True)
class Template:
    """One head; ``answers`` has the heads of its answers by the shapes of their outputs.

    ``fixed`` is its run when it has one of its own; ``served.py`` tries once to make it.
    """

    places: tuple[Place, ...]
    wanted: dict[str, bool]
    timeout_s: float | None
    priority: int | str
    answers: dict[tuple[tuple[int, ...], ...], bytes] = field(default_factory=dict)
    fixed: fixed.Fixed | None = None
    is_tried: bool = False

    @property
    def size_bytes(self) -> int:
        """Bytes of its inputs, which lie one behind the other."""
        return self.places[-1].end if self.places else 0

    def inputs(self, raw: memoryview) -> dict[str, np.ndarray]:
        """Views of the tensors. Raises InputError as for a head that is read."""
        return {
            name: values.from_bytes(raw[begin:end], dtype, shape, path)
            for name, dtype, shape, begin, end, path in self.places
        }

    def remember(self, shapes: tuple[tuple[int, ...], ...], head: bytes) -> None:
        """The head of the answer whose outputs have these shapes."""
        if len(self.answers) < _MOST and len(head) <= _MOST_BYTES:
            self.answers[shapes] = head


class Templates:
    """Those of one version."""

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: dict[tuple[bytes, int], Template] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def find(self, text: bytes, raw_bytes: int) -> Template | None:
        """The template of a head with so many bytes of tensors behind it."""
        return self._kept.get((text, raw_bytes))

    def keep(self, text: bytes, raw_bytes: int, made: Template) -> None:
        """For the next request with this head."""
        if len(text) > _MOST_BYTES:
            return
        if len(self._kept) >= _MOST:
            self._kept.clear()
        self._kept[text, raw_bytes] = made


def of(
    head: Mapping[str, Any], inputs: Mapping[str, np.ndarray], known: Mapping[str, dtypes.DType]
) -> tuple[Place, ...] | None:
    """The places of a head that was read well; None when it cannot stand for another.

    Strings have lengths of their own inside, and are read anew each time.
    """
    if head.get("id"):
        return None
    places, at = [], 0
    for index, item in enumerate(head["inputs"]):
        name, parameters = item["name"], item.get("parameters") or {}
        size, dtype = parameters.get("binary_data_size"), known[name]
        if size is None or dtype is dtypes.STRING:
            return None
        path = f"inputs[{index}].parameters"
        places.append(Place(name, dtype, inputs[name].shape, at, at + size, path))
        at += size
    return tuple(places)
