"""Random models and backend nodes after each pass in turn: the same numbers, all types true."""

from __future__ import annotations

from collections.abc import Iterator

import hypothesis
import hypothesis.strategies as st
import numpy as np
import onnx

from castiron.compiler import pipeline
from castiron.compiler import target as targets
from castiron.graph.graph import Graph
from castiron.loader import evaluator
from castiron.loader import onnx as loader
from tests.compiler import random_graphs
from tests.passes import run_graph

SHAPES = ((2, 10, 12), (1, 7, 9))


@st.composite
def models(draw: st.DrawFn) -> onnx.ModelProto:
    return random_graphs.random_model(lambda low, high: draw(st.integers(low, high)))


def graphs_after_passes(graph: Graph) -> Iterator[tuple[str, Graph]]:
    """The name of each pass and the graph that it gave, in the order of the pipeline."""
    seen: list[tuple[str, Graph]] = []

    def watch(name: str, current: Graph) -> None:
        seen.append((name, current))

    options = pipeline.Options(
        targets.named("baseline"), evaluator.evaluate_node, evaluator.package, strict=True
    )
    pipeline.lower_graph(graph, options, watch)
    yield from seen


@hypothesis.settings(max_examples=25)
@hypothesis.given(model=models())
def test_every_pass_keeps_what_a_random_model_computes(model: onnx.ModelProto) -> None:
    graph = loader.load(model.SerializeToString())
    steps = list(graphs_after_passes(graph))
    assert [name for name, _ in steps][-2:] == ["choose_layouts", "fuse_elementwise"]
    channels = model.graph.input[0].type.tensor_type.shape.dim[1].dim_value
    for n, h, w in SHAPES:
        x = np.random.default_rng(n).standard_normal((n, channels, h, w)).astype(np.float32)
        try:
            wanted = run_graph.run(steps[0][1], {"x": x})
        except (ValueError, RuntimeError):
            continue  # the drawn shape does not fit this model
        for name, current in steps[1:]:
            found = run_graph.run(current, {"x": x})
            for output in graph.outputs:
                largest = max(float(np.abs(wanted[output]).max(initial=0.0)), 1e-6)
                np.testing.assert_allclose(
                    found[output], wanted[output], rtol=1e-3, atol=2e-5 * largest, err_msg=name
                )


def test_the_passes_are_those_of_the_architecture() -> None:
    model = random_graphs.random_model(lambda low, _: low)
    names = [name for name, _ in graphs_after_passes(loader.load(model.SerializeToString()))]
    assert names == [
        "infer_shapes",
        "fold_constants",
        "mark_interpreted",
        "simplify",
        "fuse_norms",
        "fold_scales",
        "flush_subnormals",
        "choose_layouts",
        "fuse_elementwise",
    ]
