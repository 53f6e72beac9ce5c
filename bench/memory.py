"""Memory: the peak of a run over what was there before, and a thousand widths of one recogniser.

    python -m bench.memory [--widths 1000] [--write]

"Loaded and run" is the growth of the resident peak from before the engine was imported to after
the first run: code, weights, arena. For castiron weights are pages of the mapped file.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from bench import inputs, latency, machine, process, table, worker

MODELS = ("resnet50", "ocr_rec", "ocr_det", "minilm")
_MB = 1e6


def run_rows(engines: Sequence[str]) -> list[list[str]]:
    """For each model and engine: size of its file, growth by one run, growth by fifty more."""
    rows = []
    for name in MODELS:
        place = inputs.folder(name, inputs.usual(name))
        for engine in engines:
            file = latency.executable(name) if engine == "castiron" else latency.source(name)
            found = process.ask("memory", engine, file, place, 1, 50)
            once = (found["once_bytes"] - found["before_bytes"]) / _MB
            more = (found["peak_bytes"] - found["once_bytes"]) / _MB
            size = file.stat().st_size / _MB
            rows.append([f"{name}, {engine}", f"{size:.0f}", f"{once:.0f}", f"{more:.1f}"])
    return rows


def width_rows(engines: Sequence[str], num_widths: int) -> list[list[str]]:
    """For each engine: resident after the 10th random width and after the last."""
    rows = []
    for engine in engines:
        file = latency.executable("ocr_rec") if engine == "castiron" else latency.source("ocr_rec")
        found = process.ask("widths", engine, file, num_widths)
        tenth, last = found["tenth_bytes"] / _MB, found["last_bytes"] / _MB
        rows.append([engine, f"{tenth:.0f}", f"{last:.0f}", f"{last - tenth:+.0f}"])
    return rows


def report(engines: Sequence[str], num_widths: int) -> str:
    """Both tables with their heading lines."""
    head = ["model, MB", "file", "loaded and run", "50 more runs"]
    wide = ["ocr_rec, MB resident", "after width 10", f"after width {num_widths}", "growth"]
    tables = [
        table.markdown(head, run_rows(engines)),
        table.markdown(wide, width_rows(engines, num_widths)),
    ]
    return table.with_heading(machine.description(), "\n\n".join(tables))


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line of this file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--widths", type=int, default=1000)
    parser.add_argument("--engines", default=",".join(worker.NAMES))
    parser.add_argument("--write", action="store_true", help="put the tables into README.md")
    chosen = parser.parse_args(arguments)
    text = report(chosen.engines.split(","), chosen.widths)
    print(text)
    if chosen.write:
        table.publish("memory", text)


if __name__ == "__main__":
    main()
