"""``castiron bench``: a model's latency beside its peers', one process for each engine.

Processor time counts at one thread and wall time otherwise, the least of all rounds; the engines
take turns, so that a drift of the machine's speed meets all of them. ``measure.py`` is what runs
inside each process.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

from castiron import errors
from castiron.cli import samples

HELP = "compare a model's latency with other engines, side by side"
PEERS = ("onnxruntime", "openvino")
_TIMEOUT_S = 600


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("model", help="the ONNX file")
    parser.add_argument("--peers", default="onnxruntime", help="engines to compare, by comma")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--runs", type=int, default=15, help="timed runs in each process")
    parser.add_argument("--rounds", type=int, default=3, help="processes for each engine")
    samples.add_options(parser)
    parser.add_argument("--json", action="store_true", help="print as JSON")


def run(options: argparse.Namespace) -> int:
    """Build, measure every engine in turn, print."""
    from castiron import api

    peers = [name for name in options.peers.split(",") if name]
    unknown = [name for name in peers if name not in PEERS]
    if unknown:
        raise errors.InputError(f"expected some of {', '.join(PEERS)}, found {unknown}", "--peers")
    with tempfile.TemporaryDirectory() as folder:
        executable = api.build(options.model, pathlib.Path(folder) / "model.cast")
        inputs = _save_inputs(executable, options, pathlib.Path(folder))
        files = {"castiron": executable, **dict.fromkeys(peers, options.model)}
        best: dict[str, dict[str, float]] = {}
        for _ in range(options.rounds):
            for engine, file in files.items():
                found = _measure(engine, file, inputs, options)
                known = best.setdefault(engine, found)
                best[engine] = {key: min(known[key], found[key]) for key in found}
    _print(best, options)
    return 0


def _save_inputs(executable: str, options: argparse.Namespace, folder: pathlib.Path) -> str:
    import numpy as np

    from castiron import api

    arrays = samples.inputs_for(api.load(executable, threads=1).signature, options)
    path = folder / "inputs.npz"
    np.savez(path, allow_pickle=False, **arrays)
    return str(path)


def _measure(engine: str, file: str, inputs: str, options: argparse.Namespace) -> dict[str, float]:
    command = [sys.executable, "-m", "castiron.cli.measure", engine, str(file), inputs]
    command += [str(options.threads), str(options.runs)]
    quiet = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
        env={**os.environ, **quiet},
    )
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["it wrote nothing"]
        raise errors.ResourceError(f"{engine} failed on {file}: {last[0]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def _print(best: dict[str, dict[str, float]], options: argparse.Namespace) -> None:
    key = "processor_ms" if options.threads == 1 else "wall_ms"
    own = best["castiron"][key]
    if options.json:
        ratios = {name: found[key] / own for name, found in best.items() if name != "castiron"}
        found = {"threads": options.threads, "engines": best, "speed_against": ratios}
        print(json.dumps(found, indent=1))
        return
    print(f"{options.model}, {options.threads} thread(s), load {os.getloadavg()[0]:.1f}")
    print(f"{'engine':12} {'ms':>9} {'castiron is':>12}")
    for name, found in best.items():
        ratio = "" if name == "castiron" else f"{found[key] / own:11.2f}x"
        print(f"{name:12} {found[key]:9.3f} {ratio:>12}")
