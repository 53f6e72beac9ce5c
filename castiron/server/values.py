"""Tensor values between JSON, raw bytes and numpy arrays, for every datatype of the protocol.

The policy (docs/protocol.md): no value changes silently. Integers must be exact and in range;
floats must not overflow; NaN and infinities are the strings "NaN", "Infinity" and "-Infinity" in
JSON. Faults raise InputError at the path of the value. The envelope around it is ``inference.py``.
"""

from __future__ import annotations

import itertools
import math
import struct
from typing import Any

import numpy as np
import orjson

from castiron import errors
from castiron.server import patience
from castiron.tensor import dtype as dtypes
from castiron.tensor import elements

_SPECIAL = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_KINDS = {int: "an integer", bool: "true or false",
          type(None): "null", list: "a list", dict: "an object"}  # fmt: skip


def from_json(data: Any, dtype: dtypes.DType, shape: tuple[int, ...], path: str) -> np.ndarray:
    """The array of this dtype and shape that ``data`` lists, flat or nested exactly like shape."""
    if type(data) is not list:
        raise errors.InputError(f"expected a list of values, found {_kind(data)}", path)
    nested = len(shape) > 1 and data and type(data[0]) is list
    flat = _flattened(data, shape, path) if nested else data
    count = math.prod(shape)
    if len(flat) != count:
        raise errors.InputError(
            f"expected {count} values for shape {list(shape)}, found {len(flat)}", path
        )
    found = set(map(type, flat))
    if dtype.is_float:
        values = _floats(flat, found, dtype, path)
    elif dtype.is_integer:
        values = _integers(flat, found, dtype, path)
    else:
        kind = bool if dtype is dtypes.BOOL else str
        if found - {kind}:
            raise _wrong_kind(flat, {kind}, dtype, path)
        values = _strings(flat, path) if kind is str else np.array(flat, np.bool_)
    return _shaped(values, shape, path)


def from_bytes(
    data: memoryview, dtype: dtypes.DType, shape: tuple[int, ...], path: str
) -> np.ndarray:
    """The array of this dtype and shape in ``data``: little-endian, C order; a view if it can."""
    if dtype is dtypes.STRING:
        try:
            return elements.unpack_strings(data, shape)
        except ValueError as fault:
            raise errors.InputError(str(fault), path) from None
    expected = math.prod(shape) * dtype.size_bytes
    if len(data) != expected:
        raise errors.InputError(
            f"expected {expected} bytes for {dtype.oip} of shape {list(shape)}, found {len(data)}",
            path,
        )
    values = np.frombuffer(data, elements.numpy_dtype(dtype))
    if dtype is dtypes.BOOL and expected and int(values.view(np.uint8).max()) > 1:
        raise errors.InputError("expected each byte of a BOOL to be 0 or 1", path)
    if not values.flags.aligned:
        values = values.copy()
    return _shaped(values, shape, path)


def _shaped(values: np.ndarray, shape: tuple[int, ...], path: str) -> np.ndarray:
    try:
        return values.reshape(shape)
    except ValueError:  # no values, and yet extents beside the 0 that no array can have
        raise errors.InputError(f"expected smaller extents, found {list(shape)}", path) from None


def to_bytes(values: np.ndarray, dtype: dtypes.DType) -> bytes | memoryview:
    """The raw form, the opposite of ``from_bytes``."""
    if dtype is dtypes.STRING:
        return elements.pack_strings(values)
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8).data


def to_json(values: np.ndarray, dtype: dtypes.DType, path: str) -> orjson.Fragment:
    """The flat JSON list, as part of what orjson writes."""
    return orjson.Fragment(json_text(values, dtype, path))


def json_text(values: np.ndarray, dtype: dtypes.DType, path: str) -> bytes:
    """The flat JSON list, the opposite of ``from_json``; shortest digits that read back exactly."""
    flat = np.ascontiguousarray(values).reshape(-1)
    if dtype is dtypes.STRING:
        return _strings_to_json(flat, path)
    if dtype is dtypes.BFLOAT16 or dtype is dtypes.FLOAT16:
        with np.errstate(invalid="ignore"):  # a signalling NaN
            flat = flat.astype(np.float32)
    patience.ask_for(flat.nbytes)
    text = orjson.dumps(flat, option=orjson.OPT_SERIALIZE_NUMPY)
    if dtype.is_float and b"null" in text:
        text = _with_special_values(text, flat)
    return text


def _flattened(data: list[Any], shape: tuple[int, ...], path: str) -> list[Any]:
    level = data
    for axis, dim in enumerate(shape):
        if axis:
            if set(map(type, level)) - {list}:
                raise _ragged(data, shape, path)
            if any(len(row) != dim for row in level):
                raise _ragged(data, shape, path)
            level = list(itertools.chain.from_iterable(level))
        elif len(level) != dim:
            raise _ragged(data, shape, path)
    return level


