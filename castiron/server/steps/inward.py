"""An application's values to tensors: the input side of a contract's schema, ready to run.

Checks each value against its entry (faults are InputError at the entry's name), then runs its
steps. Importing Pillow or tokenizers is left to the first value that needs them.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from castiron import errors
from castiron.contract import model, steps
from castiron.server import values
from castiron.server.steps import faults, folder
from castiron.server.steps.place import Place
from castiron.tensor import dtype as dtypes
from castiron.tensor import elements

Values = Mapping[str, Any]
_MAX_PIXELS = 40_000_000
_FORMATS = ("jpeg", "png", "webp", "bmp", "gif")


@dataclass(slots=True)
class Made:
    """What came out: tensors by name, and where the picture lies, if there was one."""

    tensors: dict[str, np.ndarray]
    place: Place | None = None


class Inward:
    """All entries of the input side; ``values`` hold bytes for images that came raw."""

    __slots__ = ("_contract", "_tensors", "_tokenizers")

    def __init__(self, contract: model.Contract, found: folder.Folder) -> None:
        """Open tokenizers. Raises ContractError."""
        self._contract = contract
        self._tensors = {tensor.name: tensor for tensor in contract.input}
        self._tokenizers: dict[str, Any] = {}
        for entry in contract.schema.input:
            for step in entry.steps:
                if isinstance(step, steps.Tokenize):
                    from castiron.server.steps import words

                    self._tokenizers[entry.name] = words.Tokenizer(found.file(step.file), step)

    def check(self, given: Values) -> None:
        """That the names are those of the schema and every value is what its entry says."""
        known = {entry.name: entry for entry in self._contract.schema.input}
        if not known:
            return  # a pipeline that takes anything
        for name in given:
            if name not in known:
                raise errors.InputError(f"unknown; expected {', '.join(known)}", name)
        for name, entry in known.items():
            if given.get(name) is None:
                if not entry.optional:
                    raise errors.InputError(f"expected {_WANTED[entry.kind]}, found nothing", name)
            else:
                _CHECKS[entry.kind](entry, given[name])

    def run(self, given: Values) -> Made:
        """The tensors. Raises InputError, TooLargeError."""
        self.check(given)
        made = Made({})
        for entry in self._contract.schema.input:
            value = given.get(entry.name)
            if entry.tensor and value is not None:
                try:
                    self._entry(entry, value, made)
                except errors.InputError as fault:
                    raise _placed(fault, entry.name) from None
        return made

    def _entry(self, entry: model.Entry, value: Any, made: Made) -> None:
        tensor = self._tensors[entry.tensor]
        if entry.kind == "image":
            made.tensors[tensor.name], made.place = _image(entry, value, tensor)
        elif entry.name in self._tokenizers:
            self._text(entry, value, made)
        else:
            made.tensors[tensor.name] = _ARRAYS[entry.kind](entry, value, tensor)

    def _text(self, entry: model.Entry, value: Any, made: Made) -> None:
        found = self._tokenizers[entry.name](text_of(value))
        step = next(step for step in entry.steps if isinstance(step, steps.Tokenize))
        wanted = {entry.tensor: "ids", step.mask: "mask", step.segments: "segments"}
        for name, kind in wanted.items():
            if name:
                made.tensors[name] = cast(found[kind], self._tensors[name])


def _placed(fault: errors.InputError, name: str) -> errors.InputError:
    """The same fault at the entry's path."""
    if fault.path == name or fault.path.startswith((f"{name}.", f"{name}[")):
        return fault
    return type(fault)(_text(fault), f"{name}{fault.path}")


def _text(fault: errors.InputError) -> str:
    return str(fault).removeprefix(f"{fault.path}: ") if fault.path else str(fault)


def cast(array: np.ndarray, tensor: model.Tensor) -> np.ndarray:
    """The array in the tensor's dtype; numbers are rounded and kept in range for integers."""
    dtype = dtypes.from_oip(tensor.datatype)
    assert dtype is not None, "contracts are reviewed before"
    wanted = elements.numpy_dtype(dtype)
    if dtype.is_integer and array.dtype.kind == "f":
        limits = np.iinfo(wanted)
        array = np.clip(np.rint(array), float(limits.min), float(limits.max))
    return array.astype(wanted, copy=False)


