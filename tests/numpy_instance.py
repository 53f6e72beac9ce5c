"""Instances that really compute, with numpy instead of compiled kernels.

They follow the interface of ``castiron.registry.supply.Instance``, so that serving is tested with
models of every dtype, slow ones and failing ones, whatever the compiler can do. Also the process
that runs one of them as if it held interpreted steps:

    python -m tests.numpy_instance interpret PATH FDS

where PATH is a file holding the name of one of ``MODELS``. While a file named ``HELD`` lies beside
it, no run of it ends, or none whose first value is the number in that file: so a test decides how
long a run takes, whatever else the machine does.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from castiron import errors
from castiron.runtime import interpreter
from castiron.tensor import dtype as dtypes
from castiron.tensor import elements, signature

Arrays = Mapping[str, np.ndarray]
Dims = tuple[int | str, ...]
HELD = "held"


class NumpyInstance:
    """A named function over arrays, with a signature."""

    def __init__(
        self,
        name: str,
        inputs: dict[str, tuple[str, Dims]],
        outputs: dict[str, tuple[str, Dims]],
        compute: Callable[[Arrays], dict[str, np.ndarray]],
    ) -> None:
        self.name = name
        self.signature = signature.Signature(_specs(inputs), _specs(outputs))
        self.metadata = {"name": name}
        self.digest = hashlib.sha256(name.encode()).hexdigest()
        self.is_native = True
        self.is_open = True
        self.num_runs = 0
        self.mark: Path | None = None
        self._compute = compute

    def run(self, inputs: Arrays) -> dict[str, np.ndarray]:
        """Check the inputs against the signature, then compute; it ends when it is not held."""
        self.check(inputs)
        self.num_runs += 1
        outputs = self._compute(inputs)
        while self._is_held(inputs):
            time.sleep(0.005)
        return outputs

    def _is_held(self, inputs: Arrays) -> bool:
        """Whether somebody wants this run, or every run, not to end yet."""
        try:
            wanted = self.mark.read_text() if self.mark is not None else None
        except FileNotFoundError:
            return False
        if wanted is None:
            return False
        return not wanted or float(wanted) == next(iter(inputs.values())).flat[0]

    def check(self, inputs: Arrays) -> None:
        """InputError for a wrong dtype, rank or dim; symbols must agree with each other."""
        bound: dict[str, int] = {}
        for spec in self.signature.inputs:
            value = inputs[spec.name]
            path = f"inputs.{spec.name}"
            if value.dtype != elements.numpy_dtype(spec.dtype):
                raise errors.InputError(f"expected {spec.dtype}, found {value.dtype}", path)
            if value.ndim != len(spec.dims):
                raise errors.InputError(f"expected rank {len(spec.dims)}, found {value.ndim}", path)
            for dim, found in zip(spec.dims, value.shape, strict=True):
                expected = bound.setdefault(dim, found) if isinstance(dim, str) else dim
                if expected != found:
                    raise errors.InputError(f"expected {dim} = {expected}, found {found}", path)

    def start(
        self,
        inputs: Arrays,
        lane: Any,  # noqa: ARG002  numpy needs none
        on_done: Callable[[Any, Exception | None], None],
    ) -> None:
        """Compute in a thread, as the lane computes beside the loop; finish on the loop."""
        self.check(inputs)
        loop = asyncio.get_running_loop()

        def compute() -> None:
            outputs, error = None, None
            try:
                outputs = self.run(inputs)
            except Exception as fault:  # noqa: BLE001  handed to the loop
                error = fault
            loop.call_soon_threadsafe(on_done, outputs, error)

        if self.name == "add_one":  # too quick for a thread: measures the server alone
            loop.call_soon(on_done, self.run(inputs), None)
        else:
            loop.run_in_executor(None, compute)

    def bind(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """numpy makes its outputs anew in every run."""

    def close(self) -> None:
        """Nothing runs any more."""
        self.is_open = False


def _specs(described: dict[str, tuple[str, Dims]]) -> tuple[signature.TensorSpec, ...]:
    return tuple(
        signature.TensorSpec(name, dtypes.named(kind), dims)
        for name, (kind, dims) in described.items()
    )


def _slow(inputs: Arrays) -> dict[str, np.ndarray]:
    seconds = float(inputs["seconds"][0])
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(min(0.01, seconds))
    return {"slept": inputs["seconds"]}


def _fragile(inputs: Arrays) -> dict[str, np.ndarray]:
    """-1 fails, -2 kills the process, -3 hangs; anything else is doubled."""
    value = float(inputs["x"].reshape(-1)[0])
    if value == -1:
        raise ZeroDivisionError("the model divides by zero here")
    if value == -2:
        os.abort()
    if value == -3:
        time.sleep(600)
    return {"y": inputs["x"] * 2}


def _picky(inputs: Arrays) -> dict[str, np.ndarray]:
    """Every row is doubled after a while that does not depend on their number; -1 fails."""
    time.sleep(0.05)
    if (inputs["x"] == -1).any():
        raise ZeroDivisionError("the model divides by zero here")
    return {"y": inputs["x"] * 2}


def _identity_of_all() -> NumpyInstance:
    names: dict[str, tuple[str, Dims]] = {kind.name: (kind.name, ("n",)) for kind in dtypes.ALL}
    outputs = {f"{name}_out": value for name, value in names.items()}
    return NumpyInstance(
        "identity_of_all", names, outputs, lambda x: {f"{key}_out": x[key] for key in x}
    )


def _identities() -> list[NumpyInstance]:
    """identity_float32 and so on: x of any one-dimensional shape to y."""
    return [
        NumpyInstance(
            f"identity_{kind.name}",
            {"x": (kind.name, ("n",))},
            {"y": (kind.name, ("n",))},
            lambda inputs: {"y": inputs["x"]},
        )
        for kind in dtypes.ALL
    ]


def models() -> dict[str, NumpyInstance]:
    """New instances of all models, by name."""
    f32 = "float32"
    every = [
        NumpyInstance(
            "add_one", {"x": (f32, (1, 4))}, {"y": (f32, (1, 4))}, lambda x: {"y": x["x"] + 1}
        ),
        NumpyInstance(
            "sum_and_difference",
            {"a": (f32, ("rows", 2)), "b": (f32, ("rows", 2))},
            {"sum": (f32, ("rows", 2)), "difference": (f32, ("rows", 2))},
            lambda x: {"sum": x["a"] + x["b"], "difference": x["a"] - x["b"]},
        ),
        NumpyInstance("slow", {"seconds": (f32, (1,))}, {"slept": (f32, (1,))}, _slow),
        NumpyInstance("fragile", {"x": (f32, ("n",))}, {"y": (f32, ("n",))}, _fragile),
        NumpyInstance("picky", {"x": (f32, ("rows", 1))}, {"y": (f32, ("rows", 1))}, _picky),
        NumpyInstance(
            "mixing",
            {"x": (f32, ("rows", 2))},
            {"y": (f32, ("rows", 2))},
            lambda x: {"y": x["x"] - x["x"].mean(axis=0)},
        ),
        _identity_of_all(),
        *_identities(),
    ]
    return {instance.name: instance for instance in every}


def opened(path: Path) -> NumpyInstance:
    """The model named in the file; a second word "interpreted" sends it to another process."""
    name, *words = path.read_text().split()
    if name not in models():
        raise errors.ExecutableError(f"{path}: expected one of our models, found {name!r}")
    instance = models()[name]
    instance.is_native = "interpreted" not in words
    instance.mark = path.with_name(HELD)
    return instance


if __name__ == "__main__":
    _, _, _path, _fds = sys.argv
    _instance = opened(Path(_path))
    interpreter.answer(_instance.run, _instance.signature, _fds)
