"""``castiron inspect``: what an executable file holds, from graph to kernels and bytes."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from castiron.executable.reader import ExecutableFile

HELP = "show an executable's graph, steps, kernels, buffers and interpreted ops"


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("file", help="the executable file")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.add_argument("--graph", action="store_true", help="print the compiled graph as well")


def run(options: argparse.Namespace) -> int:
    """Print the report."""
    from castiron import api

    with api.open_file(options.file) as file:
        found = _describe(file)
    if options.json:
        print(json.dumps(found, indent=1, sort_keys=True))
        return 0
    print("\n".join(_lines(found)))
    if options.graph:
        print(found["graph"])
    return 0


def _describe(file: ExecutableFile) -> dict[str, Any]:
    from castiron.executable import program

    report: dict[str, Any] = json.loads(file.report())
    written = program.decode(file.plan)
    edges = {"inputs": written.inputs, "outputs": written.outputs}
    for name, slots in edges.items():
        report[name] = [
            {
                "name": written.slots[slot].name,
                "dtype": written.slots[slot].dtype,
                "dims": list(written.slots[slot].labels),
            }
            for slot in slots
        ]
    header = file.header
    report["digest"] = file.digest
    report["bytes"] = {name: part.size for name, part in header.parts.items()}
    report["required_cpu_flags"] = list(header.flags)
    native = [stage for stage in written.stages if isinstance(stage, program.NativeStage)]
    report["arena_bytes"] = [stage.placed[-1] if stage.placed else None for stage in native]
    return report


def _lines(found: dict[str, Any]) -> list[str]:
    lines = [f"{found['model']} for {found['target']}, sha256 {found['digest'][:16]}"]
    for kind in ("inputs", "outputs"):
        for edge in found[kind]:
            dims = ", ".join(edge["dims"])
            lines.append(f"  {kind[:-1]:8} {edge['name']}: {edge['dtype']}[{dims}]")
    sizes = ", ".join(f"{name} {size:,}" for name, size in found["bytes"].items() if size)
    lines.append(f"  bytes    {sizes}")
    native = iter(found["arena_bytes"])
    for position, stage in enumerate(found["stages"]):
        arena_bytes = next(native) if stage["kind"] == "native" else None
        lines += _stage_lines(position, stage, arena_bytes)
    if found["interpreted"]:
        lines.append("interpreted ops:")
        lines += [f"  {len(n):4} x {reason}" for reason, n in found["interpreted"].items()]
    return lines


def _stage_lines(position: int, stage: dict[str, Any], arena_bytes: int | None) -> list[str]:
    if stage["kind"] == "interpreted":
        return [f"stage {position}: interpreted: {', '.join(stage['ops'])}"]
    steps, arena = stage["steps"], "sized by the inputs"
    if arena_bytes is not None:
        arena = f"{arena_bytes:,} bytes"
    counts = f"{len(steps)} steps, {len(stage['buffers'])} buffers"
    lines = [f"stage {position}: native, {counts}, arena {arena}"]
    width = min(max((len(step["kernel"]) for step in steps), default=0), 60)
    names = min(max((len(step["name"]) for step in steps), default=0), 50)
    for number, step in enumerate(steps):
        name = step["name"] if len(step["name"]) <= names else step["name"][: names - 3] + "..."
        lines.append(f"  {number:4}  {step['kernel']:{width}}  {name:{names}}  x {step['units']}")
    return lines