def _ragged(data: list[Any], shape: tuple[int, ...], path: str) -> errors.InputError:
    """The first place where the nesting differs from the shape."""
    place, value = _first_misfit(data, shape, path)
    expected = f"a list of {shape[place.count('[') - path.count('[')]} values"
    found = f"one of {len(value)}" if type(value) is list else _kind(value)
    return errors.InputError(
        f"expected {expected}, nested like shape {list(shape)}, found {found}", place
    )


def _first_misfit(data: Any, shape: tuple[int, ...], path: str) -> tuple[str, Any]:
    if type(data) is not list or len(data) != shape[0]:
        return path, data
    if len(shape) > 1:
        for index, row in enumerate(data):
            place, value = _first_misfit(row, shape[1:], f"{path}[{index}]")
            if place:
                return place, value
    return "", None


def _integers(flat: list[Any], found: set[type], dtype: dtypes.DType, path: str) -> np.ndarray:
    if found - {int}:
        raise _wrong_kind(flat, {int}, dtype, path)
    kind = elements.numpy_dtype(dtype)
    try:
        return np.array(flat, kind)
    except OverflowError:
        limits = np.iinfo(kind)
        low, high = int(limits.min), int(limits.max)
        index = next(index for index, value in enumerate(flat) if not low <= value <= high)
        raise errors.InputError(
            f"expected {dtype.oip} from {low} to {high}, found {flat[index]}", f"{path}[{index}]"
        ) from None


def _floats(flat: list[Any], found: set[type], dtype: dtypes.DType, path: str) -> np.ndarray:
    if found - {float, int}:
        if str not in found:
            raise _wrong_kind(flat, {float, int}, dtype, path)
        flat = [_number(value, dtype, f"{path}[{index}]") for index, value in enumerate(flat)]
    if flat and dtype.struct_code:
        memory = bytearray(len(flat) * dtype.size_bytes)
        try:
            struct.pack_into(f"<{len(flat)}{dtype.struct_code}", memory, 0, *flat)
            return np.frombuffer(memory, elements.numpy_dtype(dtype))
        except (OverflowError, struct.error):  # the latter for integers
            pass  # below it is found out which
    try:
        exact = np.array(flat, np.float64)
    except OverflowError:
        raise errors.InputError(f"expected numbers in the range of {dtype.oip}", path) from None
    if dtype is dtypes.FLOAT64:
        return exact
    with np.errstate(over="ignore"):
        values = exact.astype(elements.numpy_dtype(dtype))
    infinite = np.isinf(values)
    if infinite.any() and (overflowed := infinite & np.isfinite(exact)).any():
        index = int(overflowed.argmax())
        raise errors.InputError(
            f"expected a number in the range of {dtype.oip}, found {flat[index]!r}",
            f"{path}[{index}]",
        )
    return values


def _number(value: Any, dtype: dtypes.DType, path: str) -> float | int:
    if type(value) is str and value in _SPECIAL:
        return _SPECIAL[value]
    if type(value) not in {float, int}:
        raise errors.InputError(
            f'expected a number for {dtype.oip}, or "NaN", "Infinity" or "-Infinity", '
            f"found {_kind(value)}",
            path,
        )
    number: float | int = value
    return number


def _strings(flat: list[str], path: str) -> np.ndarray:
    values = np.empty(len(flat), object)
    values[:] = flat
    for index, text in enumerate(flat):
        if not text.isascii() and _has_surrogate(text):
            raise errors.InputError("expected Unicode text, found half a surrogate pair",
                                    f"{path}[{index}]")  # fmt: skip
    return values


def _has_surrogate(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _strings_to_json(flat: np.ndarray, path: str) -> bytes:
    items = flat.tolist()
    try:
        texts = [item.decode() if isinstance(item, bytes) else str(item) for item in items]
        return orjson.dumps(texts)
    except (UnicodeDecodeError, orjson.JSONEncodeError):
        raise errors.InputError(
            "holds bytes that are not UTF-8, which JSON cannot; ask for it as binary data", path
        ) from None


def _with_special_values(text: bytes, flat: np.ndarray) -> bytes:
    """The JSON writer puts null for what JSON has no number for; here are the right words."""
    words = (b'"NaN"' if math.isnan(value) else b'"Infinity"' if value > 0 else b'"-Infinity"'
             for value in flat[~np.isfinite(flat)].tolist())  # fmt: skip
    first, *rest = text.split(b"null")
    return first + b"".join(itertools.chain.from_iterable(zip(words, rest, strict=True)))


def _wrong_kind(
    flat: list[Any], allowed: set[type], dtype: dtypes.DType, path: str
) -> errors.InputError:
    index = next(index for index, value in enumerate(flat) if type(value) not in allowed)
    wanted = {float: "a number", int: "an integer", bool: "true or false", str: "a string"}
    expected = wanted[float if float in allowed else next(iter(allowed))]
    return errors.InputError(
        f"expected {expected} for {dtype.oip}, found {_kind(flat[index])}", f"{path}[{index}]"
    )


def _kind(value: Any) -> str:
    if type(value) is float:
        return repr(value)
    if type(value) is str:
        return f"the text {value[:40]!r}"
    return _KINDS.get(type(value), type(value).__name__)
