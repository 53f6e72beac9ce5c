"""The user's own ``pipeline.py``: loaded and called in a process of its own, never in the server.

``before(values)`` gets a request's values by name (bytes for images) and gives tensors by name;
``after(tensors)`` gives the reply's values. Which faults are the client's: a ValueError of
``before`` and only that.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from castiron import errors
from castiron.contract import model
from castiron.server.steps import faults, inward
from castiron.tensor import dtype as dtypes
from castiron.tensor import elements

_NAMES = ("before", "after")


class Pipeline:
    """The functions of one file; absent ones are None."""

    __slots__ = ("_file", "_tensors", "after", "before")

    def __init__(self, path: Path, contract: model.Contract) -> None:
        """Run the file. Raises ContractError when it fails or has neither function."""
        self._file = path.name
        self._tensors = {tensor.name: tensor for tensor in contract.input}
        module = _loaded(path)
        found = [getattr(module, name, None) for name in _NAMES]
        if not any(map(callable, found)):
            problem = f"expected a function {' or '.join(_NAMES)}, found neither"
            raise errors.ContractError(path.name, [problem])
        self.before, self.after = (each if callable(each) else None for each in found)

    def tensors(self, values: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """What ``before`` gives, as arrays of the model's dtypes."""
        assert self.before is not None
        try:
            given = self.before(dict(values))
        except ValueError as fault:
            raise errors.InputError(f"{self._file} refused the request: {fault}") from None
        except BaseException as fault:  # noqa: BLE001  also a sys.exit
            raise self._failed("before", fault) from None
        if not isinstance(given, Mapping) or given.keys() != self._tensors.keys():
            found = sorted(map(str, given)) if isinstance(given, Mapping) else type(given).__name__
            raise faults.PipelineError(
                f"{self._file}: before: expected tensors {sorted(self._tensors)}, found {found}"
            )
        return {name: self._array(name, value) for name, value in given.items()}

    def _array(self, name: str, value: Any) -> np.ndarray:
        tensor = self._tensors[name]
        dtype = dtypes.from_oip(tensor.datatype)
        assert dtype is not None, "contracts are reviewed before"
        try:
            array = np.asarray(value, object if dtype is dtypes.STRING else None)
            if np.can_cast(array.dtype, elements.numpy_dtype(dtype), "same_kind"):
                return inward.cast(array, tensor)
        except Exception as fault:  # noqa: BLE001  ragged lists and whatever else
            raise self._failed(f"before: {name}", fault) from None
        raise faults.PipelineError(
            f"{self._file}: before: {name}: expected {tensor.datatype}, found {array.dtype}"
        )

    def values(self, tensors: Mapping[str, np.ndarray]) -> Any:
        """What ``after`` gives; whether JSON can hold it is found when it is written."""
        assert self.after is not None
        try:
            return self.after(dict(tensors))
        except BaseException as fault:  # noqa: BLE001  also a sys.exit
            raise self._failed("after", fault) from None

    def _failed(self, where: str, fault: BaseException) -> faults.PipelineError:
        return faults.PipelineError(f"{self._file}: {where}: {type(fault).__name__}: {fault}")


def _loaded(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("castiron_pipeline", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(path.parent))  # it may import files beside it
    try:
        spec.loader.exec_module(module)
    except BaseException as fault:  # noqa: BLE001  also a sys.exit at its top
        problem = f"it failed when it was loaded: {type(fault).__name__}: {fault}"
        raise errors.ContractError(path.name, [problem]) from None
    return module
