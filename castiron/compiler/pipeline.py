"""The compiler on one page: every step from a graph to an executable's contents, in order.

Each pass takes a graph and gives a graph, is verified, and reports its name to ``progress``. What
a pass means is in ``passes/``; how nodes become steps in ``codegen/``; where values live in
``plan.py``; how it all is written in ``encode.py``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from castiron import errors
from castiron.compiler import encode, plan, report, stages
from castiron.compiler.codegen import assemble, families, link, peak, threads
from castiron.compiler.passes.choose_layouts import choose_layouts
from castiron.compiler.passes.flush_subnormals import flush_subnormals
from castiron.compiler.passes.fold_constants import fold_constants
from castiron.compiler.passes.fold_scales import fold_scales
from castiron.compiler.passes.fuse_elementwise import fuse_elementwise
from castiron.compiler.passes.fuse_norms import fuse_norms
from castiron.compiler.passes.infer_shapes import infer_shapes
from castiron.compiler.passes.mark_interpreted import mark_interpreted
from castiron.compiler.passes.simplify import simplify
from castiron.compiler.target import Target
from castiron.executable import program
from castiron.executable.writer import Contents
from castiron.graph import verify
from castiron.graph.graph import Graph, Node

Evaluate = Callable[[Node, Sequence[np.ndarray | None]], list[np.ndarray]]
Package = Callable[[Sequence[Node], Graph, Sequence[str], Sequence[str]], bytes]
Progress = Callable[[str, int, int], None]
Watch = Callable[[str, Graph], None]


def _silent(step: str, done: int, total: int) -> None:
    """Progress that nobody watches."""


def _unwatched(name: str, graph: Graph) -> None:
    """Passes that nobody watches."""


@dataclasses.dataclass(frozen=True, slots=True)
class Options:
    """How to compile.

    ``evaluate`` computes one node on constants and ``package`` wraps nodes that have no kernel
    for the reference evaluator; both are handed in, since only the loader knows ONNX.
    ``strict`` refuses interpreted nodes. ``precision`` "strict" switches the 4x4 Winograd
    convolution off. ``progress(step, done, total)`` is told how far the work is.
    """

    target: Target
    evaluate: Evaluate
    package: Package
    strict: bool = False
    precision: str = "default"
    progress: Progress = _silent


def compile_graph(graph: Graph, options: Options) -> Contents:
    """Compile a loaded graph to everything that its executable file holds."""
    graph = lower_graph(graph, options)
    weights = plan.Weights()
    cut = stages.cut(graph)
    plans = [
        plan.plan_stage(graph, stage.nodes, (stage.reads, stage.writes), options.target, weights)
        for stage in cut
        if stage.is_native
    ]
    image = _machine_code(plans, options)
    written, source = _program(graph, (cut, plans), image, weights, options)
    return Contents(
        target=options.target.name,
        machine=options.target.architecture,
        flags=options.target.required_flags,
        image=image.data,
        text_bytes=image.text_bytes,
        symbols=image.symbols,
        plan=program.encode(written),
        report=report.report(graph, (cut, plans), image, options.target),
        source=source,
        weights=[weights.tobytes()],
    )


def lower_graph(graph: Graph, options: Options, watch: Watch = _unwatched) -> Graph:
    """All passes in order; the graph is verified after each, then shown to ``watch``."""

    def simplified(current: Graph) -> Graph:
        return simplify(infer_shapes(current))

    def canonical(current: Graph) -> Graph:
        return fold_scales(fuse_norms(simplified(current)))

    def mark(current: Graph) -> Graph:
        return mark_interpreted(current, canonical, families.gap, options.strict)

    passes: list[tuple[str, Callable[[Graph], Graph]]] = [
        ("infer_shapes", infer_shapes),
        ("fold_constants", lambda g: infer_shapes(fold_constants(g, options.evaluate))),
        ("mark_interpreted", mark),
        ("simplify", simplified),
        ("fuse_norms", fuse_norms),
        ("fold_scales", lambda g: simplified(fold_scales(g))),
        ("flush_subnormals", flush_subnormals),
        ("choose_layouts", lambda g: choose_layouts(g, options.precision)),
        ("fuse_elementwise", fuse_elementwise),
    ]
    for done, (name, run) in enumerate(passes):
        options.progress(name, done, len(passes))
        graph = run(graph)
        verify.verify(graph, name)
        watch(name, graph)
    return graph


def _machine_code(plans: list[plan.Plan], options: Options) -> link.Image:
    """All kernels of all stages and the run-time functions, compiled and linked."""
    texts: dict[str, str] = {}
    for step in (step for each in plans for step in each.steps):
        text = texts.setdefault(step.kernel.symbol, step.kernel.text)
        if text != step.kernel.text:
            raise errors.BuildError(f"two kernels are both named {step.kernel.symbol}")
    support = [threads.run_text(options.target.architecture), peak.peak_text(options.target)]
    objects = assemble.compile_kernels(
        [*support, *texts.values()],
        options.target,
        progress=lambda done, total: options.progress("machine code", done, total),
    )
    return link.link(objects, options.target)


def _program(
    graph: Graph,
    parts: tuple[Sequence[stages.Stage], list[plan.Plan]],
    image: link.Image,
    weights: plan.Weights,
    options: Options,
) -> tuple[program.Program, bytes]:
    """The plan section, and the source section that its interpreted stages point into."""
    cut, plans = parts
    written = encode.encode_slots(graph, cut)
    written.kernels = tuple(image.symbols)
    written.kernel_offsets = [offset for offset, _ in image.symbols.values()]
    tables = encode.tables_of(written)
    native = iter(plans)
    source = bytearray()
    encoded: list[program.NativeStage | program.InterpretedStage] = []
    for stage in cut:
        if stage.is_native:
            encoded.append(encode.encode_stage(next(native), graph, tables, weights))
            continue
        data = options.package(stage.nodes, graph, stage.reads, stage.writes)
        span = (len(source), len(data))
        encoded.append(encode.encode_interpreted(stage, span, tables))
        source += data
    written.stages = encoded
    return written, bytes(source)
