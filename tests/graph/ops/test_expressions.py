"""Expression trees of elementwise ops against the reference evaluator, on awkward numbers too."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from castiron.graph import expr
from castiron.graph.graph import Graph, Node, TensorType
from castiron.graph.ops import curves, elementwise
from castiron.loader import evaluator
from castiron.tensor import dtype as dtypes

_RNG = np.random.default_rng(7)
_PLAIN = _RNG.standard_normal(64).astype(np.float32) * 3
_AWKWARD = np.array(
    [0.0, -0.0, np.nan, np.inf, -np.inf, 1e-30, -1e-3, 0.5, 1.5, 2.5, -2.5, 88.0, -104.0],
    np.float32,
)
_FLOATS = np.concatenate([_PLAIN, _AWKWARD])
_POSITIVE = np.abs(_PLAIN) + np.float32(0.01)
_UNIT = np.tanh(_PLAIN).astype(np.float32)
_INTS = _RNG.integers(-20, 20, 64).astype(np.int64)
_DIVISORS = np.where(_INTS[::-1] == 0, 3, _INTS[::-1]).astype(np.int64)


def _tree(op: str, arrays: list[np.ndarray], attrs: dict[str, Any], out: str) -> expr.Expr | None:
    names = tuple(f"x{i}" for i in range(len(arrays)))
    types = {
        name: TensorType(dtypes.named(array.dtype.name), array.shape)
        for name, array in zip(names, arrays, strict=True)
    }
    types["y"] = TensorType(dtypes.named(out), arrays[0].shape)
    node = Node(op, names, ("y",), attrs)
    graph = Graph("g", (node,), names, ("y",), types, {})
    return elementwise.expression_of(node, graph)


def _check(op: str, arrays: list[np.ndarray], attrs: dict[str, Any], rtol: float = 1e-5) -> None:
    names = tuple(f"x{i}" for i in range(len(arrays)))
    node = Node(op, names, ("y",), attrs)
    with np.errstate(all="ignore"):
        expected = evaluator.evaluate_node(node, arrays)[0]
    tree = _tree(op, arrays, attrs, expected.dtype.name)
    assert tree is not None
    found = expr.evaluate(tree, arrays)
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=1e-6)


@pytest.mark.parametrize(
    "op",
    ["Abs", "Neg", "Exp", "Floor", "Ceil", "Round", "Sign", "Relu", "Identity", "IsNaN", "IsInf",
     "Sigmoid", "Tanh", "Softplus", "Atan", "Elu", "Selu", "Celu", "LeakyRelu", "HardSigmoid",
     "ThresholdedRelu", "Shrink"],
)  # fmt: skip
def test_unary_ops_agree_on_awkward_numbers(op: str) -> None:
    finite = op not in ("Abs", "Neg", "Floor", "Ceil", "Relu", "Identity", "IsNaN", "IsInf")
    _check(op, [_PLAIN if finite else _FLOATS], {})


@pytest.mark.parametrize(
    "op", ["Erf", "Sin", "Cos", "Mish", "Softsign", "HardSwish", "Gelu", "Tan", "Sinh", "Cosh",
           "Asinh"]
)  # fmt: skip
def test_smooth_ops_agree(op: str) -> None:
    _check(op, [_PLAIN], {}, 1e-4)
    _check(op, [_PLAIN * np.float32(1e-3)], {}, 1e-4)


@pytest.mark.parametrize("op", ["Log", "Sqrt", "Reciprocal", "Acosh"])
def test_ops_of_positive_numbers_agree(op: str) -> None:
    _check(op, [_POSITIVE + np.float32(op == "Acosh")], {}, 1e-4)


@pytest.mark.parametrize("op", ["Asin", "Acos", "Atanh"])
def test_ops_of_the_unit_interval_agree(op: str) -> None:
    _check(op, [_UNIT * np.float32(0.999)], {}, 1e-4)


def test_arc_cosine_reaches_both_ends() -> None:
    ends = np.array([-1.0, 1.0])
    found = expr.evaluate(curves.acos(expr.input_(0, "float64")), [ends])
    np.testing.assert_allclose(found, [math.pi, 0.0])


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div", "Min", "Max", "Sum", "Mean"])
def test_float_arithmetic_keeps_nan_and_infinity(op: str) -> None:
    _check(op, [_FLOATS, _FLOATS[::-1].copy()], {})


@pytest.mark.parametrize("op", ["Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"])
@pytest.mark.parametrize("array", [_FLOATS, _INTS], ids=["float", "int"])
def test_comparisons_give_booleans(op: str, array: np.ndarray) -> None:
    _check(op, [array, array[::-1].copy()], {})


@pytest.mark.parametrize("op", ["And", "Or", "Xor"])
def test_logic_agrees(op: str) -> None:
    _check(op, [_INTS > 0, _INTS[::-1] > 3], {})


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div", "Mod", "Min", "Max"])
def test_integer_arithmetic_agrees(op: str) -> None:
    _check(op, [_INTS, _DIVISORS], {})


def test_integer_division_truncates() -> None:
    tree = _tree("Div", [np.array([-7]), np.array([2])], {}, "int64")
    assert tree is not None
    assert expr.evaluate(tree, [np.array([-7]), np.array([2])]).tolist() == [-3]


def test_mod_takes_the_sign_that_fmod_says() -> None:
    _check("Mod", [_INTS, _DIVISORS], {"fmod": 1})
    _check("Mod", [_PLAIN, _POSITIVE], {"fmod": 1})


@pytest.mark.parametrize("exponent", [2.0, 3.0, 1.0, 0.5, -1.0, -0.5, 1.7])
def test_power_by_a_constant_agrees(exponent: float) -> None:
    node = Node("Pow", ("x", "p"), ("y",))
    power = np.array([exponent], np.float32)
    kind = TensorType(dtypes.FLOAT32, _POSITIVE.shape)
    types = {"x": kind, "p": TensorType(dtypes.FLOAT32, (1,)), "y": kind}
    tree = elementwise.expression_of(node, Graph("g", (node,), ("x",), ("y",), types, {"p": power}))
    assert tree is not None
    assert (tree.op == "pow") == (exponent == 1.7)
    np.testing.assert_allclose(expr.evaluate(tree, [_POSITIVE]), _POSITIVE**exponent, rtol=1e-5)


@pytest.mark.parametrize("bounds", [(-1.0, 1.0), (None, 0.5), (0.0, None), (2.0, -2.0)])
def test_clip_keeps_nan_and_lets_the_upper_bound_win(bounds: tuple[float | None, ...]) -> None:
    names = tuple("" if value is None else f"b{i}" for i, value in enumerate(bounds))
    arrays = [None if value is None else np.array(value, np.float32) for value in bounds]
    node = Node("Clip", ("x", *names), ("y",))
    kind = TensorType(dtypes.FLOAT32, _FLOATS.shape)
    types = {name: TensorType(dtypes.FLOAT32, ()) for name in names} | {"x": kind, "y": kind}
    known = {name: array for name, array in zip(names, arrays, strict=True) if array is not None}
    tree = elementwise.expression_of(node, Graph("g", (node,), ("x",), ("y",), types, known))
    assert tree is not None
    low = -np.inf if bounds[0] is None else bounds[0]
    high = np.inf if bounds[1] is None else bounds[1]
    expected = np.minimum(np.maximum(_FLOATS, np.float32(low)), np.float32(high))
    np.testing.assert_array_equal(expr.evaluate(tree, [_FLOATS]), expected)


@pytest.mark.parametrize("code", [1, 2, 3, 6, 7, 9, 11])
def test_casts_agree(code: int) -> None:
    _check("Cast", [np.abs(_PLAIN)], {"to": code})
    _check("Cast", [np.abs(_INTS)], {"to": code})


def test_where_and_prelu_read_all_inputs() -> None:
    _check("Where", [_PLAIN > 0, _PLAIN, _POSITIVE], {})
    _check("PRelu", [_PLAIN, _UNIT], {})


def test_gelu_has_two_forms() -> None:
    _check("Gelu", [_PLAIN], {"approximate": "tanh"}, 1e-4)


def test_isinf_looks_at_the_sides_asked_for() -> None:
    _check("IsInf", [_FLOATS], {"detect_negative": 0})
    _check("IsInf", [_FLOATS], {"detect_positive": 0})


def test_an_op_that_is_not_elementwise_has_no_tree() -> None:
    assert _tree("Softmax", [_PLAIN], {}, "float32") is None


def test_a_dtype_that_kernels_do_not_hold_has_no_tree() -> None:
    assert _tree("Relu", [_PLAIN.astype(np.float16)], {}, "float16") is None
