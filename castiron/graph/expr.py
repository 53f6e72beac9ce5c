"""Elementwise expressions: what a ``Fused`` node or a kernel's epilogue computes per element.

An expression is a tree. Leaves are inputs by position and constants; inner nodes name an
operation of the table below. ``codegen/pointwise.py`` prints it for vectors; ``evaluate`` is the
plain numpy meaning, used by tests and by folding.

An epilogue is an expression whose input 0 is the accumulator that a GEMM, convolution or
reduction has just finished; its other inputs are read from memory.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

# The operations that exist, with their number of operands.
ARITY = {
    "abs": 1, "neg": 1, "exp": 1, "log": 1, "sqrt": 1, "reciprocal": 1, "floor": 1, "ceil": 1,
    "round": 1, "sin": 1, "cos": 1, "tanh": 1, "sigmoid": 1, "erf": 1, "softplus": 1, "sign": 1,
    "atan": 1, "not": 1, "isnan": 1, "isinf": 1, "relu": 1,
    "add": 2, "sub": 2, "mul": 2, "div": 2, "pow": 2, "min": 2, "max": 2, "mod": 2, "fmod": 2,
    "equal": 2, "less": 2, "less_equal": 2, "greater": 2, "greater_equal": 2,
    "and": 2, "or": 2, "xor": 2,
    "where": 3,
}  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True)
class Expr:
    """One node of the tree.

    ``op`` is ``"input"`` (``index`` says which), ``"const"`` (``value``), ``"cast"`` (to
    ``dtype``), or a key of ARITY. ``dtype`` is the numpy-style name of the result's dtype.
    """

    op: str
    dtype: str
    args: tuple[Expr, ...] = ()
    index: int = 0
    value: float | int | bool = 0


def input_(index: int, dtype: str) -> Expr:
    """The element of input ``index``."""
    return Expr("input", dtype, index=index)


def const(value: float | int | bool, dtype: str) -> Expr:
    """The same constant for every element."""
    return Expr("const", dtype, value=value)


def cast(arg: Expr, dtype: str) -> Expr:
    """The value converted as ONNX Cast does (float to int truncates, to bool is ``!= 0``)."""
    return arg if arg.dtype == dtype else Expr("cast", dtype, (arg,))


def apply(op: str, *args: Expr, dtype: str | None = None) -> Expr:
    """An operation of ARITY; the result dtype defaults to the last argument's."""
    assert ARITY[op] == len(args), f"{op} takes {ARITY[op]} operands, not {len(args)}"
    return Expr(op, dtype or args[-1].dtype, args)


def num_inputs(expr: Expr) -> int:
    """One more than the largest input index; 0 for a constant expression."""
    if expr.op == "input":
        return expr.index + 1
    return max((num_inputs(arg) for arg in expr.args), default=0)


def substitute(expr: Expr, replacements: Sequence[Expr]) -> Expr:
    """The expression with input i replaced by ``replacements[i]``."""
    if expr.op == "input":
        return replacements[expr.index]
    if not expr.args:
        return expr
    return dataclasses.replace(expr, args=tuple(substitute(a, replacements) for a in expr.args))


def text(expr: Expr) -> str:
    """For example ``relu(add(x0, 3.0))``."""
    if expr.op == "input":
        return f"x{expr.index}"
    if expr.op == "const":
        return repr(expr.value)
    name = f"{expr.dtype}" if expr.op == "cast" else expr.op
    return f"{name}({', '.join(text(arg) for arg in expr.args)})"


def evaluate(expr: Expr, inputs: Sequence[np.ndarray]) -> np.ndarray:
    """The numpy meaning, with broadcasting between inputs."""
    if expr.op == "input":
        return np.asarray(inputs[expr.index])
    if expr.op == "const":
        return np.asarray(expr.value, dtype=expr.dtype)
    args = [evaluate(arg, inputs) for arg in expr.args]
    if expr.op == "cast":
        return args[0].astype(expr.dtype)
    with np.errstate(all="ignore"):
        return np.asarray(_NUMPY[expr.op](*args)).astype(expr.dtype, copy=False)


def _divide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if a.dtype.kind in "iu":
        return np.asarray(np.trunc(a.astype(np.float64) / b)).astype(a.dtype)
    return np.asarray(a / b)


def _erf(x: np.ndarray) -> np.ndarray:
    from math import erf

    return np.asarray(np.vectorize(erf, otypes=[np.float64])(x))


_NUMPY: dict[str, Callable[..., np.ndarray]] = {
    "abs": np.abs, "neg": np.negative, "exp": np.exp, "log": np.log, "sqrt": np.sqrt,
    "reciprocal": lambda x: 1 / x, "floor": np.floor, "ceil": np.ceil, "round": np.rint,
    "sin": np.sin, "cos": np.cos, "tanh": np.tanh, "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "erf": _erf, "softplus": lambda x: np.logaddexp(x, 0), "sign": np.sign, "atan": np.arctan,
    "not": np.logical_not, "isnan": np.isnan, "isinf": np.isinf,
    "relu": lambda x: np.where(x < 0, np.zeros_like(x), x),
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": _divide, "pow": np.power,
    "min": np.minimum, "max": np.maximum, "mod": np.mod, "fmod": np.fmod,
    "equal": np.equal, "less": np.less, "less_equal": np.less_equal, "greater": np.greater,
    "greater_equal": np.greater_equal, "and": np.logical_and, "or": np.logical_or,
    "xor": np.logical_xor, "where": np.where,
}  # fmt: skip
