"""Whether the values of a request or a reply are what the contract says, tensor by tensor.

One pass for the least and the greatest value of each tensor that has a constraint; only where
something is wrong, its place is looked for. Shapes and datatypes are the server's to check
before. numpy is imported when the first tensor is looked at.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from castiron.contract import model
from castiron.tensor import dtype as dtypes
from castiron.tensor import elements

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, slots=True)
class Fault:
    """One value that the contract does not allow."""

    path: str
    """Such as ``inputs.image[0][2][5]``; the first such value of its tensor."""

    message: str
    """What was expected and what was found."""

    row: int | None
    """The index along the first dim, which is the item of a batch; None where there is none."""

    def __str__(self) -> str:
        """As it is told to clients."""
        return f"{self.path}: {self.message}"


class Validator:
    """The constraints of one side of a contract, by tensor; those without any cost nothing."""

    __slots__ = ("_constrained", "_side")

    def __init__(self, side: str, tensors: Sequence[model.Tensor]) -> None:
        self._side = side
        self._constrained = {tensor.name: tensor for tensor in tensors if _is_bound(tensor)}

    def faults(self, values: Mapping[str, np.ndarray]) -> list[Fault]:
        """The first fault of each kind in each tensor; tensors that are not there have none."""
        return [
            fault
            for name, tensor in self._constrained.items()
            if name in values
            for fault in _faults(tensor, values[name], f"{self._side}.{name}")
        ]


def of_inputs(contract: model.Contract) -> Validator:
    """For the tensors of requests."""
    return Validator("inputs", contract.input)


def of_outputs(contract: model.Contract) -> Validator:
    """For the tensors of replies."""
    return Validator("outputs", contract.output)


def _is_bound(tensor: model.Tensor) -> bool:
    return bool(
        tensor.range is not None
        or tensor.allowed
        or "refuse" in {tensor.nan, tensor.infinity}
        or tensor.max_bytes is not None
        or any(tensor.max_dims)
    )


def _faults(tensor: model.Tensor, values: np.ndarray, path: str) -> Iterator[Fault]:
    for axis, (most, dim) in enumerate(zip(tensor.max_dims, values.shape, strict=False)):
        if most and dim > most:
            yield Fault(f"{path}.shape[{axis}]", f"expected at most {most}, found {dim}", None)
    if not values.size:
        return
    if tensor.datatype == dtypes.STRING.oip:
        yield from _strings(tensor, values, path)
        return
    if tensor.datatype in {dtypes.BFLOAT16.oip, dtypes.FLOAT16.oip}:
        import numpy as np

        with np.errstate(invalid="ignore"):  # a signalling NaN
            values = values.astype(np.float32)
    yield from _numbers(tensor, values, path)


def _numbers(tensor: model.Tensor, values: np.ndarray, path: str) -> Iterator[Fault]:
    import numpy as np

    is_float = values.dtype.kind == "f"
    if is_float:
        yield from _special(tensor, values, path)
    if tensor.range is not None:
        low, high = tensor.range
        if is_float:
            low, high = _held(tensor, (low, high)).tolist()
        # Comparisons with NaN are false, so that NaN is the business of its own policy.
        if not (is_float and _is_inside(values, low, high)):
            wanted = f"expected {tensor.range[0]} to {tensor.range[1]}"
            yield from _first(_outside(values, low, high), values, path, wanted)
    if tensor.allowed:
        known = _held(tensor, tensor.allowed) if is_float else np.array(tensor.allowed)
        shown = ", ".join(map(str, tensor.allowed[:8]))
        is_other = ~np.isin(values, known.astype(values.dtype))
        if is_float:
            is_other &= ~np.isnan(values)
        yield from _first(is_other, values, path, f"expected one of {shown}")


def _held(tensor: model.Tensor, numbers: Sequence[model.Scalar]) -> np.ndarray:
    """Numbers of a contract as the tensor holds them: 0.1 is FP16's 0.1."""
    import numpy as np

    dtype = dtypes.from_oip(tensor.datatype)
    assert dtype is not None, "contracts are reviewed before"
    with np.errstate(over="ignore"):
        held = np.array(numbers, np.float64).astype(elements.numpy_dtype(dtype))
    return held.astype(np.float64)


def _is_inside(values: np.ndarray, low: float, high: float) -> bool:
    """Quickly, and False when it cannot tell."""
    return bool(values.min() >= low and values.max() <= high)


def _outside(values: np.ndarray, low: float, high: float) -> np.ndarray:
    """Where values leave the range. Bounds that the dtype cannot hold are compared exactly."""
    import numpy as np

    if values.dtype.kind in "iu":
        limits = np.iinfo(values.dtype)
        if low > int(limits.max) or high < int(limits.min):
            return np.ones(values.shape, np.bool_)
        below = values < _whole(low, up=True) if low > int(limits.min) else None
        above = values > _whole(high, up=False) if high < int(limits.max) else None
        parts = [part for part in (below, above) if part is not None]
        return np.logical_or.reduce(parts) if parts else np.zeros(values.shape, np.bool_)
    kind = values.dtype.type
    outside: np.ndarray = (values < kind(low)) | (values > kind(high))
    return outside


def _whole(bound: float, *, up: bool) -> int:
    return math.ceil(bound) if up else math.floor(bound)


def _special(tensor: model.Tensor, values: np.ndarray, path: str) -> Iterator[Fault]:
    import numpy as np

    if tensor.nan == "refuse":
        yield from _first(np.isnan(values), values, path, "expected a number")
    if tensor.infinity == "refuse":
        yield from _first(np.isinf(values), values, path, "expected a finite number")


def _strings(tensor: model.Tensor, values: np.ndarray, path: str) -> Iterator[Fault]:
    import numpy as np

    texts = [
        item if isinstance(item, bytes) else str(item).encode("utf-8", "surrogateescape")
        for item in values.reshape(-1).tolist()
    ]
    if tensor.max_bytes is not None:
        most = tensor.max_bytes
        is_long = np.array([len(text) > most for text in texts]).reshape(values.shape)
        yield from _first(is_long, values, path, f"expected at most {most} bytes")
    if tensor.allowed:
        known = {str(word).encode() for word in tensor.allowed}
        is_other = np.array([text not in known for text in texts]).reshape(values.shape)
        shown = ", ".join(map(repr, tensor.allowed[:8]))
        yield from _first(is_other, values, path, f"expected one of {shown}")


def _first(is_wrong: np.ndarray, values: np.ndarray, path: str, wanted: str) -> Iterator[Fault]:
    """The first wrong value of each row that has one, since rows are different clients' items."""
    import numpy as np

    if not is_wrong.any():
        return
    places = np.argwhere(is_wrong)
    rows = places[:, 0] if values.ndim else np.zeros(1, np.int64)
    _, firsts = np.unique(rows, return_index=True)
    for first in firsts.tolist():
        place = tuple(places[first].tolist())
        where = "".join(f"[{index}]" for index in place)
        found = repr(values[place].item() if hasattr(values[place], "item") else values[place])
        shown = found if len(found) <= 60 else found[:57] + "..."
        yield Fault(f"{path}{where}", f"{wanted}, found {shown}", place[0] if place else None)
