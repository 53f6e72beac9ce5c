"""What goes between the server and a step process: values, tensors and faults in shared memory.

A message is a set of arrays (``runtime.region``): one of them, "", is JSON and says what the rest
is. Both sides are here, so that they agree; when what is sent is ``crew.py`` and ``worker.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import orjson

from castiron import errors
from castiron.runtime import region
from castiron.server.steps import faults
from castiron.server.steps.place import Place

Arrays = Mapping[str, np.ndarray]

# What faults are on the other side: each is made again from its message and path.
_AT_PATH: dict[str, type[errors.InputError]] = {
    "InputError": errors.InputError,
    "TooLargeError": faults.TooLargeError,
}
_PLAIN: dict[str, type[errors.CastironError]] = {
    "PipelineError": faults.PipelineError,
    "CastironError": errors.CastironError,
}
_RAW = "raw:"
_TENSOR = "tensor:"


def write(
    area: region.Region, head: dict[str, Any], raw: Mapping[str, Any], tensors: Arrays
) -> int:
    """Put a message into the region; the bytes it takes."""
    arrays: dict[str, np.ndarray] = {"": _bytes(orjson.dumps(head))}
    arrays |= {_RAW + name: _bytes(data) for name, data in raw.items()}
    names = dict.fromkeys(arrays, "uint8")
    for name, array in tensors.items():
        arrays[_TENSOR + name] = array
        names[_TENSOR + name] = "string" if array.dtype == object else array.dtype.name
    return area.write(arrays, names)


def _bytes(data: bytes | memoryview) -> np.ndarray:
    return np.frombuffer(data, np.uint8)


def read(
    area: region.Region, used: int
) -> tuple[dict[str, Any], dict[str, memoryview], dict[str, np.ndarray]]:
    """The head, raw values and tensors; the last two are views of the region."""
    arrays = area.read(used)
    head: dict[str, Any] = orjson.loads(arrays.pop("").tobytes())
    raw = {
        name.removeprefix(_RAW): array.data
        for name, array in arrays.items()
        if name.startswith(_RAW)
    }
    tensors = {
        name.removeprefix(_TENSOR): array
        for name, array in arrays.items()
        if name.startswith(_TENSOR)
    }
    return head, raw, tensors


def described(fault: Exception) -> dict[str, Any]:
    """A fault as part of a head."""
    if isinstance(fault, errors.ContractError):
        return {"fault": "ContractError", "source": fault.source, "problems": fault.problems}
    path = fault.path if isinstance(fault, errors.InputError) else ""
    text = str(fault).removeprefix(f"{path}: ") if path else str(fault)
    name = type(fault).__name__
    if name not in _AT_PATH and name not in _PLAIN:
        text, name = f"{name}: {text}", "CastironError"
    # Text out of the user's code may hold what JSON cannot.
    return {"fault": name, "message": text.encode("utf-8", "replace").decode(), "path": path}


def fault_in(head: Mapping[str, Any]) -> Exception | None:
    """The fault that a head tells, if it tells one."""
    name = head.get("fault")
    if name is None:
        return None
    if name == "ContractError":
        return errors.ContractError(head["source"], head["problems"])
    if name in _AT_PATH:
        return _AT_PATH[name](head["message"], head["path"])
    return _PLAIN[name](head["message"])


def place_to(place: Place | None) -> dict[str, Any] | None:
    """A place as JSON."""
    return None if place is None else asdict(place)


def place_from(found: Mapping[str, Any] | None) -> Place | None:
    """The opposite of ``place_to``."""
    return None if found is None else Place(**found)
