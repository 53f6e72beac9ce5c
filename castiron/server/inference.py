"""The body of an infer request: JSON, or JSON with raw tensors after it, to an ``Inference``.

Everything in it is checked here against the model's names and datatypes; shapes against the
model's dims are the Instance's to check. Faults are InputError with the path in the body. Values
themselves are ``values.py``; the answer's form is ``reply.py``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson

from castiron import errors
from castiron.server import patience, skeleton, template, values
from castiron.tensor import dtype as dtypes
from castiron.tensor import signature as signatures

_NOTHING = memoryview(b"")
_MAX_DIM = (1 << 31) - 1
_MAX_RANK = 64
# What would change the meaning of a request, and is not offered.
_REFUSED = frozenset((
    "shared_memory_region", "shared_memory_byte_size", "shared_memory_offset",
    "classification", "sequence_id", "sequence_start", "sequence_end",
))  # fmt: skip


@dataclass(frozen=True, slots=True)
class Interface:
    """A model's signature by name, made once for each version."""

    inputs: Mapping[str, dtypes.DType]
    outputs: Mapping[str, dtypes.DType]
    templates: template.Templates = field(default_factory=template.Templates)
    skeletons: skeleton.Skeletons = field(default_factory=skeleton.Skeletons)

    @classmethod
    def of(cls, signature: signatures.Signature) -> Interface:
        """From the signature of an Instance."""
        return cls(
            {spec.name: spec.dtype for spec in signature.inputs},
            {spec.name: spec.dtype for spec in signature.outputs},
        )


class Inference:
    """What a request asks: inputs as arrays; for each wanted output, whether it goes raw.

    ``priority`` is 1 for the most important class, 0 for the model's default, or a class's name.
    One like another that came before has a ``template``. If it is binary, there are only ``raw``,
    its tensors' bytes, until somebody asks for arrays.
    """

    __slots__ = ("_inputs", "id", "priority", "raw", "template", "timeout_s", "wanted")

    def __init__(
        self,
        request_id: str,
        inputs: dict[str, np.ndarray] | None,
        wanted: dict[str, bool],
        timeout_s: float | None,
        priority: int | str = 0,
    ) -> None:
        self.id = request_id
        self._inputs = inputs
        self.wanted = wanted
        self.timeout_s = timeout_s
        self.priority = priority
        self.template: template.Template | None = None
        self.raw = _NOTHING

    @property
    def inputs(self) -> dict[str, np.ndarray]:
        """The arrays by name. Raises InputError for what is wrong with bytes of a template."""
        found = self._inputs
        if found is None:
            assert self.template is not None
            found = self._inputs = self.template.inputs(self.raw)
        return found

    @property
    def size_bytes(self) -> int:
        """Bytes of all inputs."""
        if self.template is not None:
            return self.template.size_bytes
        return sum([array.nbytes for array in self.inputs.values()])


def parse(body: bytes | memoryview, json_bytes: int | None, interface: Interface) -> Inference:
    """Read a body whose first ``json_bytes`` are JSON (None: all of it).

    Arrays of raw tensors are views of the body where its alignment allows.
    """
    text, raw = parted(body, json_bytes)
    asked = _read_again(text, raw, interface)
    return _read_first(text, raw, interface) if asked is None else asked


def _read_again(text: bytes, raw: memoryview, interface: Interface) -> Inference | None:
    """A request like one before; None when there was none."""
    inputs: dict[str, np.ndarray] | None = None
    if raw:
        found = interface.templates.find(text, len(raw))
    else:
        known = interface.skeletons.find(text)
        lists = None if known is None else known.lists(text)
        if known is None or lists is None:
            return None
        found = known.template
        inputs = found.listed(lists)
    if found is None:
        return None
    asked = Inference("", inputs, found.wanted, found.timeout_s, found.priority)
    asked.template, asked.raw = found, raw
    return asked


def _read_first(text: bytes, raw: memoryview, interface: Interface) -> Inference:
    """Read a request, and keep what it says besides its values for the next one like it.

    Only that one has the template: to make a run for it costs as much as some runs.
    """
    head = decoded(text)
    asked = of_object(head, raw, interface)
    places = template.of(head, asked.inputs, interface.inputs)
    if places is None:
        return asked
    made = template.Template(places, asked.wanted, asked.timeout_s, asked.priority)
    if raw:
        interface.templates.keep(text, len(raw), made)
    else:
        interface.skeletons.keep(text, head, made)
    return asked


