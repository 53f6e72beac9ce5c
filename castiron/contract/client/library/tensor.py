"""Tensors of every datatype, and their raw and plain forms.

A Tensor holds the bytes that travel, so that no value changes on the way; numpy is used only by
the two methods that are named after it.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np

    Value = bool | int | float | str | bytes

# What struct calls the elements of each datatype; BF16 and BYTES are done by hand.
_CODES = {
    "BOOL": "?", "INT8": "b", "INT16": "h", "INT32": "i", "INT64": "q", "UINT8": "B",
    "UINT16": "H", "UINT32": "I", "UINT64": "Q", "FP16": "e", "FP32": "f", "FP64": "d",
}  # fmt: skip
_NUMPY = {
    "BOOL": "bool", "INT8": "int8", "INT16": "int16", "INT32": "int32", "INT64": "int64",
    "UINT8": "uint8", "UINT16": "uint16", "UINT32": "uint32", "UINT64": "uint64",
    "FP16": "float16", "FP32": "float32", "FP64": "float64", "BF16": "uint16",
}  # fmt: skip
DATATYPES = (*_CODES, "BF16", "BYTES")
_SPECIAL = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class Tensor(NamedTuple):
    """One tensor as it travels: ``raw`` is little-endian, row-major; BYTES with lengths."""

    datatype: str
    shape: tuple[int, ...]
    raw: bytes

    @classmethod
    def of(cls, datatype: str, shape: Sequence[int], values: Iterable[Value]) -> Tensor:
        """From plain values in row-major order. ValueError when they do not fit."""
        listed = list(values)
        if len(listed) != math.prod(shape):
            raise ValueError(
                f"expected {math.prod(shape)} values for shape {list(shape)}, found {len(listed)}"
            )
        try:
            return cls(datatype, tuple(shape), _packed(datatype, listed))
        except (struct.error, OverflowError, TypeError) as fault:
            raise ValueError(f"a value is no {datatype}: {fault}") from None

    @classmethod
    def from_json(cls, datatype: str, shape: Sequence[int], data: list[Any]) -> Tensor:
        """From the flat list that a reply in JSON has. ValueError when it does not fit."""
        is_float = datatype.startswith(("FP", "BF"))
        return cls.of(datatype, shape, [_SPECIAL.get(x, x) for x in data] if is_float else data)

    def to_json(self) -> list[Any]:
        """The flat list of a request in JSON. ValueError for BYTES that are not UTF-8."""
        found = self.values()
        if self.datatype == "BYTES":
            try:
                return [item.decode() for item in found]
            except UnicodeDecodeError:
                raise ValueError("BYTES that are not UTF-8 do not fit into JSON") from None
        return [item if math.isfinite(item) else _word(item) for item in found]

    def values(self) -> list[Any]:
        """Plain values in row-major order; BYTES are bytes."""
        if self.datatype == "BYTES":
            return _unpacked_strings(self.raw, math.prod(self.shape))
        if self.datatype == "BF16":
            wide = (bits << 16 for bits in struct.unpack(f"<{len(self.raw) // 2}H", self.raw))
            return [struct.unpack("<f", struct.pack("<I", bits))[0] for bits in wide]
        code = _CODES[self.datatype]
        return list(struct.unpack(f"<{len(self.raw) // struct.calcsize(code)}{code}", self.raw))

    @classmethod
    def from_numpy(cls, given: np.ndarray, datatype: str = "") -> Tensor:
        """From a numpy array. uint16 bit patterns, or ml_dtypes.bfloat16, make BF16."""
        import numpy as np

        names = {name: oip for oip, name in _NUMPY.items() if oip != "BF16"}
        names |= {"bfloat16": "BF16", "object": "BYTES"}
        chosen = datatype or names.get(given.dtype.name) or "BYTES"
        if chosen == "BYTES":
            return cls.of(chosen, given.shape, given.reshape(-1).tolist())
        kind = np.dtype(_NUMPY[chosen])
        whole = np.ascontiguousarray(given)
        if whole.dtype.name == "bfloat16":
            whole = whole.view(kind)
        if whole.dtype != kind:
            raise ValueError(f"expected an array of {kind} for {chosen}, found {given.dtype}")
        return cls(chosen, given.shape, whole.astype(kind.newbyteorder("<"), copy=False).tobytes())

    def numpy(self) -> np.ndarray:
        """As a numpy array; BF16 as uint16 bit patterns, BYTES as objects."""
        import numpy as np

        if self.datatype == "BYTES":
            found = np.empty(math.prod(self.shape), object)
            found[:] = self.values()
        else:
            kind = np.dtype(_NUMPY[self.datatype]).newbyteorder("<")
            found = np.frombuffer(self.raw, kind)
        return found.reshape(self.shape)


def _word(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _packed(datatype: str, values: list[Any]) -> bytes:
    if datatype == "BYTES":
        strings = [item if isinstance(item, bytes) else item.encode() for item in values]
        return b"".join(struct.pack("<I", len(item)) + item for item in strings)
    if datatype == "BF16":
        return struct.pack(f"<{len(values)}H", *map(_bfloat16, values))
    if datatype not in _CODES:
        raise ValueError(f"unknown datatype {datatype}; known are {', '.join(DATATYPES)}")
    wanted: tuple[type, ...] = (float, int) if datatype.startswith("FP") else (int,)
    wanted = (bool,) if datatype == "BOOL" else wanted
    if wrong := set(map(type, values)) - set(wanted):
        raise TypeError(f"found {wrong.pop().__name__}")
    return struct.pack(f"<{len(values)}{_CODES[datatype]}", *values)


def _bfloat16(value: float) -> int:
    """The bits of the nearest BF16, ties to even; straight from the double, rounded once."""
    if type(value) not in {float, int}:
        raise TypeError(f"found {type(value).__name__}")
    sign = 0x8000 if math.copysign(1.0, value) < 0 else 0
    if math.isnan(value):
        return 0x7FC0
    size = abs(float(value))
    if math.isinf(size):
        return sign | 0x7F80
    exponent = max(math.frexp(size)[1] - 1, -126) if size else -126
    bits = round(math.ldexp(size, 7 - exponent)) + ((exponent + 126) << 7)
    if bits >= 0x7F80:
        raise OverflowError(f"{value} is beyond BF16")
    return sign | bits


def _unpacked_strings(raw: bytes, count: int) -> list[bytes]:
    found: list[bytes] = []
    place = 0
    while len(found) < count:
        end = place + 4 + int.from_bytes(raw[place : place + 4], "little")
        if place + 4 > len(raw) or end > len(raw):
            raise ValueError(f"string {len(found)} is cut off")
        found.append(raw[place + 4 : end])
        place = end
    if place != len(raw):
        raise ValueError("bytes are left after the last string")
    return found
