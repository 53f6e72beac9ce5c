"""The build report: what was compiled, for ``castiron inspect`` and ``castiron profile``.

JSON, stored in the executable beside the plan; nothing reads it on the load path. Times are left
out, so that the same model and target give the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from castiron.compiler.codegen import link
from castiron.compiler.codegen.step import Step
from castiron.compiler.encode import DimsTable
from castiron.compiler.passes import mark_interpreted
from castiron.compiler.plan import Plan
from castiron.compiler.stages import Stage
from castiron.compiler.target import Target
from castiron.graph import text
from castiron.graph.graph import Graph
from castiron.tensor import dim as dims


def report(
    graph: Graph,
    parts: tuple[Sequence[Stage], Sequence[Plan]],
    image: link.Image,
    target: Target,
) -> bytes:
    """The report as JSON bytes; the same for the same build."""
    cut, plans = parts
    native = iter(plans)
    kinds = [_native(next(native)) if stage.is_native else _interpreted(stage) for stage in cut]
    content = {
        "model": graph.name,
        "target": target.name,
        "graph": text.graph_text(graph),
        "stages": kinds,
        "interpreted": mark_interpreted.reasons(graph),
        "kernels": {name: size for name, (_, size) in image.symbols.items()},
        "metadata": dict(graph.metadata),
    }
    return json.dumps(content, sort_keys=True).encode()


def _native(plan: Plan) -> dict[str, Any]:
    """The stage; ``flops`` and ``bytes`` of steps are rows of the dims table ``dims``."""
    table = DimsTable({})
    steps = [_step(step, table) for step in plan.steps]
    return {
        "kind": "native",
        "reads": list(plan.reads),
        "writes": list(plan.writes),
        "buffers": [[dims.text(size), first, last] for size, first, last in plan.buffers],
        "steps": steps,
        "dims": table.flat(),
        "symbols": table.used,
    }


def _step(step: Step, table: DimsTable) -> dict[str, Any]:
    return {
        "name": step.name,
        "kernel": step.kernel.symbol,
        "units": dims.text(step.units),
        "flops": table.row(step.flops),
        "bytes": table.row(step.bytes_moved),
    }


def _interpreted(stage: Stage) -> dict[str, Any]:
    return {
        "kind": "interpreted",
        "reads": list(stage.reads),
        "writes": list(stage.writes),
        "ops": [str(node.attr("op", node.op)) for node in stage.nodes],
    }