def parted(body: bytes | memoryview, json_bytes: int | None) -> tuple[bytes, memoryview]:
    """The JSON of a body, and what lies after it. InputError when it is not so long."""
    if json_bytes is None:
        return bytes(body), _NOTHING
    if not 0 < json_bytes <= len(body):
        raise errors.InputError(
            f"expected 1 to {len(body)} bytes of JSON in a body of {len(body)}, found {json_bytes}",
            "headers.inference-header-content-length",
        )
    return bytes(body[:json_bytes]), memoryview(body)[json_bytes:]


def of_object(head: dict[str, Any], raw: memoryview, interface: Interface) -> Inference:
    """Read a request that is decoded already; ``raw`` holds its raw tensors and nothing else."""
    parameters = _parameters(head, "")
    request_id = head.get("id", "")
    if type(request_id) is not str:
        raise errors.InputError("expected a string", "id")
    return Inference(
        request_id,
        _inputs(head, raw, interface),
        _wanted(head, _flag(parameters, "binary_data_output", ""), interface),
        timeout_s(parameters.get("timeout")),
        priority(parameters.get("priority")),
    )


def raw_bytes(head: dict[str, Any]) -> int:
    """How many bytes of raw tensors belong to a request; what is wrong with them is told later."""
    total = 0
    for item in _listed(head.get("inputs")):
        parameters = item.get("parameters")
        size = parameters.get("binary_data_size") if type(parameters) is dict else None
        total += size if type(size) is int and size > 0 else 0
    return total


def _listed(found: Any) -> list[dict[str, Any]]:
    return [item for item in found if type(item) is dict] if type(found) is list else []


def decoded(body: bytes) -> dict[str, Any]:
    """A JSON object, where bare NaN and Infinity are read too. InputError for anything else."""
    try:
        patience.ask_for(len(body))
        head = orjson.loads(body)
    except orjson.JSONDecodeError as fault:
        # The words that Python's own JSON writer has for special values; orjson has none.
        if b"NaN" not in body and b"Infinity" not in body:
            raise errors.InputError(f"expected JSON: {fault}", "body") from None
        head = _decoded_with_special_words(body)
    if type(head) is not dict:
        raise errors.InputError("expected a JSON object", "body")
    return head


def _decoded_with_special_words(body: bytes) -> Any:
    try:
        return json.loads(body.decode(), parse_float=_finite)
    except (ValueError, RecursionError) as fault:
        raise errors.InputError(f"expected JSON: {fault}", "body") from None


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text[:40]} is no double")
    return number


def _inputs(head: dict[str, Any], raw: memoryview, interface: Interface) -> dict[str, np.ndarray]:
    listed = head.get("inputs")
    if type(listed) is not list:
        raise errors.InputError("expected a list of inputs", "inputs")
    inputs: dict[str, np.ndarray] = {}
    used = 0
    for index, item in enumerate(listed):
        path = f"inputs[{index}]"
        name, dtype = _named(item, interface.inputs, "input", path)
        if name in inputs:
            raise errors.InputError(f"input {name!r} is given twice", f"{path}.name")
        check_datatype(item.get("datatype"), name, dtype, path)
        shape = shape_of(item.get("shape"), f"{path}.shape")
        size = _raw_size(item, len(raw) - used, path)
        if size is None:
            inputs[name] = values.from_json(item.get("data"), dtype, shape, f"{path}.data")
        else:
            piece = raw[used : used + size]
            inputs[name] = values.from_bytes(piece, dtype, shape, f"{path}.parameters")
            used += size
    if used != len(raw):
        raise errors.InputError(
            f"{len(raw) - used} bytes after the JSON belong to no input; "
            "each raw input tells its parameters.binary_data_size",
            "body",
        )
    refuse_missing(interface.inputs, inputs)
    return inputs


def refuse_missing(known_inputs: Mapping[str, Any], inputs: Mapping[str, Any]) -> None:
    """InputError that names each input of the model which the request does not have."""
    missing = known_inputs.keys() - inputs.keys()
    if missing:
        raise errors.InputError(f"missing {', '.join(map(repr, sorted(missing)))}", "inputs")


def check_datatype(found: Any, name: str, dtype: dtypes.DType, path: str) -> None:
    """InputError unless the request says the model's own datatype."""
    if found != dtype.oip:
        raise errors.InputError(
            f"expected {dtype.oip} for input {name!r}, found {_shown(found)}", f"{path}.datatype"
        )


