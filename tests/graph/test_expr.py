"""Expressions: every operation has a meaning in numpy, and trees are built, read and replaced."""

from __future__ import annotations

import numpy as np
import pytest

from castiron.graph import expr

X, Y = expr.input_(0, "float32"), expr.input_(1, "float32")


def test_every_operation_has_a_numpy_meaning_of_its_arity() -> None:
    values = [np.array([0.5, 2.0], np.float32), np.array([1.5, 1.0], np.float32)]
    for op, arity in expr.ARITY.items():
        is_logic = op in ("not", "and", "or", "xor", "where")
        given = [np.array([True, False])] * 3 if is_logic else values
        leaves = [expr.input_(n, given[n % len(given)].dtype.name) for n in range(arity)]
        tree = expr.apply(op, *leaves)
        found = expr.evaluate(tree, [given[n % len(given)] for n in range(arity)])
        assert found.shape == (2,), op
        assert found.dtype.name == tree.dtype, op


@pytest.mark.parametrize(
    "op, left, right, wanted",
    [
        ("div", -7, 2, -3),
        ("mod", -7, 3, 2),
        ("fmod", -7, 3, -1),
        ("max", -7, 3, 3),
    ],
)
def test_integers_follow_the_rules_of_onnx(op: str, left: int, right: int, wanted: int) -> None:
    tree = expr.apply(op, expr.input_(0, "int64"), expr.input_(1, "int64"))
    found = expr.evaluate(tree, [np.array(left), np.array(right)])
    assert (found.dtype, int(found)) == (np.dtype("int64"), wanted)


def test_inputs_broadcast_and_constants_have_the_dtype_they_say() -> None:
    tree = expr.apply("add", expr.apply("mul", X, Y), expr.const(0.5, "float32"))
    found = expr.evaluate(tree, [np.ones((2, 3), np.float32), np.full((3,), 2, np.float32)])
    np.testing.assert_array_equal(found, np.full((2, 3), 2.5, np.float32))


def test_substitution_puts_trees_in_the_place_of_inputs() -> None:
    tree = expr.apply("sub", X, Y)
    replaced = expr.substitute(tree, [expr.apply("neg", Y), expr.const(1.0, "float32")])
    assert expr.text(replaced) == "sub(neg(x1), 1.0)"
    assert expr.num_inputs(tree) == 2


def test_the_text_reads_like_calls() -> None:
    tree = expr.cast(expr.apply("relu", expr.apply("add", X, expr.const(3.0, "float32"))), "int8")
    assert expr.text(tree) == "int8(relu(add(x0, 3.0)))"


def test_relu_keeps_what_is_no_number() -> None:
    found = expr.evaluate(expr.apply("relu", X), [np.array([np.nan, -1, 2], np.float32)])
    np.testing.assert_array_equal(found, [np.nan, 0, 2])
