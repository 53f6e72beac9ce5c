"""What moves into the weights before it, with what numbers, and what must stay outside."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from castiron.compiler.passes.fold_scales import fold_scales
from castiron.graph.graph import Graph
from tests.passes import read
from tests.passes.build import Builder


def folded(graph: Graph) -> list[str]:
    after = fold_scales(graph)
    read.assert_same(graph, after, n=2, h=5, w=4)
    return [line.split(" = ")[1].split("(")[0] for line in read.lines(after)]


def norm(b: Builder, x: str, channels: int) -> str:
    parts = [b.constant(read.normal(channels)) for _ in range(3)]
    return b.add("BatchNormalization", x, *parts, b.constant(np.abs(read.normal(channels)) + 0.5))


def image(b: Builder) -> str:
    return b.input("x", ("n", 4, "h", "w"))


@pytest.mark.parametrize("has_bias", [False, True])
def test_a_norm_after_a_convolution_disappears(has_bias: bool) -> None:
    b = Builder()
    bias = b.constant(read.normal(6)) if has_bias else ""
    y = norm(b, read.conv(b, image(b), (4, 6), 3, bias), 6)
    assert folded(read.canonical(b, y)) == ["Conv"]


@pytest.mark.parametrize("op", ["Mul", "Add", "Sub", "Div"])
@pytest.mark.parametrize("shape", [(), (1,), (6, 1, 1), (1, 6, 1, 1)])
@pytest.mark.parametrize("is_first", [True, False])
def test_arithmetic_with_a_constant_for_each_channel_folds(
    op: str, shape: tuple[int, ...], is_first: bool
) -> None:
    b = Builder()
    x = read.conv(b, image(b), (4, 6), 3)
    constant = b.constant(np.abs(read.normal(*shape)) + 0.5)
    y = b.add(op, *((x, constant) if is_first else (constant, x)))
    is_quotient = op == "Div" and not is_first
    assert folded(read.canonical(b, y)) == (["Conv", "Div"] if is_quotient else ["Conv"])


def test_a_chain_folds_from_its_start_to_the_first_that_does_not() -> None:
    b = Builder()
    x = b.add("Mul", norm(b, read.conv(b, image(b), (4, 6)), 6), b.constant(2.0))
    y = b.add("Add", b.add("Relu", x), b.constant(1.0))
    assert folded(read.canonical(b, y)) == ["Conv", "Relu", "Add"]


@pytest.mark.parametrize("groups", [1, 2])
def test_a_transposed_convolution_scales_the_axis_of_its_outputs(groups: int) -> None:
    b = Builder()
    weights = b.constant(read.normal(4, 6 // groups, 3, 3))
    x = b.add(
        "ConvTranspose", image(b), weights, kernel_shape=(3, 3), strides=(2, 2), pads=(0,) * 4,
        dilations=(1, 1), group=groups,
    )  # fmt: skip
    assert folded(read.canonical(b, norm(b, x, 6))) == ["ConvTranspose"]


@pytest.mark.parametrize("turned", [0, 1])
def test_a_gemm_takes_scale_shift_and_norm(turned: int) -> None:
    b = Builder()
    weights = b.constant(read.normal(*((5, 4) if turned else (4, 5))))
    x = b.add("Gemm", b.input("x", ("n", 4)), weights, b.constant(read.normal(5)), transB=turned)
    y = b.add("Add", b.add("Mul", x, b.constant(read.normal(5))), b.constant(read.normal(1, 5)))
    assert folded(read.canonical(b, norm(b, y, 5))) == ["Gemm"]


def test_a_gemm_keeps_its_alpha() -> None:
    b = Builder()
    x = b.add("Gemm", b.input("x", ("n", 4)), b.constant(read.normal(4, 5)), alpha=0.5)
    y = b.add("Sub", b.add("Mul", x, b.constant(read.normal(5))), b.constant(3.0))
    assert folded(read.canonical(b, y)) == ["Gemm"]


def test_a_matrix_product_takes_a_scale_but_has_no_place_for_a_shift() -> None:
    b = Builder()
    x = b.add("MatMul", b.input("x", ("n", 3, 4)), b.constant(read.normal(4, 5)))
    y = b.add("Add", b.add("Mul", x, b.constant(read.normal(5))), b.constant(read.normal(5)))
    assert folded(read.canonical(b, y)) == ["MatMul", "Add"]


def test_a_norm_that_follows_no_product_becomes_a_scale_and_a_shift() -> None:
    b = Builder()
    assert folded(read.canonical(b, norm(b, b.add("Relu", image(b)), 4))) == ["Relu", "Mul", "Add"]


def test_a_result_that_others_read_is_left_alone() -> None:
    b = Builder()
    x = read.conv(b, image(b), (4, 6))
    graph = read.canonical(b, b.add("Mul", x, b.constant(2.0)), b.add("Exp", x))
    assert sorted(folded(graph)) == ["Conv", "Exp", "Mul"]
    b = Builder()
    x = read.conv(b, image(b), (4, 6))
    assert folded(read.canonical(b, x, b.add("Mul", x, b.constant(2.0)))) == ["Conv", "Mul"]


@pytest.mark.parametrize("shape", [(4, 5, 1, 1), (1, 1, 5, 1), (1, 1, 1, 1, 1), (2, 1, 5, 1, 1)])
def test_a_constant_that_changes_the_shape_or_varies_elsewhere_stays(
    shape: tuple[int, ...],
) -> None:
    b = Builder()
    x = read.conv(b, b.input("x", (4, 4, 5, 3)), (4, 5))
    graph = read.canonical(b, b.add("Mul", x, b.constant(read.normal(*shape))))
    assert folded(graph)[-1] == "Mul"


def test_equal_weights_of_two_convolutions_are_scaled_apart() -> None:
    b = Builder()
    x, weights = image(b), b.constant(read.normal(4, 4, 1, 1))
    attrs: dict[str, Any] = {"kernel_shape": (1, 1), "pads": (0,) * 4, "strides": (1, 1)}
    first = b.add("Conv", x, weights, group=1, **attrs)
    second = b.add("Conv", b.add("Mul", first, b.constant(2.0)), weights, group=1, **attrs)
    y = b.add("Mul", second, b.constant(3.0))
    assert folded(read.canonical(b, y)) == ["Conv", "Conv"]


def test_the_fold_is_rounded_once() -> None:
    b = Builder()
    weights = b.constant(np.full((1, 1, 1, 1), 1.0 / 3.0))
    x = b.add("Conv", b.input("x", (1, 1, 1, 1)), weights, kernel_shape=(1, 1), pads=(0,) * 4)
    y = b.add("Mul", b.add("Mul", x, b.constant(1e-30)), b.constant(1e30))
    after = fold_scales(read.canonical(b, y))
    (node,) = after.nodes
    assert after.constants[node.inputs[1]].dtype == np.float32
