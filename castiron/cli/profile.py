"""``castiron profile``: which step is slow, and how far each is from the machine's peak."""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
from typing import TYPE_CHECKING, Any

from castiron.cli import samples
from castiron.executable import program
from castiron.runtime import probe

if TYPE_CHECKING:
    from castiron.runtime.instance import Instance

HELP = "time every step of an executable, slowest first, against the measured peak"
_RUNS = 15
_BAR = 28


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("file", help="the executable file")
    samples.add_options(parser)
    parser.add_argument("--runs", type=int, default=_RUNS, help="runs; each step's least counts")
    parser.add_argument("--top", type=int, default=25, help="how many steps to show")
    parser.add_argument("--svg", metavar="FILE", help="also write the bars as an SVG picture")
    parser.add_argument("--json", action="store_true", help="print as JSON")


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One step's best time over the runs. ``share_of_peak`` is None without multiplications."""

    name: str
    kernel: str
    us: float
    gflops: float
    share_of_peak: float | None


def run(options: argparse.Namespace) -> int:
    """Profile and print."""
    from castiron import api

    instance = api.load(options.file, threads=1)
    inputs = samples.inputs_for(instance.signature, options)
    with api.open_file(options.file) as file:
        report = json.loads(file.report())
    peak = probe.peak_gflops(instance.code, report["target"])
    rows = sorted(_rows(instance, report, (inputs, options.runs), peak), key=lambda row: -row.us)
    if options.json:
        listed = [dataclasses.asdict(row) for row in rows]
        print(json.dumps({"peak_gflops": peak, "steps": listed}, indent=1))
        return 0
    print("\n".join(lines(rows[: options.top], rows, peak)))
    if options.svg:
        pathlib.Path(options.svg).write_text(svg(rows[: options.top], rows, peak))
        print(f"wrote {options.svg}")
    return 0


def _rows(
    instance: Instance, report: dict[str, Any], what: tuple[dict[str, Any], int], peak: float
) -> list[Row]:
    inputs, runs = what
    per_us = probe.ticks_per_us(instance.code)
    best = instance.profile(inputs)
    for _ in range(runs):
        again = instance.profile(inputs)
        best = [
            [min(a, b) for a, b in zip(x, y, strict=True)] for x, y in zip(best, again, strict=True)
        ]
    symbols = instance.symbols(inputs)
    rows = []
    for stage, ticks in zip(report["stages"], best, strict=True):
        if stage["kind"] != "native":
            continue
        known = [symbols.get(name, 0) for name in stage["symbols"]]
        values = program.evaluate(stage["dims"], known)
        for step, count in zip(stage["steps"], ticks, strict=True):
            us = max(count / per_us, 1e-3)
            gflops = values[step["flops"]] / us / 1e3
            share = gflops / peak if gflops else None
            rows.append(Row(step["name"], step["kernel"], us, gflops, share))
    return rows


def lines(shown: list[Row], rows: list[Row], peak: float) -> list[str]:
    """The table with bars, as a terminal shows it."""
    total = sum(row.us for row in rows)
    most = max((row.us for row in rows), default=1.0)
    head = f"{total / 1e3:.2f} ms in {len(rows)} steps; peak of one core {peak:.0f} GFLOP/s"
    text = [head, f"{'us':>9} {'share':>6} {'of peak':>7}  {'':{_BAR}}  step"]
    for row in shown:
        bar = "█" * max(1, round(_BAR * row.us / most))
        of_peak = "" if row.share_of_peak is None else f"{row.share_of_peak:.0%}"
        text.append(
            f"{row.us:9.1f} {row.us / total:6.1%} {of_peak:>7}  {bar:{_BAR}}  "
            f"{row.kernel}  {row.name[:60]}"
        )
    if len(rows) > len(shown):
        rest = sum(row.us for row in rows) - sum(row.us for row in shown)
        text.append(f"{rest:9.1f} {rest / total:6.1%} {'':7}  in {len(rows) - len(shown)} more")
    return text


def svg(shown: list[Row], rows: list[Row], peak: float) -> str:
    """The same bars as a standalone SVG picture."""
    from xml.sax.saxutils import escape

    total = sum(row.us for row in rows)
    most = max((row.us for row in rows), default=1.0)
    height = 22
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="960" '
            f'height="{height * len(shown) + 50}" font-family="monospace" font-size="12">'
        ),
        '<rect width="100%" height="100%" fill="white"/>',
        (
            f'<text x="8" y="20" font-size="14">{total / 1e3:.2f} ms in {len(rows)} steps; '
            f"peak of one core {peak:.0f} GFLOP/s</text>"
        ),
    ]
    for at, row in enumerate(shown):
        top = 36 + at * height
        width = max(1.0, 380 * row.us / most)
        of_peak = "" if row.share_of_peak is None else f", {row.share_of_peak:.0%} of peak"
        label = escape(f"{row.us:.1f} us ({row.us / total:.1%}{of_peak})  {row.name[:60]}")
        parts.append(f'<rect x="8" y="{top}" width="{width:.1f}" height="16" fill="#4c78a8"/>')
        parts.append(f'<text x="{width + 14:.1f}" y="{top + 13}">{label}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"