def _named(
    item: Any, offered: Mapping[str, dtypes.DType], kind: str, path: str
) -> tuple[str, dtypes.DType]:
    if type(item) is not dict:
        raise errors.InputError("expected an object", path)
    name: Any = item.get("name")
    return name, known(name, offered, kind, path)


def known(name: Any, offered: Mapping[str, dtypes.DType], kind: str, path: str) -> dtypes.DType:
    """The datatype of an input or output of the model. InputError when it has none so called."""
    if type(name) is not str or name not in offered:
        raise errors.InputError(
            f"expected the name of an {kind}, one of {list(offered)}, found {_shown(name)}",
            f"{path}.name",
        )
    return offered[name]


def shape_of(shape: Any, path: str) -> tuple[int, ...]:
    """Dims from 0 to 2^31 - 1. Raises InputError."""
    if type(shape) is not list:
        raise errors.InputError("expected a list of dims", path)
    if len(shape) > _MAX_RANK:
        raise errors.InputError(f"expected at most {_MAX_RANK} dims, found {len(shape)}", path)
    for axis, dim in enumerate(shape):
        if type(dim) is not int or not 0 <= dim <= _MAX_DIM:
            raise errors.InputError(
                f"expected an integer from 0 to {_MAX_DIM}, found {_shown(dim)}", f"{path}[{axis}]"
            )
    return tuple(shape)


def _raw_size(item: dict[str, Any], left: int, path: str) -> int | None:
    parameters = _parameters(item, f"{path}.")
    size = parameters.get("binary_data_size")
    if size is None:
        if "data" not in item:
            raise errors.InputError("expected data, or parameters.binary_data_size", path)
        return None
    path = f"{path}.parameters.binary_data_size"
    if "data" in item:
        raise errors.InputError("expected no data beside it", path)
    if type(size) is not int or size < 0:
        raise errors.InputError(f"expected a number of bytes, found {_shown(size)}", path)
    if size > left:
        raise errors.InputError(
            f"expected {size} bytes after the JSON, found {left}; the header "
            "Inference-Header-Content-Length tells where the JSON ends",
            path,
        )
    return size


def _wanted(head: dict[str, Any], all_raw: bool, interface: Interface) -> dict[str, bool]:
    listed = head.get("outputs")
    if listed is None:
        listed = []
    if type(listed) is not list:
        raise errors.InputError("expected a list of outputs", "outputs")
    wanted: dict[str, bool] = {}
    for index, item in enumerate(listed):
        path = f"outputs[{index}]"
        name, _ = _named(item, interface.outputs, "output", path)
        if name in wanted:
            raise errors.InputError(f"output {name!r} is asked for twice", f"{path}.name")
        parameters = _parameters(item, f"{path}.")
        wanted[name] = _flag(parameters, "binary_data", f"{path}.", default=all_raw)
    return wanted or dict.fromkeys(interface.outputs, all_raw)


def _parameters(item: dict[str, Any], path: str) -> dict[str, Any]:
    parameters = item.get("parameters")
    if parameters is None:
        return {}
    if type(parameters) is not dict:
        raise errors.InputError("expected an object", f"{path}parameters")
    refuse_unoffered(parameters, path)
    return parameters


def refuse_unoffered(parameters: Mapping[str, Any], path: str) -> None:
    """InputError for a parameter that would change the meaning, and that we do not offer."""
    if _REFUSED.isdisjoint(parameters):
        return
    for name in sorted(_REFUSED):
        if parameters.get(name):
            raise errors.InputError("is not offered here", f"{path}parameters.{name}")


def _flag(parameters: dict[str, Any], name: str, path: str, *, default: bool = False) -> bool:
    value = parameters.get(name, default)
    if type(value) is not bool:
        raise errors.InputError(
            f"expected true or false, found {_shown(value)}", f"{path}parameters.{name}"
        )
    return value


def timeout_s(value: Any) -> float | None:
    """Whole microseconds in the protocol; 0 asks for nothing. InputError for anything else."""
    if value is None:
        return None
    if type(value) is not int or value < 0:
        raise errors.InputError(
            f"expected whole microseconds, found {_shown(value)}", "parameters.timeout"
        )
    return value / 1e6 or None


def priority(value: Any) -> int | str:
    """A class by its number or name; which ones there are, the model's contract says."""
    if value is None:
        return 0
    if type(value) not in {int, str} or (type(value) is int and value < 0):
        raise errors.InputError(
            f"expected a number or name of a class, found {_shown(value)}", "parameters.priority"
        )
    named: int | str = value
    return named


def _shown(value: Any) -> str:
    """The value as it is quoted in an error, never long."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
