"""What is folded while building, what is not, and why."""

from __future__ import annotations

import numpy as np

from castiron.compiler.passes import fold_constants as folding
from castiron.compiler.passes.infer_shapes import infer_shapes
from castiron.graph.verify import verify
from castiron.loader import evaluator
from tests.passes.build import Builder


def test_a_chain_of_constants_becomes_one() -> None:
    b = Builder()
    double = b.add("Mul", b.constant([1.0, 2.0]), b.constant(2.0))
    y = b.add("Add", b.input("x", (2,)), b.add("Exp", double))
    graph = folding.fold_constants(infer_shapes(b.graph(y)), evaluator.evaluate_node)
    verify(graph, "fold_constants")
    assert [node.op for node in graph.nodes] == ["Add"]
    folded = graph.constants[graph.nodes[0].inputs[1]]
    np.testing.assert_allclose(folded, np.exp([2.0, 4.0]), rtol=1e-6)
    assert not folded.flags.writeable


def test_sizes_that_are_known_become_constants() -> None:
    b = Builder()
    x = b.input("x", ("n", 7))
    width = b.add("Gather", b.add("Shape", x), b.constant(1, "int64"), axis=0)
    y = b.add("Mul", x, b.add("Cast", width, to=1))
    graph = folding.fold_constants(infer_shapes(b.graph(y)), evaluator.evaluate_node)
    assert [node.op for node in graph.nodes] == ["Mul"]
    assert graph.constants[graph.nodes[0].inputs[1]] == 7.0


def test_random_numbers_are_never_folded() -> None:
    b = Builder()
    y = b.add("RandomNormal", shape=(2,))
    graph = infer_shapes(b.graph(y))
    assert folding.fold_constants(graph, evaluator.evaluate_node).nodes == graph.nodes
    assert "never folded" in folding.not_folded(graph, evaluator.evaluate_node)[0]


def test_a_result_much_larger_than_its_inputs_stays_a_node() -> None:
    b = Builder()
    y = b.add("Add", b.input("x", (1,)), b.add("Expand", b.constant([1.0]), b.ints(3, 1 << 20)))
    graph = infer_shapes(b.graph(y))
    folded = folding.fold_constants(graph, evaluator.evaluate_node)
    assert [node.op for node in folded.nodes] == ["Expand", "Add"]
    assert "larger" in folding.not_folded(graph, evaluator.evaluate_node)[0]


def test_uniform_weights_of_any_size_are_folded_without_memory() -> None:
    b = Builder()
    weights = b.add("ConstantOfShape", b.ints(4096, 4096), value=np.array([0.5], np.float32))
    y = b.add("MatMul", b.input("x", (1, 4096)), weights)
    graph = folding.fold_constants(infer_shapes(b.graph(y)), evaluator.evaluate_node)
    assert [node.op for node in graph.nodes] == ["MatMul"]
    assert graph.constants[weights].strides == (0, 0)


def test_a_failure_of_the_evaluator_keeps_the_node() -> None:
    b = Builder()
    y = b.add("Exp", b.constant([1.0]))
    graph = infer_shapes(b.graph(y))

    def broken(*_: object) -> list[np.ndarray]:
        raise ValueError("no such luck")

    assert folding.fold_constants(graph, broken).nodes == graph.nodes
    assert "no such luck" in folding.not_folded(graph, broken)[0]


def test_nothing_is_folded_from_inputs() -> None:
    b = Builder()
    y = b.add("Exp", b.input("x", (2,)))
    graph = infer_shapes(b.graph(y))
    assert folding.fold_constants(graph, evaluator.evaluate_node).nodes == graph.nodes
    assert folding.not_folded(graph, evaluator.evaluate_node) == []
