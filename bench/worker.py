"""What runs inside a measured process: one engine, one model, one question, one line of JSON.

    python -P bench/worker.py latency castiron model.cast inputs/ 1 11

It imports its engine and nothing that another engine needs; ratios are the parent's business.
Inputs are raw files (`bench.inputs`), so that an engine that can do without numpy does.
"""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any

    Inputs = Mapping[str, Any]
    Run = Callable[[Inputs], Any]


def _load_castiron(file: str, threads: int) -> Run:
    from castiron import api

    return api.load(file, threads=threads).run


def _load_onnxruntime(file: str, threads: int) -> Run:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    loaded = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    return lambda inputs: loaded.run(None, dict(inputs))


def _load_openvino(file: str, threads: int) -> Run:
    import openvino

    settings = {
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
        "INFERENCE_PRECISION_HINT": "f32",
        "PERFORMANCE_HINT": "LATENCY",
    }
    compiled: Run = openvino.Core().compile_model(file, "CPU", settings)
    return compiled


_ENGINES: Mapping[str, Callable[[str, int], Run]] = {
    "castiron": _load_castiron,
    "onnxruntime": _load_onnxruntime,
    "openvino": _load_openvino,
}
NAMES = tuple(_ENGINES)


def _arrays(folder: str) -> Inputs:
    import numpy as np

    return {
        name: np.fromfile(file, dtype).reshape(shape) for name, dtype, shape, file in _index(folder)
    }


def _buffers(folder: str) -> Inputs:
    """The same without numpy, for an engine that takes any buffer."""
    codes: Mapping[str, Any] = {"float32": "f", "int64": "q", "int32": "i", "bool": "?"}
    found: dict[str, Any] = {}
    for name, dtype, shape, file in _index(folder):
        with open(file, "rb") as opened:  # noqa: PTH123  pathlib would be part of the start time
            content = bytearray(opened.read())
        found[name] = memoryview(content).cast(codes[dtype], shape)
    return found


def _index(folder: str) -> Iterator[tuple[str, str, tuple[int, ...], str]]:
    with open(f"{folder}/index", encoding="utf-8") as lines:  # noqa: PTH123  as above
        for number, line in enumerate(lines):
            name, dtype, *shape = line.rstrip("\n").split("\t")
            yield name, dtype, tuple(int(extent) for extent in shape), f"{folder}/{number}"


def latency(engine: str, file: str, folder: str, threads: int, runs: int) -> dict[str, float]:
    """Milliseconds of processor time and of wall time, the least of `runs`, and the median."""
    run, inputs = _ENGINES[engine](file, threads), _arrays(folder)
    for _ in range(3):
        run(inputs)
    processor_ms, wall_ms = [], []
    for _ in range(runs):
        wall, processor = time.perf_counter(), time.process_time()
        run(inputs)
        processor_ms.append((time.process_time() - processor) * 1e3)
        wall_ms.append((time.perf_counter() - wall) * 1e3)
    return {
        "processor_ms": min(processor_ms),
        "wall_ms": min(wall_ms),
        "median_ms": sorted(wall_ms)[runs // 2],
    }


def first(engine: str, file: str, folder: str, threads: int) -> dict[str, float]:
    """The moment of the first output, on the clock that the parent read before it started us."""
    run = _ENGINES[engine](file, threads)
    run(_buffers(folder) if engine == "castiron" else _arrays(folder))
    return {"done_at_s": time.time()}


def memory(engine: str, file: str, folder: str, threads: int, runs: int) -> dict[str, float]:
    """Bytes resident at the peak, after one run and after `runs`; and before anything is loaded."""
    inputs = _arrays(folder)
    before = _peak_bytes()
    run = _ENGINES[engine](file, threads)
    run(inputs)
    once = _peak_bytes()
    for _ in range(runs):
        run(inputs)
    return {"before_bytes": before, "once_bytes": once, "peak_bytes": _peak_bytes()}


def widths(engine: str, file: str, runs: int) -> dict[str, float]:
    """Bytes resident after the 10th, and after the last, of `runs` pictures of random widths."""
    import numpy as np

    run, random = _ENGINES[engine](file, 1), np.random.default_rng(1)
    tenth = 0
    for index in range(runs):
        width = int(random.integers(32, 640))
        run({"x": random.standard_normal((1, 3, 48, width), dtype=np.float32)})
        if index == 9:
            tenth = _resident_bytes()
    return {"tenth_bytes": tenth, "last_bytes": _resident_bytes(), "peak_bytes": _peak_bytes()}


def peak(file: str, seconds: float) -> dict[str, float]:
    """GFLOP/s of one core in float32: an executable's own probe, and numpy's matrix product."""
    import json

    import numpy as np

    from castiron import api
    from castiron.runtime import probe

    with api.open_file(file) as opened:
        target = json.loads(opened.report())["target"]
    code = api.load(file, threads=1).code
    side = 768
    a = np.random.default_rng(0).standard_normal((side, side), dtype=np.float32)
    probed, product, end = 0.0, 0.0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        probed = max(probed, probe.peak_gflops(code, target))
        begin = time.process_time()
        a @ a
        product = max(product, 2 * side**3 / (time.process_time() - begin) / 1e9)
    return {"probe_gflops": probed, "product_gflops": product}


def _peak_bytes() -> int:
    # Not getrusage: its peak is inherited from the process that started this one.
    with open("/proc/self/status", encoding="ascii") as status:  # noqa: PTH123  as above
        (line,) = (line for line in status if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def _resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as statm:  # noqa: PTH123  as above
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main(question: str, *rest: str) -> None:
    """Answer one question on standard output, as JSON."""
    if question == "peak":
        answer = peak(rest[0], float(rest[1]))
    elif question == "widths":
        answer = widths(rest[0], rest[1], int(rest[2]))
    elif question == "latency":
        answer = latency(rest[0], rest[1], rest[2], int(rest[3]), int(rest[4]))
    elif question == "memory":
        answer = memory(rest[0], rest[1], rest[2], int(rest[3]), int(rest[4]))
    else:
        answer = first(rest[0], rest[1], rest[2], int(rest[3]))
    # Written by hand: importing a JSON writer would be part of the start time.
    sys.stdout.write("{" + ", ".join(f'"{k}": {v!r}' for k, v in answer.items()) + "}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
