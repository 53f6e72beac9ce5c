"""Merging requests: what it gains with many clients, and what it costs a single one.

    python -m bench.merging [--seconds 3] [--rounds 3] [--write]

A stack of dense layers whose weights do not fit a cache, so that eight rows in one run cost little
more than one. One server merges, one does not; they are asked in turns by the same clients.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from bench import edge, machine, table
from castiron import api

CLIENTS = 16
_WIDTH, _LAYERS = 2048, 4


def save_model(path: Path) -> None:
    """Rows of ``_WIDTH`` values through dense layers with Relu."""
    mixing = np.random.default_rng(3).normal(0, (2 / _WIDTH) ** 0.5, (_WIDTH, _WIDTH))
    weights = [
        numpy_helper.from_array(np.roll(mixing, layer, 0).astype(np.float32), f"w{layer}")
        for layer in range(_LAYERS)
    ]
    nodes, value = [], "x"
    for layer in range(_LAYERS):
        last = "y" if layer == _LAYERS - 1 else f"h{layer}"
        nodes.append(helper.make_node("MatMul", [value, f"w{layer}"], [f"p{layer}"]))
        nodes.append(helper.make_node("Relu", [f"p{layer}"], [last]))
        value = last
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", _WIDTH]) for name in "xy"
    ]
    graph = helper.make_graph(nodes, "dense", ends[:1], ends[1:], weights)
    opsets = [helper.make_opsetid("", 20)]
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)


@contextlib.contextmanager
def served(folder: Path, batch_rows: int) -> Iterator[tuple[int, int]]:
    """The process and port of a server, ready."""
    command = [sys.executable, "-m", "castiron", "serve", str(folder / "models"), "--port", "0",
               "--threads", "1", "--batch-rows", str(batch_rows)]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline().decode().rsplit(":", 1)[1])
        probe = b"GET /v2/health/ready HTTP/1.1\r\nHost: a\r\n\r\n"
        while b" 200 " not in edge.ask_once(port, probe):
            time.sleep(0.05)
        yield process.pid, port
        process.terminate()


def row_us(folder: Path, num_rows: int) -> float:
    """What a run of so many rows takes for each, called in process."""
    instance = api.load(folder / "models/dense/1/model.cast", threads=1)
    inputs = {"x": np.ones((num_rows, _WIDTH), np.float32)}
    found = []
    for _ in range(20):
        begun = time.perf_counter()
        instance.run(inputs)
        found.append((time.perf_counter() - begun) * 1e6)
    return statistics.median(found) / num_rows


def report(seconds: float, rounds: int) -> str:
    """The table with its heading lines."""
    text = edge.request("dense", _WIDTH, is_raw=True)
    merging: dict[str, list[tuple[float, float]]] = {"requests alone": [], "requests merged": []}
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        save_model(folder / "model.onnx")
        (folder / "models/dense/1").mkdir(parents=True)
        api.build(folder / "model.onnx", folder / "models/dense/1/model.cast")
        costs = {rows: row_us(folder, rows) for rows in (1, 8, 32)}
        servers = {
            label: stack.enter_context(served(folder, rows))
            for label, rows in zip(merging, (1, 32), strict=True)
        }
        for _ in range(rounds):
            for label, (process, port) in servers.items():
                p50, _ = edge.latencies_us(port, text, seconds)
                answers, _ = edge.rate(process, port, text, seconds, CLIENTS)
                merging[label].append((p50, answers))
    shown = ", ".join(f"{cost:.0f} us in runs of {rows}" for rows, cost in costs.items())
    lines = [*machine.description(), f"in process, a row takes {shown}"]
    lines.append(f"the best of {rounds} rounds of each, since others use the machine too")
    found = [
        [label, f"{min(p50 for p50, _ in values):.0f}", f"{max(rate for _, rate in values):.0f}"]
        for label, values in merging.items()
    ]
    head = ["server", "p50 us, one client", f"req/s, {CLIENTS} clients"]
    return table.with_heading(lines, table.markdown(head, found))


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line of this file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="put the table into README.md")
    chosen = parser.parse_args(arguments)
    text = report(chosen.seconds, chosen.rounds)
    print(text)
    if chosen.write:
        table.publish("merging", text)


if __name__ == "__main__":
    main()