# Images.


def _image(
    entry: model.Entry, value: bytes | str, tensor: model.Tensor
) -> tuple[np.ndarray, Place | None]:
    from castiron.server.steps import picture

    data = _decoded(value) if isinstance(value, str) else value
    most = entry.max_pixels or _MAX_PIXELS
    shown: picture.Picture | None = None
    array: np.ndarray | None = None
    for step in entry.steps:
        if isinstance(step, steps.DecodeImage):
            shown = picture.decode(data, step, entry.formats or _FORMATS, most)
        elif shown is not None and isinstance(step, steps.Resize):
            shown = picture.resize(shown, step, most)
        elif shown is not None and isinstance(step, steps.Crop):
            shown = picture.crop(shown, step)
        elif shown is not None and isinstance(step, steps.Normalise):
            array = picture.normalise(shown, step)
    assert shown is not None and array is not None, "chains are reviewed before"
    return cast(array, tensor), shown.place


def _decoded(text: str) -> bytes:
    if text.startswith("data:"):
        text = text.partition(",")[2]
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as fault:
        raise errors.InputError(f"expected base64: {fault}") from None


# Everything else.


def text_of(value: Any) -> str:
    """The text of a value that may say its language too."""
    text: str = value["text"] if isinstance(value, Mapping) else value
    return text


def _text_array(entry: model.Entry, value: Any, tensor: model.Tensor) -> np.ndarray:
    del entry
    return _filled(np.array([text_of(value)], object), tensor)


def _number_array(entry: model.Entry, value: Any, tensor: model.Tensor) -> np.ndarray:
    try:
        return _filled(_typed([value], (1,), tensor, ""), tensor)
    except errors.InputError as fault:
        raise errors.InputError(_text(fault), entry.name) from None


def _table_array(entry: model.Entry, value: Any, tensor: model.Tensor) -> np.ndarray:
    shape = (len(value), len(entry.columns))
    flat = [item for row in value for item in row]
    try:
        found = _typed(flat, shape, tensor, "")
    except errors.InputError as fault:
        row, column = divmod(int(fault.path.strip("[]") or 0), len(entry.columns))
        raise errors.InputError(_text(fault), f"{entry.name}[{row}][{column}]") from None
    return found.reshape((1,) * (len(tensor.shape) - 2) + shape)


def _tensor_array(entry: model.Entry, value: Any, tensor: model.Tensor) -> np.ndarray:
    return _typed(value["data"], tuple(value["shape"]), tensor, f"{entry.name}.data")


def _typed(data: Any, shape: tuple[int, ...], tensor: model.Tensor, path: str) -> np.ndarray:
    dtype = dtypes.from_oip(tensor.datatype)
    assert dtype is not None, "contracts are reviewed before"
    return values.from_json(data, dtype, shape, path)


def _filled(one: np.ndarray, tensor: model.Tensor) -> np.ndarray:
    """One value in as many dims of 1 as the tensor has."""
    return one.reshape((1,) * len(tensor.shape))


_ARRAYS: dict[str, Callable[[model.Entry, Any, model.Tensor], np.ndarray]] = {
    "text": _text_array,
    "number": _number_array,
    "flag": _number_array,
    "table": _table_array,
    "tensor": _tensor_array,
}


# What a value must be before anything is made of it.


def _check_text(entry: model.Entry, value: Any) -> None:
    path = entry.name
    if entry.languages and isinstance(value, Mapping):
        _check_keys(value, {"text", "language"}, path)
        if value["language"] not in entry.languages:
            raise errors.InputError(
                f"expected one of {', '.join(entry.languages)}, found {value['language']!r:.60}",
                f"{path}.language",
            )
        value, path = value["text"], f"{path}.text"
    elif entry.languages:
        raise errors.InputError(
            f'expected an object {{"text": ..., "language": ...}}, found {_shown(value)}', path
        )
    if type(value) is not str:
        raise errors.InputError(f"expected text, found {_shown(value)}", path)
    if entry.max_chars is not None and len(value) > entry.max_chars:
        raise faults.TooLargeError(
            f"expected at most {entry.max_chars} characters, found {len(value)}", path
        )
    if entry.values and value not in entry.values:
        raise errors.InputError(
            f"expected one of {', '.join(entry.values)}, found {value!r:.60}", path
        )


