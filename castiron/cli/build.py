"""``castiron build``: compile an ONNX model to an executable file."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time

HELP = "compile an ONNX model to one executable file"


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("source", help="the ONNX file")
    parser.add_argument("-o", "--out", help="the executable to write (default: SOURCE.cast)")
    parser.add_argument(
        "--target",
        choices=("avx512", "avx2", "baseline", "aarch64"),
        help="the machine to compile for (default: this one)",
    )
    parser.add_argument(
        "--strict", action="store_true", help="refuse ops that would be interpreted"
    )
    parser.add_argument(
        "--precision",
        choices=("default", "strict"),
        default="default",
        help="strict keeps convolutions to the accuracy of the direct form",
    )
    parser.add_argument(
        "--contract", help="a contract that the model must fit (default: the one beside it)"
    )
    parser.add_argument("--quiet", action="store_true", help="print only the path")


def run(options: argparse.Namespace) -> int:
    """Build and say what came out."""
    from castiron import api

    start = time.perf_counter()
    progress = None if options.quiet else _Progress()
    path = api.build(
        options.source,
        options.out,
        options.target,
        options.strict,
        precision=options.precision,
        contract=options.contract,
        progress=progress,
    )
    if progress is None:
        print(path)
        return 0
    progress.end()
    with api.open_file(path) as file:
        report = json.loads(file.report())
    size_mb = os.path.getsize(path) / 1e6
    seconds = time.perf_counter() - start
    print(f"{path}: {size_mb:.1f} MB for {report['target']}, built in {seconds:.1f} s")
    _say_stages(report)
    return 0


def _say_stages(report: dict[str, object]) -> None:
    stages: list[dict[str, list[object]]] = report["stages"]  # type: ignore[assignment]
    num_steps = sum(len(stage.get("steps", ())) for stage in stages)
    interpreted: dict[str, list[str]] = report["interpreted"]  # type: ignore[assignment]
    num_interpreted = sum(len(names) for names in interpreted.values())
    if not interpreted:
        print(f"  {num_steps} native steps, nothing interpreted")
        return
    share = num_interpreted / (num_interpreted + num_steps)
    print(f"  {num_steps} native steps, {num_interpreted} interpreted nodes ({share:.0%}):")
    for reason, names in interpreted.items():
        print(f"    {len(names):4} x {reason}")


class _Progress:
    """A bar on the terminal, or a line for each step where there is no terminal."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._step = ""

    def __call__(self, step: str, done: int, total: int) -> None:
        if self._is_terminal:
            filled = "#" * (30 * done // max(total, 1))
            sys.stderr.write(f"\r\033[K{step:18} [{filled:30}] {done}/{total}")
            sys.stderr.flush()
        elif step != self._step:
            sys.stderr.write(f"{step}\n")
        self._step = step

    def end(self) -> None:
        """Leave the terminal's line clean."""
        if self._is_terminal:
            sys.stderr.write("\r\033[K")
