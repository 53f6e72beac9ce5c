"""Layer normalisation spelled out is recognised as its exporters write it, and nothing else is."""

from __future__ import annotations

import numpy as np
import pytest

from castiron.compiler.passes.fuse_norms import fuse_norms
from castiron.graph.graph import Graph
from tests.passes import read
from tests.passes.build import Builder


def normalised(b: Builder, x: str, square: str = "Pow", *, turned: bool = False) -> str:
    """``(x - mean) / sqrt(variance + epsilon)`` over the last axis."""
    deviation = b.add("Sub", x, b.add("ReduceMean", x, b.ints(-1), keepdims=1))
    other = b.constant(2.0) if square == "Pow" else deviation
    variance = b.add("ReduceMean", b.add(square, deviation, other), b.ints(-1), keepdims=1)
    epsilon = b.constant(1e-5)
    shifted = b.add("Add", *((epsilon, variance) if turned else (variance, epsilon)))
    return b.add("Div", deviation, b.add("Sqrt", shifted))


def fused(graph: Graph) -> list[str]:
    after = fuse_norms(graph)
    read.assert_same(graph, after, n=2, t=3, w=8)
    return [line.split(" = ")[1].split("(")[0] for line in read.lines(after)]


@pytest.mark.parametrize("square", ["Pow", "Mul"])
@pytest.mark.parametrize("turned", [False, True])
def test_a_bare_norm_is_recognised(square: str, turned: bool) -> None:
    b = Builder()
    y = normalised(b, b.input("x", ("n", "t", 8)), square, turned=turned)
    assert fused(read.canonical(b, y)) == ["LayerNormalization"]


@pytest.mark.parametrize("shape", [(8,), (1, 8), (1, 1, 8)])
@pytest.mark.parametrize("is_first", [True, False])
def test_scale_and_bias_come_along(shape: tuple[int, ...], is_first: bool) -> None:
    b = Builder()
    y = normalised(b, b.input("x", ("n", "t", 8)))
    for op in ("Mul", "Add"):
        vector = b.constant(read.normal(*shape))
        y = b.add(op, *((y, vector) if is_first else (vector, y)))
    graph = fuse_norms(read.canonical(b, y))
    assert fused(read.canonical(b, y)) == ["LayerNormalization"]
    assert len(graph.nodes[0].inputs) == 3


def test_a_bias_alone_stays_outside() -> None:
    b = Builder()
    y = normalised(b, b.input("x", ("n", "t", 8)))
    y = b.add("Add", y, b.constant(read.normal(8)))
    assert fused(read.canonical(b, y)) == ["LayerNormalization", "Add"]


def test_a_scale_that_others_see_through_stays_outside() -> None:
    b = Builder()
    y = normalised(b, b.input("x", ("n", "t", 8)))
    z = b.add("Mul", y, b.constant(read.normal(8)))
    assert fused(read.canonical(b, y, z)) == ["LayerNormalization", "Mul"]


def test_a_scale_that_adds_an_axis_stays_outside() -> None:
    b = Builder()
    y = normalised(b, b.input("x", ("n", "t", 8)))
    y = b.add("Mul", y, b.constant(read.normal(1, 1, 1, 8)))
    assert fused(read.canonical(b, y)) == ["LayerNormalization", "Mul"]


def test_two_norms_of_one_value_are_two_nodes() -> None:
    b = Builder()
    x = b.input("x", ("n", "t", 8))
    y = b.add("Add", normalised(b, x), normalised(b, b.add("Exp", x)))
    assert sorted(fused(read.canonical(b, y))) == [
        "Add",
        "Exp",
        "LayerNormalization",
        "LayerNormalization",
    ]


def test_a_norm_whose_width_is_a_symbol_stays_spelled_out() -> None:
    b = Builder()
    y = normalised(b, b.input("x", ("n", "w")))
    assert "LayerNormalization" not in fused(read.canonical(b, y))


def test_what_only_looks_like_a_norm_stays() -> None:
    b = Builder()
    x = b.input("x", ("n", "t", 8))
    mean = b.add("ReduceMean", x, b.ints(-1), keepdims=1)
    cube = b.add("Pow", b.add("Sub", x, mean), b.constant(3.0))
    root = b.add("Sqrt", b.add("Add", b.add("Abs", cube), b.constant(np.float32(1.0))))
    y = b.add("Div", b.add("Sub", x, mean), root)
    assert "LayerNormalization" not in fused(read.canonical(b, y))