def _check_keys(value: Mapping[str, Any], wanted: set[str], path: str) -> None:
    if value.keys() != wanted:
        raise errors.InputError(f"expected {sorted(wanted)}, found {sorted(value)!s:.100}", path)


def _check_image(entry: model.Entry, value: Any) -> None:
    came = "base64" if isinstance(value, str) else "raw"
    if type(value) not in {str, bytes, memoryview}:
        raise errors.InputError(f"expected an image in base64, found {_shown(value)}", entry.name)
    if entry.encodings and came not in entry.encodings:
        raise errors.InputError(
            f"expected the image as {' or '.join(entry.encodings)}, found {came}", entry.name
        )


def _check_number(entry: model.Entry, value: Any, path: str = "", span: Any = None) -> None:
    path = path or entry.name
    if type(value) not in {int, float}:
        raise errors.InputError(f"expected a number, found {_shown(value)}", path)
    low, high = span or entry.range or (-math.inf, math.inf)
    if not low <= value <= high:
        raise errors.InputError(f"expected {low} to {high}, found {value}", path)


def _check_flag(entry: model.Entry, value: Any) -> None:
    if type(value) is not bool:
        raise errors.InputError(f"expected true or false, found {_shown(value)}", entry.name)


def _check_table(entry: model.Entry, value: Any) -> None:
    if type(value) is not list:
        raise errors.InputError(f"expected a list of rows, found {_shown(value)}", entry.name)
    if entry.max_rows is not None and len(value) > entry.max_rows:
        raise faults.TooLargeError(
            f"expected at most {entry.max_rows} rows, found {len(value)}", entry.name
        )
    for index, row in enumerate(value):
        path = f"{entry.name}[{index}]"
        if type(row) is not list or len(row) != len(entry.columns):
            found = f"{len(row)} values" if type(row) is list else _shown(row)
            raise errors.InputError(f"expected {len(entry.columns)} numbers, found {found}", path)
        for place, (column, item) in enumerate(zip(entry.columns, row, strict=True)):
            _check_number(entry, item, f"{path}[{place}]", column.range)


def _check_tensor(entry: model.Entry, value: Any) -> None:
    if not isinstance(value, Mapping):
        raise errors.InputError(
            f'expected an object {{"shape": ..., "data": ...}}, found {_shown(value)}', entry.name
        )
    _check_keys(value, {"shape", "data"}, entry.name)
    shape = value["shape"]
    if type(shape) is not list or any(type(dim) is not int or dim < 0 for dim in shape):
        raise errors.InputError("expected a list of dims", f"{entry.name}.shape")


def _check_anything(entry: model.Entry, value: Any) -> None:
    """Labels and boxes as inputs go to a pipeline as they are."""
    del entry, value


_CHECKS: dict[str, Callable[[model.Entry, Any], None]] = {
    "text": _check_text,
    "image": _check_image,
    "number": _check_number,
    "flag": _check_flag,
    "table": _check_table,
    "tensor": _check_tensor,
    "labels": _check_anything,
    "boxes": _check_anything,
}
_WANTED = {
    "text": "text", "image": "an image", "number": "a number", "flag": "true or false",
    "table": "a list of rows", "tensor": "a tensor", "labels": "labels", "boxes": "boxes",
}  # fmt: skip


def _shown(value: Any) -> str:
    words = {dict: "an object", list: "a list", type(None): "null", bytes: "bytes"}
    text = words.get(type(value)) or repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def needs_process(contract: model.Contract) -> bool:
    """Whether the input side may take long: pictures, tokenizers."""
    kinds = (steps.DecodeImage, steps.Tokenize)
    return any(isinstance(step, kinds) for entry in contract.schema.input for step in entry.steps)
