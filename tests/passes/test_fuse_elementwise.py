"""Elementwise nodes end in epilogues or in one loop; what is shared is computed once."""

from __future__ import annotations

import pytest

from castiron.compiler.passes.choose_layouts import choose_layouts
from castiron.compiler.passes.fuse_elementwise import fuse_elementwise
from castiron.graph.graph import Graph
from tests.passes import read
from tests.passes.build import Builder


def fused(graph: Graph) -> list[str]:
    """The lines after the pass without the transposes of the ends, checked to compute the same."""
    before = choose_layouts(graph)
    after = fuse_elementwise(before)
    read.assert_same(before, after, n=2, t=3, h=6, w=5)
    lines = [line.replace(" layout=NHWC,", "") for line in read.lines(after)]
    return [line for line in lines if "= Transpose(" not in line]


def image(b: Builder) -> str:
    return b.input("x", ("n", 4, "h", "w"))


def test_a_chain_becomes_one_loop() -> None:
    b = Builder()
    x, y = b.input("x", ("n", 5)), b.input("y", ("n", 5))
    z = b.add("Tanh", b.add("Mul", b.add("Sub", x, y), b.add("Exp", x)))
    assert fused(read.canonical(b, z)) == [
        "v3 = Fused(x, y) {expr=tanh(mul(sub(x0, x1), exp(x0)))}"
    ]


def test_an_activation_becomes_an_epilogue() -> None:
    b = Builder()
    y = b.add("Relu", read.conv(b, image(b), (4, 6), 3))
    assert fused(read.canonical(b, y)) == [
        "v1:stored = Conv(x:0231, c0) {epilogue=relu(x0), layout=NHWC}"
    ]


def test_hard_swish_spelled_out_is_one_epilogue() -> None:
    b = Builder()
    x = read.conv(b, image(b), (4, 4), 3)
    gate = b.add("Clip", b.add("Add", x, b.constant(3.0)), b.constant(0.0), b.constant(6.0))
    y = b.add("Div", b.add("Mul", x, gate), b.constant(6.0))
    (line,) = fused(read.canonical(b, y))
    expected = "div(mul(x0, min(max(add(x0, 3.0), 0.0), 6.0)), 6.0)"
    assert line == f"v4:stored = Conv(x:0231, c0) {{epilogue={expected}, layout=NHWC}}"


def test_a_residual_sum_and_its_activation_are_the_later_products_epilogue() -> None:
    b = Builder()
    x = b.add("Relu", read.conv(b, image(b), (4, 4), 3))
    y = b.add("Relu", b.add("Add", read.conv(b, x, (4, 4), 3), x))
    assert fused(read.canonical(b, y)) == [
        "v1:stored = Conv(x:0231, c0) {epilogue=relu(x0), layout=NHWC}",
        "v4:stored = Conv(v1:stored, c1, v1:stored) {epilogue=relu(add(x0, x1)), layout=NHWC}",
    ]


def test_two_products_that_meet_share_the_later_ones_epilogue() -> None:
    b = Builder()
    x = image(b)
    y = b.add("Add", read.conv(b, x, (4, 4), 3), read.conv(b, x, (4, 4)))
    lines = fused(read.canonical(b, y))
    assert lines[0].endswith("Conv(x:0231, c0) {layout=NHWC}")
    assert lines[1].endswith("Conv(x:0231, c1, v0:stored) {epilogue=add(x1, x0), layout=NHWC}")


def test_gelu_spelled_out_is_a_matrix_products_epilogue_with_its_bias() -> None:
    b = Builder()
    x = b.add("MatMul", b.input("x", ("n", "t", 8)), b.constant(read.normal(8, 16)))
    x = b.add("Add", x, b.constant(read.normal(16)))
    erf = b.add("Erf", b.add("Div", x, b.constant(1.5)))
    y = b.add("Mul", b.add("Mul", x, b.add("Add", erf, b.constant(1.0))), b.constant(0.5))
    (line,) = fused(read.canonical(b, y))
    inner = "add(x0, x1)"
    assert line == (
        f"v6 = MatMul(x, c0, c1) "
        f"{{epilogue=mul(mul({inner}, add(erf(div({inner}, 1.5)), 1.0)), 0.5)}}"
    )


