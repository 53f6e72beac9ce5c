"""Elementwise ops as expression trees: what each computes, for fusion and for code generation.

``expression_of`` gives the tree of one node; inputs are numbered as in ``node.inputs`` and
constants of one element stand in the tree as values. NaN rules: Relu, Clip, Min and Max keep
NaN data NaN. Integer Div truncates, integer Mod takes the sign of the divisor unless ``fmod``.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from castiron.graph import expr
from castiron.graph.expr import Expr
from castiron.graph.graph import Graph, Node
from castiron.graph.ops import curves
from castiron.tensor import dtype as dtypes

SUPPORTED = frozenset({"float32", "float64", "int32", "int64", "bool", "uint8", "int8"})
_Build = Callable[[Node, list[Expr]], Expr | None]

_DIRECT = {
    "Abs": "abs", "Neg": "neg", "Exp": "exp", "Log": "log", "Sqrt": "sqrt", "Floor": "floor",
    "Reciprocal": "reciprocal", "Ceil": "ceil", "Round": "round", "Sin": "sin", "Cos": "cos",
    "Tanh": "tanh", "Sigmoid": "sigmoid", "Erf": "erf", "Softplus": "softplus", "Sign": "sign",
    "Atan": "atan", "Not": "not", "Relu": "relu", "Add": "add", "Sub": "sub", "Mul": "mul",
    "Div": "div", "And": "and", "Or": "or", "Xor": "xor",
}  # fmt: skip
_COMPARE = {
    "Equal": "equal", "Less": "less", "LessOrEqual": "less_equal", "Greater": "greater",
    "GreaterOrEqual": "greater_equal",
}  # fmt: skip


def expression_of(node: Node, graph: Graph) -> Expr | None:
    """The tree of an elementwise node, or None when it has none (op or dtype not covered).

    An absent optional input never appears; an input whose constant has one element is a value.
    """
    if node.op == "Fused":
        tree: Expr = node.attrs["expr"]
        return tree
    leaves = []
    for index, value in enumerate(node.inputs):
        leaf = _leaf(index, value, graph)
        if value and leaf is None:
            return None
        leaves.append(leaf or expr.const(0, "float32"))
    out = graph.types[node.outputs[0]].dtype if node.outputs else None
    if not leaves or out is None or out.name not in SUPPORTED:
        return None
    return _tree(node, leaves)


def _leaf(index: int, value: str, graph: Graph) -> Expr | None:
    dtype = graph.types[value].dtype if value else None
    if dtype is None or dtype.name not in SUPPORTED:
        return None
    array = graph.constants.get(value)
    if array is not None and array.size == 1:
        return expr.const(array.reshape(-1)[0].item(), dtype.name)
    return expr.input_(index, dtype.name)


def _tree(node: Node, leaves: list[Expr]) -> Expr | None:
    if node.op in _DIRECT and expr.ARITY.get(_DIRECT[node.op]) == len(leaves):
        return expr.apply(_DIRECT[node.op], *leaves)
    if node.op in _COMPARE:
        return expr.apply(_COMPARE[node.op], *leaves, dtype="bool")
    if node.op in curves.CURVES:
        is_float = leaves[0].dtype in ("float32", "float64")
        return curves.CURVES[node.op](leaves[0]) if is_float else None
    build = _BUILDERS.get(node.op)
    return build(node, leaves) if build else None


def _k(value: float, like: Expr) -> Expr:
    return expr.const(value, like.dtype)


def _identity(_: Node, leaves: list[Expr]) -> Expr:
    return leaves[0]


def _chain(op: str) -> _Build:
    def build(_: Node, leaves: list[Expr]) -> Expr:
        result = leaves[0]
        for leaf in leaves[1:]:
            result = expr.apply(op, result, leaf)
        return result

    return build


def _mean(_: Node, leaves: list[Expr]) -> Expr:
    total = _chain("add")(_, leaves)
    assert total is not None
    return expr.apply("mul", total, _k(1.0 / len(leaves), total))


def _cast(node: Node, leaves: list[Expr]) -> Expr | None:
    code = int(node.attr("to", 0))
    dtype = dtypes.from_onnx(code)
    if dtype is None or dtype.name not in SUPPORTED:
        return None
    return expr.cast(leaves[0], dtype.name)


def _cast_like(_: Node, leaves: list[Expr]) -> Expr:
    return expr.cast(leaves[0], leaves[1].dtype)


def _where(_: Node, leaves: list[Expr]) -> Expr:
    return expr.apply("where", *leaves)


def _mod(node: Node, leaves: list[Expr]) -> Expr:
    return expr.apply("fmod" if node.attr("fmod", 0) else "mod", *leaves)


def _pow(_: Node, leaves: list[Expr]) -> Expr | None:
    base, exponent = leaves
    floating = base.dtype in ("float32", "float64")
    if exponent.op == "const":
        value = float(exponent.value)
        if value == 1:
            return base
        if value == 2:
            return expr.apply("mul", base, base)
        if value == 3:
            return expr.apply("mul", expr.apply("mul", base, base), base)
        if value == 0.5 and floating:
            return expr.apply("sqrt", base)
        if value == -1 and floating:
            return expr.apply("reciprocal", base)
        if value == -0.5 and floating:
            return expr.apply("reciprocal", expr.apply("sqrt", base))
    if not floating:
        return None
    return expr.apply("pow", base, expr.cast(exponent, base.dtype))


def _clip(node: Node, leaves: list[Expr]) -> Expr:
    result = leaves[0]
    if len(node.inputs) > 1 and node.inputs[1]:
        result = expr.apply("max", result, leaves[1])
    if len(node.inputs) > 2 and node.inputs[2]:
        result = expr.apply("min", result, leaves[2])
    return result


def _is_inf(node: Node, leaves: list[Expr]) -> Expr:
    found = expr.apply("isinf", leaves[0], dtype="bool")
    if not node.attr("detect_positive", 1):
        found = expr.apply("and", found, _below(leaves[0], 0.0))
    if not node.attr("detect_negative", 1):
        found = expr.apply("and", found, expr.apply("not", _below(leaves[0], 0.0)))
    return found


def _is_nan(_: Node, leaves: list[Expr]) -> Expr:
    return expr.apply("isnan", leaves[0], dtype="bool")


def _below(x: Expr, limit: float) -> Expr:
    return expr.apply("less", x, _k(limit, x), dtype="bool")


def _where_negative(x: Expr, negative: Expr) -> Expr:
    """``negative`` where x < 0, else x (so that NaN stays NaN)."""
    return expr.apply("where", _below(x, 0.0), negative, x)


def _leaky_relu(node: Node, leaves: list[Expr]) -> Expr:
    x = leaves[0]
    return _where_negative(x, expr.apply("mul", x, _k(node.attr("alpha", 0.01), x)))


def _prelu(_: Node, leaves: list[Expr]) -> Expr:
    return _where_negative(leaves[0], expr.apply("mul", leaves[0], leaves[1]))


def _exp_minus_one(x: Expr) -> Expr:
    return expr.apply("sub", expr.apply("exp", x), _k(1.0, x))


def _elu(node: Node, leaves: list[Expr]) -> Expr:
    x = leaves[0]
    return _where_negative(x, expr.apply("mul", _exp_minus_one(x), _k(node.attr("alpha", 1.0), x)))


def _selu(node: Node, leaves: list[Expr]) -> Expr:
    x = leaves[0]
    alpha = node.attr("alpha", 1.6732632423543772)
    gamma = node.attr("gamma", 1.0507009873554805)
    inner = _where_negative(x, expr.apply("mul", _exp_minus_one(x), _k(alpha, x)))
    return expr.apply("mul", inner, _k(gamma, x))


def _celu(node: Node, leaves: list[Expr]) -> Expr:
    x, alpha = leaves[0], node.attr("alpha", 1.0)
    scaled = _exp_minus_one(expr.apply("mul", x, _k(1.0 / alpha, x)))
    return _where_negative(x, expr.apply("mul", scaled, _k(alpha, x)))


def _hard_sigmoid_of(x: Expr, alpha: float, beta: float) -> Expr:
    line = expr.apply("add", expr.apply("mul", x, _k(alpha, x)), _k(beta, x))
    return expr.apply("min", expr.apply("max", line, _k(0.0, x)), _k(1.0, x))


def _hard_sigmoid(node: Node, leaves: list[Expr]) -> Expr:
    return _hard_sigmoid_of(leaves[0], node.attr("alpha", 0.2), node.attr("beta", 0.5))


def _hard_swish(_: Node, leaves: list[Expr]) -> Expr:
    return expr.apply("mul", leaves[0], _hard_sigmoid_of(leaves[0], 1.0 / 6.0, 0.5))


def _swish(node: Node, leaves: list[Expr]) -> Expr:
    x, alpha = leaves[0], node.attr("alpha", 1.0)
    scaled = x if alpha == 1.0 else expr.apply("mul", x, _k(alpha, x))
    return expr.apply("mul", x, expr.apply("sigmoid", scaled))


def _gelu(node: Node, leaves: list[Expr]) -> Expr:
    x = leaves[0]
    if node.attr("approximate", "none") == "tanh":
        cube = expr.apply("mul", expr.apply("mul", x, x), x)
        inner = expr.apply("add", x, expr.apply("mul", cube, _k(0.044715, x)))
        curve = expr.apply("tanh", expr.apply("mul", inner, _k(math.sqrt(2.0 / math.pi), x)))
    else:
        curve = expr.apply("erf", expr.apply("mul", x, _k(math.sqrt(0.5), x)))
    half = expr.apply("mul", x, _k(0.5, x))
    return expr.apply("mul", half, expr.apply("add", curve, _k(1.0, x)))


def _mish(_: Node, leaves: list[Expr]) -> Expr:
    return expr.apply("mul", leaves[0], expr.apply("tanh", expr.apply("softplus", leaves[0])))


def _thresholded_relu(node: Node, leaves: list[Expr]) -> Expr:
    x = leaves[0]
    above = expr.apply("less_equal", x, _k(node.attr("alpha", 1.0), x), dtype="bool")
    return expr.apply("where", above, _k(0.0, x), x)


def _softsign(_: Node, leaves: list[Expr]) -> Expr:
    x = leaves[0]
    return expr.apply("div", x, expr.apply("add", expr.apply("abs", x), _k(1.0, x)))


def _shrink(node: Node, leaves: list[Expr]) -> Expr:
    x = leaves[0]
    lambd, bias = node.attr("lambd", 0.5), node.attr("bias", 0.0)
    low = expr.apply("less", x, _k(-lambd, x), dtype="bool")
    high = expr.apply("greater", x, _k(lambd, x), dtype="bool")
    inner = expr.apply("where", high, expr.apply("sub", x, _k(bias, x)), _k(0.0, x))
    return expr.apply("where", low, expr.apply("add", x, _k(bias, x)), inner)


_BUILDERS: dict[str, _Build] = {
    "Identity": _identity, "Dropout": _identity, "Min": _chain("min"), "Max": _chain("max"),
    "Sum": _chain("add"), "Mean": _mean, "Cast": _cast, "CastLike": _cast_like, "Where": _where,
    "Mod": _mod, "Pow": _pow, "Clip": _clip, "IsInf": _is_inf, "IsNaN": _is_nan,
    "LeakyRelu": _leaky_relu, "PRelu": _prelu, "Elu": _elu, "Selu": _selu, "Celu": _celu,
    "HardSigmoid": _hard_sigmoid, "HardSwish": _hard_swish, "Swish": _swish, "Gelu": _gelu,
    "Mish": _mish, "ThresholdedRelu": _thresholded_relu, "Softsign": _softsign,
    "Shrink": _shrink,
}  # fmt: skip


def float_constant(graph: Graph, value: str) -> float | None:
    """The value of a one-element constant as a float, or None."""
    array = graph.constants.get(value)
    if array is None or array.size != 1 or array.dtype.kind not in "biuf":
        return None
    return float(np.asarray(array).reshape(-1)[0])
