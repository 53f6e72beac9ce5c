"""Latency against the peers: how much faster castiron runs the same model on the same input.

    python -m bench.latency [--threads 1] [--runs 15] [--rounds 2] [--write] [model ...]

At one thread processor time counts, at more threads wall time; each engine gets a process of its
own for each round, in turn, and the least of all counts. The ratio is against the faster peer.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import inputs, machine, process, table, worker
from zoo import fetch, made

MODELS = ("resnet50", "ocr_det", "ocr_rec", "orientation", "minilm", "mobilenet_v2")


@dataclass(frozen=True, slots=True)
class Method:
    """How a model is measured: threads of the engine, runs in a process, processes in turn."""

    threads: int
    runs: int
    rounds: int

    @property
    def field(self) -> str:
        """What counts: at one thread the time that the neighbours on the machine cannot touch."""
        return "processor_ms" if self.threads == 1 else "wall_ms"


def source(name: str) -> Path:
    """The ONNX file of a model of the zoo."""
    return made.path(name) if name in made.NAMES else fetch.path(name)


def executable(name: str) -> Path:
    """The same model, compiled now by the compiler as it is."""
    out = inputs.work_folder() / f"{name}.cast"
    process.build(source(name), out)
    return out


def measure(name: str, method: Method, engines: Sequence[str]) -> dict[str, float]:
    """Milliseconds for each engine: the least over all rounds."""
    place = inputs.folder(name, inputs.usual(name))
    files = {each: source(name) for each in engines}
    if "castiron" in files:
        files["castiron"] = executable(name)
    best = dict.fromkeys(engines, math.inf)
    for _ in range(method.rounds):
        for engine, file in files.items():
            question = ("latency", engine, file, place, method.threads, method.runs)
            answer = process.ask(*question, threads=method.threads)
            best[engine] = min(best[engine], answer[method.field])
    return best


def report(names: Sequence[str], method: Method, engines: Sequence[str]) -> str:
    """Measure all models and answer with the table and its heading lines."""
    rows, against_first, against_best = [], [], []
    for name in names:
        best = measure(name, method, engines)
        peers = [best[engine] for engine in engines if engine != "castiron"]
        cells = [name, *(f"{best[engine]:.2f}" for engine in engines)]
        if "castiron" in best and peers:
            against_first.append(peers[0] / best["castiron"])
            against_best.append(min(peers) / best["castiron"])
            cells += [f"{against_first[-1]:.2f}x", f"{against_best[-1]:.2f}x"]
        rows.append(cells)
        print(" ".join(cells), flush=True)
    head = ["model, ms", *engines]
    if against_first:
        head += [f"speed against {engines[1]}", "against the faster peer"]
        means = [f"{_geometric_mean(r):.2f}x" for r in (against_first, against_best)]
        rows.append(["geometric mean", *([""] * len(engines)), *means])
    kind = "processor time" if method.threads == 1 else "wall time"
    how = f"{kind}, {method.threads} thread(s), least of {method.rounds} x {method.runs} runs"
    return table.with_heading([*machine.description(), how], table.markdown(head, rows))


def _geometric_mean(ratios: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line of this file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--engines", default=",".join(worker.NAMES), help="castiron first")
    parser.add_argument("--write", action="store_true", help="put the table into README.md")
    chosen = parser.parse_args(arguments)
    method = Method(chosen.threads, chosen.runs, chosen.rounds)
    text = report(chosen.models, method, chosen.engines.split(","))
    print(text)
    if chosen.write:
        table.publish("latency", text)


if __name__ == "__main__":
    main()