def test_a_gate_for_each_channel_is_a_loop_of_its_own_before_the_next_product() -> None:
    b = Builder()
    x = read.conv(b, image(b), (4, 4), 3)
    gate = b.add("HardSigmoid", read.conv(b, b.add("GlobalAveragePool", x), (4, 4)))
    y = read.conv(b, b.add("Mul", x, gate), (4, 8))
    lines = fused(read.canonical(b, y))
    assert [line.split(" = ")[1].split("(")[0] for line in lines] == [
        "Conv", "ReduceMean", "Conv", "Fused", "Conv",
    ]  # fmt: skip
    assert "epilogue=min(max(add(mul(x0, 0.2), 0.5), 0.0), 1.0)" in lines[2]
    assert lines[3] == "v4:stored = Fused(v0:stored, v3:stored) {expr=mul(x0, x1)}"


def test_what_two_loops_read_is_computed_once() -> None:
    b = Builder()
    x = b.add("Exp", b.input("x", ("n", 5)))
    wide = b.add("Concat", x, x, axis=1)
    assert fused(read.canonical(b, b.add("Tanh", x), wide)) == [
        "v0 = Fused(x) {expr=exp(x0)}",
        "v1 = Concat(v0, v0) {axis=1}",
        "v2 = Fused(v0) {expr=tanh(x0)}",
    ]


def test_an_output_on_the_way_is_still_made() -> None:
    b = Builder()
    x = read.conv(b, image(b), (4, 4), 3)
    middle = b.add("Relu", x)
    lines = fused(read.canonical(b, middle, b.add("Exp", middle)))
    assert lines[0].startswith("v1:stored = Conv(x:0231, c0) {epilogue=relu(x0)")
    assert any("expr=exp(x0)" in line for line in lines)


def test_a_product_that_is_an_output_keeps_its_own_result() -> None:
    b = Builder()
    x = b.add("MatMul", b.input("x", ("n", 8)), b.constant(read.normal(8, 4)))
    assert fused(read.canonical(b, x, b.add("Relu", x))) == [
        "v0 = MatMul(x, c0)",
        "v1 = Fused(v0) {expr=relu(x0)}",
    ]


def test_an_operand_that_fits_no_epilogue_leaves_the_rest_in_a_loop() -> None:
    b = Builder()
    x = b.add("MatMul", b.input("x", ("n", "t", 8)), b.constant(read.normal(8, 4)))
    rows = b.input("rows", ("n", "t", 1))
    y = b.add("Mul", b.add("Relu", x), rows)
    assert fused(read.canonical(b, y)) == [
        "v1 = MatMul(x, c0) {epilogue=relu(x0)}",
        "v2 = Fused(v1, rows) {expr=mul(x0, x1)}",
    ]


@pytest.mark.parametrize("dtype", ["float64", "int32"])
def test_other_dtypes_are_loops(dtype: str) -> None:
    b = Builder()
    x = b.input("x", ("n", 5), dtype)
    assert fused(read.canonical(b, b.add("Abs", b.add("Neg", x)))) == [
        "v1 = Fused(x) {expr=abs(neg(x0))}"
    ]


def test_a_broadcast_operand_of_another_shape_is_made_before() -> None:
    b = Builder()
    x, y = b.input("x", ("n", 5)), b.input("y", (5,))
    assert fused(read.canonical(b, b.add("Add", x, b.add("Exp", y)))) == [
        "v0 = Fused(y) {expr=exp(x0)}",
        "v1 = Fused(x, v0) {expr=add(x0, x1)}",
    ]


def test_a_chain_too_long_for_one_kernel_is_cut() -> None:
    b = Builder()
    x = b.input("x", ("n", 5))
    for _ in range(200):
        x = b.add("Sin", x)
    lines = fused(read.canonical(b, x))
    assert len(lines) == 2
    assert all(" = Fused(" in line for line in lines)


def test_a_value_that_doubles_at_every_step_stays_small() -> None:
    b = Builder()
    x = b.input("x", ("n", 5))
    for _ in range(40):
        x = b.add("Mul", b.add("Add", x, x), b.constant(0.5))
    lines = fused(read.canonical(b, x))
    assert max(map(len, lines)) < 4000
