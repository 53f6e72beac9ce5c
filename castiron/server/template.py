"""What a request says besides its values: clients say the same with every tensor.

Of binary requests it is kept for the bytes of their head, so that the next one only needs views of
the tensors behind it, and its answer only their bytes; JSON is taken apart by ``skeleton.py``. What
has an ``id`` is never kept, nor what is long; a version keeps a few dozen at most. Small requests
get a run of their own, ``fixed.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from castiron.server import kept, values
from castiron.tensor import dtype as dtypes

if TYPE_CHECKING:
    from castiron.server import fixed

_MOST = 64
_MOST_BYTES = 4096


class Place(NamedTuple):
    """One input, and where its bytes lie among those of all; ``path`` is where the request has
    its values.
    """

    name: str
    dtype: dtypes.DType
    shape: tuple[int, ...]
    begin: int
    end: int
    path: str


@dataclass(slots=True)
class Template:
    """One kind of request; ``answers`` has the heads of binary answers by their outputs' shapes.

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

    def listed(self, lists: list[list[Any]]) -> dict[str, np.ndarray]:
        """Arrays of the values in JSON. Raises InputError as for a request that is read."""
        return {
            each.name: values.from_json(data, each.dtype, each.shape, each.path)
            for each, data in zip(self.places, lists, strict=True)
        }

    def remember(self, shapes: tuple[tuple[int, ...], ...], head: bytes) -> None:
        """The head of the answer whose outputs have these shapes."""
        if len(self.answers) < _MOST and len(head) <= _MOST_BYTES:
            self.answers[shapes] = head


class Templates:
    """Those of one version."""

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: kept.Kept[tuple[bytes, int], Template] = kept.Kept(_MOST)

    def __len__(self) -> int:
        return len(self._kept)

    def find(self, text: bytes, raw_bytes: int) -> Template | None:
        """The template of a head with so many bytes of tensors behind it."""
        return self._kept.get((text, raw_bytes))

    def keep(self, text: bytes, raw_bytes: int, made: Template) -> None:
        """For the next request with this head."""
        if len(text) <= _MOST_BYTES:
            self._kept.put((text, raw_bytes), made)


def of(
    head: Mapping[str, Any], inputs: Mapping[str, np.ndarray], known: Mapping[str, dtypes.DType]
) -> tuple[Place, ...] | None:
    """The inputs of a request that was read well; None when it cannot stand for another.

    Strings have lengths of their own inside, and are read anew each time; so is what mixes values
    in its JSON with raw ones.
    """
    if head.get("id"):
        return None
    places, at = [], 0
    are_raw = {"data" not in item for item in head["inputs"]}
    for index, item in enumerate(head["inputs"]):
        name = item["name"]
        dtype, array = known[name], inputs[name]
        if len(are_raw) > 1 or dtype is dtypes.STRING:
            return None
        path = f"inputs[{index}].data" if "data" in item else f"inputs[{index}].parameters"
        places.append(Place(name, dtype, array.shape, at, at + array.nbytes, path))
        at += array.nbytes
    return tuple(places)
