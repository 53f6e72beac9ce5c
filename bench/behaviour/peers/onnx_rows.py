"""What computes inside each peer: onnxruntime on one thread, rows in, rows out.

Each row is counted by one byte at the end of the file that BEHAVIOUR_RUNS names, if it names one;
beside that file each process that computes leaves one of its name.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnxruntime


class OnnxRows:
    """One model file; ``run`` takes the array of ``x`` and gives that of ``y``."""

    def __init__(self, path: Path) -> None:
        counted = os.environ.get("BEHAVIOUR_RUNS")
        self._counted = None if counted is None else Path(counted)
        if self._counted is not None:
            self._counted.with_name(f"computes-{os.getpid()}").touch()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 4
        self._model = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )

    def run(self, x: np.ndarray) -> np.ndarray:
        """Raises what onnxruntime raises."""
        if self._counted is not None:
            with self._counted.open("ab") as counted:
                counted.write(b"." * len(x))
        y: np.ndarray = self._model.run(["y"], {"x": x})[0]
        return y
