"""Plans: views share, in-place takes over what is dead, outputs own their memory, nothing clashes."""

from __future__ import annotations

import dataclasses

import hypothesis
import hypothesis.strategies as st
import numpy as np
import onnx
import pytest

from castiron.compiler import pipeline, plan, stages
from castiron.compiler import target as targets
from castiron.graph.graph import Graph
from castiron.loader import evaluator
from castiron.loader import onnx as loader
from tests import built
from tests.compiler import follow, random_graphs
from tests.loader import models

TARGET = targets.named("avx2")


def lowered(model: onnx.ModelProto) -> Graph:
    options = pipeline.Options(TARGET, evaluator.evaluate_node, evaluator.package, strict=True)
    return pipeline.lower_graph(loader.load(model.SerializeToString()), options)


def planned(model: onnx.ModelProto, **symbols: int) -> tuple[plan.Plan, follow.Follower]:
    """The plan of a native model, followed at this binding."""
    graph = lowered(model)
    (stage,) = stages.cut(graph)
    edges = (stage.reads, stage.writes)
    found = plan.plan_stage(graph, stage.nodes, edges, TARGET, plan.Weights())
    follower = follow.Follower(graph, (stage.nodes, found, TARGET), symbols)
    follower.follow()
    return found, follower


@st.composite
def drawn_models(draw: st.DrawFn) -> onnx.ModelProto:
    return random_graphs.random_model(lambda low, high: draw(st.integers(low, high)))


@hypothesis.settings(max_examples=40)
@hypothesis.given(
    model=drawn_models(), n=st.integers(1, 3), h=st.integers(4, 20), w=st.integers(4, 20)
)
def test_no_two_live_values_share_memory_in_a_random_model(
    model: onnx.ModelProto, n: int, h: int, w: int
) -> None:
    planned(model, n=n, h=2 * h, w=2 * w)


def test_following_sees_a_clash() -> None:
    graph = lowered(built.network())
    (stage,) = stages.cut(graph)
    edges = (stage.reads, stage.writes)
    good = plan.plan_stage(graph, stage.nodes, edges, TARGET, plan.Weights())
    assert len(good.buffers) > 1
    first = plan.Place("buffer", 0)
    places = {
        value: first if place.kind == "buffer" else place for value, place in good.places.items()
    }
    bad = dataclasses.replace(good, places=places)
    follower = follow.Follower(graph, (stage.nodes, bad, TARGET), {"n": 1, "h": 9, "w": 9})
    with pytest.raises(AssertionError):
        follower.follow()


def chain(*ops: str) -> onnx.ModelProto:
    """Softmax over and over would be fused; reductions and products of rows are not."""
    nodes, value = [], "x"
    for position, op in enumerate(ops):
        out = "y" if position == len(ops) - 1 else f"v{position}"
        nodes.append(models.node(op, [value], [out], **({"axis": -1} if op == "Softmax" else {})))
        value = out
    return models.model(nodes, [models.value("x", ["n", 8])], ["y"])


def test_views_cost_no_step_and_no_memory() -> None:
    nodes = [
        models.node("Softmax", ["x"], ["a"], axis=-1),
        models.node("Reshape", ["a", "shape"], ["b"]),
        models.node("Softmax", ["b"], ["y"], axis=-1),
    ]
    model = models.model(
        nodes, [models.value("x", ["n", 8])], ["y"], {"shape": np.array([-1, 2, 4])}
    )
    found, _ = planned(model, n=3)
    assert len(found.steps) == 2
    assert len(found.buffers) == 1
    assert found.places["a"] == found.places["b"]


def test_a_step_that_may_works_in_the_place_of_a_dead_operand() -> None:
    found, follower = planned(chain("Softmax", "Softmax", "Softmax", "Softmax"), n=3)
    assert len(found.steps) == 4
    assert follower.arena_bytes <= 2 * 128
    assert len({found.places[f"v{n}"] for n in range(3)}) < 3


def test_an_operand_that_is_read_later_is_not_taken_over() -> None:
    nodes = [
        models.node("Softmax", ["x"], ["a"], axis=-1),
        models.node("Softmax", ["a"], ["b"], axis=-1),
        models.node("MatMul", ["a", "b"], ["y"]),
    ]
    found, _ = planned(models.model(nodes, [models.value("x", [8, 8])], ["y"]))
    assert found.places["a"] != found.places["b"]


def test_inputs_and_constants_are_never_written() -> None:
    nodes = [
        models.node("Add", ["x", "c"], ["a"]),
        models.node("Softmax", ["a"], ["b"], axis=-1),
        models.node("Mul", ["b", "x"], ["y"]),
    ]
    model = models.model(
        nodes, [models.value("x", [4, 8])], ["y"], {"c": np.ones((4, 8), np.float32)}
    )
    planned(model)


@pytest.mark.parametrize(
    "outputs",
    [["x"], ["y", "x"], ["y", "view"], ["view", "y"], ["c"], ["y", "view", "x", "c", "b"]],
    ids="-".join,
)
def test_outputs_that_share_memory_are_copied_apart(outputs: list[str]) -> None:
    nodes = [
        models.node("Softmax", ["x"], ["y"], axis=-1),
        models.node("Reshape", ["y", "shape"], ["view"]),
        models.node("Softmax", ["view"], ["b"], axis=-1),
    ]
    constants = {"shape": np.array([-1]), "c": np.arange(4, dtype=np.float32)}
    model = models.model(nodes, [models.value("x", ["n", 8])], outputs, constants)
    found, _ = planned(model, n=2)
    assert sorted(found.writes) == sorted(outputs)


def test_all_outputs_of_a_node_get_memory_also_those_nobody_reads() -> None:
    nodes = [
        models.node("TopK", ["x", "k"], ["values", "places"], axis=-1),
        models.node("Split", ["values"], ["left", "right"], axis=-1, num_outputs=2),
        models.node("Softmax", ["right"], ["y"], axis=-1),
    ]
    model = models.model(
        nodes, [models.value("x", ["n", 9])], ["y"], {"k": np.array([4])}, opset=18
    )
    planned(model, n=5)


def test_one_operand_read_twice_is_taken_over_once() -> None:
    nodes = [
        models.node("Softmax", ["x"], ["a"], axis=-1),
        models.node("MatMul", ["a", "a"], ["b"]),
        models.node("Mul", ["b", "b"], ["y"]),
    ]
    planned(models.model(nodes, [models.value("x", [6, 6])], ["y"]))


def test_a_network_is_followed_at_many_sizes() -> None:
    for n, h, w in ((1, 4, 4), (2, 33, 7), (5, 1, 1)):
        planned(built.network(), n=n, h=h, w=w)


def test_equal_constants_are_stored_once_and_aligned() -> None:
    weights = plan.Weights()
    first = weights.add(np.arange(5, dtype=np.float32))
    second = weights.add(np.arange(6, dtype=np.float32))
    assert weights.add(np.arange(5, dtype=np.float32)) == first
    assert weights.add(np.arange(10, dtype=np.float32)[::2] / 2) == first
    assert first % plan.WEIGHT_ALIGN == second % plan.WEIGHT_ALIGN == 0
    data = weights.tobytes()
    assert len(data) == weights.size_bytes == 128
    assert np.frombuffer(data, np.float32, 6, second).tolist() == list(range(6))
