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
    with _Progress(is_shown=sys.stderr.isatty() and not options.quiet) as progress:
        path = api.build(
            options.source,
            options.out,
            options.target,
            options.strict,
            precision=options.precision,
            contract=options.contract,
            progress=progress,
        )
    if options.quiet:
        print(path)
        return 0
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
    nodes = "node" if num_interpreted == 1 else "nodes"
    print(f"  {num_steps} native steps, {num_interpreted} interpreted {nodes} ({share:.0%}):")
    for reason, names in interpreted.items():
        print(f"    {len(names):4} x {reason}")


class _Progress:
    """A bar in the last line of a terminal, gone when the work is; nothing elsewhere."""

    def __init__(self, *, is_shown: bool) -> None:
        self._is_shown = is_shown

    def __enter__(self) -> _Progress:
        return self

    def __call__(self, step: str, done: int, total: int) -> None:
        if self._is_shown:
            filled = "#" * (30 * done // max(total, 1))
            sys.stderr.write(f"\r\033[K{step:18} [{filled:30}] {done}/{total}")
            sys.stderr.flush()

    def __exit__(self, *_: object) -> None:
        if self._is_shown:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()
