"""What runs inside one process of ``castiron bench``: one engine, one model, one line of JSON.

python -m castiron.cli.measure ENGINE FILE INPUTS.npz THREADS RUNS
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

Run = Callable[[dict[str, Any]], Any]


def _castiron(file: str, threads: int) -> Run:
    from castiron import api

    return api.load(file, threads=threads).run


def _onnxruntime(file: str, threads: int) -> Run:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    loaded = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    return lambda inputs: loaded.run(None, inputs)


def _openvino(file: str, threads: int) -> Run:
    import openvino

    settings = {
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
        "INFERENCE_PRECISION_HINT": "f32",
        "PERFORMANCE_HINT": "LATENCY",
    }
    compiled: Run = openvino.Core().compile_model(file, "CPU", settings)
    return compiled


_ENGINES = {"castiron": _castiron, "onnxruntime": _onnxruntime, "openvino": _openvino}


def main(engine: str, file: str, inputs: str, threads: str, runs: str) -> None:
    """Print the least processor and wall milliseconds of a run."""
    run, arrays = _ENGINES[engine](file, int(threads)), dict(np.load(inputs))
    for _ in range(3):
        run(arrays)
    processor, wall = [], []
    for _ in range(int(runs)):
        start, start_cpu = time.perf_counter(), time.process_time()
        run(arrays)
        processor.append((time.process_time() - start_cpu) * 1e3)
        wall.append((time.perf_counter() - start) * 1e3)
    print(json.dumps({"processor_ms": min(processor), "wall_ms": min(wall)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
