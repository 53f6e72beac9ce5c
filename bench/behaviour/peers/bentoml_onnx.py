"""BentoML: one service whose methods are the models; arrays are checked by annotations.

bentoml serve bentoml_onnx:Models, with the folder of the models in BEHAVIOUR_MODELS
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import bentoml
import numpy as np
from bentoml.validators import DType, Shape
from onnx_rows import OnnxRows

MAX_BATCH = 8

Four = Annotated[np.ndarray, DType("float32"), Shape((-1, 4))]
Column = Annotated[np.ndarray, DType("float32"), Shape((-1, 1))]
Index = Annotated[np.ndarray, DType("int64"), Shape((-1, 1))]
Free = Annotated[np.ndarray, DType("float32")]  # a Shape may have one free extent only


# Without a line for each request: no other server here writes one.
@bentoml.service(
    traffic={"timeout": 60},
    workers=int(os.environ.get("BEHAVIOUR_WORKERS", "1")),
    logging={"access": {"enabled": False}},
)
class Models:
    """Each model plain and, where it says so, batched; the size of batches adapts itself."""

    def __init__(self) -> None:
        folder = Path(os.environ["BEHAVIOUR_MODELS"])
        self._models = {path.stem: OnnxRows(path) for path in folder.glob("*.onnx")}

    @bentoml.api
    def quick(self, x: Four) -> np.ndarray:
        """One call after the other."""
        return self._models["quick"].run(x)

    @bentoml.api(batchable=True, max_batch_size=MAX_BATCH)
    def quick_batched(self, x: Four) -> np.ndarray:
        """Rows of several calls."""
        return self._models["quick"].run(x)

    @bentoml.api
    def slow(self, x: Column) -> np.ndarray:
        """One call after the other."""
        return self._models["slow"].run(x)

    @bentoml.api(batchable=True, max_batch_size=MAX_BATCH)
    def slow_batched(self, x: Column) -> np.ndarray:
        """Rows of several calls."""
        return self._models["slow"].run(x)

    @bentoml.api(batchable=True, max_batch_size=MAX_BATCH)
    def picky_batched(self, x: Index) -> np.ndarray:
        """Rows of several calls."""
        return self._models["picky"].run(x)

    @bentoml.api
    def shapes(self, x: Free) -> np.ndarray:
        """One call after the other."""
        return self._models["shapes"].run(x)
