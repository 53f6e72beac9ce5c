"""Start: from starting a process to its first output, and what a tiny model adds to bare Python.

    python -m bench.start [--rounds 9] [--write]

ResNet-50 from a compiled file against the peers from the ONNX file; the wake-word net `alexa`,
without numpy on the path, against `python -c pass`. The median of all rounds, engines in turn.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence

from bench import inputs, latency, machine, process, table, worker

BIG, TINY = "resnet50", "alexa"


def medians(name: str, engines: Sequence[str], rounds: int) -> dict[str, float]:
    """Seconds to the first output for each engine."""
    place = inputs.folder(name, inputs.usual(name))
    files = {engine: latency.source(name) for engine in engines}
    if "castiron" in files:
        files["castiron"] = latency.executable(name)
    found: dict[str, list[float]] = {engine: [] for engine in engines}
    for _ in range(rounds):
        for engine, file in files.items():
            found[engine].append(process.first_output_s(engine, file, place))
    return {engine: statistics.median(seconds) for engine, seconds in found.items()}


def report(engines: Sequence[str], rounds: int) -> str:
    """Both comparisons as one table with its heading lines."""
    bare = statistics.median(process.bare_start_s() for _ in range(rounds))
    rows = [["python -c pass", f"{bare * 1e3:.0f}", ""]]
    for name, scale in ((BIG, None), (TINY, bare)):
        found = medians(name, engines, rounds)
        for engine, seconds in found.items():
            against = scale or found[engines[0]]
            unit = "of bare Python" if scale else f"of {engines[0]}"
            rows.append(
                [f"{name}, {engine}", f"{seconds * 1e3:.0f}", f"{seconds / against:.2f}x {unit}"]
            )
    text = table.markdown(["process start to first output", "ms", "ratio"], rows)
    return table.with_heading([*machine.description(), f"median of {rounds}, one thread"], text)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line of this file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--engines", default=",".join(worker.NAMES))
    parser.add_argument("--write", action="store_true", help="put the table into README.md")
    chosen = parser.parse_args(arguments)
    text = report(chosen.engines.split(","), chosen.rounds)
    print(text)
    if chosen.write:
        table.publish("start", text)


if __name__ == "__main__":
    main()
