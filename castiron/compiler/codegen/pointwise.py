"""Expressions (``graph/expr.py``) printed for vectors: fused loops and epilogues of kernels.

Values are vectors of one lane count. In registers a bool is i1, in memory i8 (0 or 1); all other
dtypes are the same in both. Equal subexpressions are computed once. ``supported`` says what
cannot be printed; ``conversions.py`` has the casts and ``elementary.py`` the functions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from castiron.compiler.codegen import conversions, elementary, loop, powers, vectors
from castiron.compiler.codegen.loop import Function, Value
from castiron.graph.expr import Expr
from castiron.tensor import dtype as dtypes

DTYPES = (
    "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32",
    "uint64", "bool",
)  # fmt: skip

_FLOAT_ONLY: dict[str, Callable[[Function, Value], Value]] = {
    "exp": elementary.exp,
    "log": elementary.log,
    "sqrt": vectors.square_root,
    "sin": elementary.sin,
    "cos": elementary.cos,
    "tanh": elementary.tanh,
    "sigmoid": elementary.sigmoid,
    "erf": elementary.erf,
    "softplus": elementary.softplus,
    "atan": elementary.atan,
    "reciprocal": lambda _, x: 1.0 / x,
}
_ROUNDING: dict[str, Callable[[Function, Value], Value]] = {
    "floor": vectors.floor,
    "ceil": vectors.ceil,
    "round": vectors.round_even,
}
_ARITHMETIC = {"add": "add", "sub": "sub", "mul": "mul"}
_RELATIONS = {
    "equal": "eq", "less": "lt", "less_equal": "le", "greater": "gt", "greater_equal": "ge",
}  # fmt: skip
_LOGIC = {"and": "and", "or": "or", "xor": "xor"}
_ANY_NUMBER = ("abs", "neg", "sign", "relu", "isnan", "isinf", "not")
_BINARY = ("div", "pow", "min", "max", "mod", "fmod")
_OPS = {
    *_FLOAT_ONLY, *_ROUNDING, *_ARITHMETIC, *_RELATIONS, *_LOGIC, *_ANY_NUMBER, *_BINARY,
    "where", "cast", "input", "const",
}  # fmt: skip


def register_element(dtype: str) -> str:
    """The element type of a value of this dtype while it is in registers."""
    return loop.I1 if dtype == "bool" else dtypes.named(dtype).llvm


def from_memory(value: Value, dtype: str) -> Value:
    """A loaded value as it is kept in registers."""
    if dtype == "bool" and loop.element_of(value.type) == loop.I8:
        return value.differs(0)
    return value


def to_memory(f: Function, value: Value, dtype: str) -> Value:
    """A value as it is stored."""
    if dtype == "bool" and loop.element_of(value.type) == loop.I1:
        return f.convert("zext", value, loop.I8)
    return value


def supported(expression: Expr) -> str | None:
    """Why the expression cannot be printed for every target, or None when it can."""
    seen: set[int] = set()
    waiting = [expression]
    while waiting:
        expr = waiting.pop()
        if id(expr) in seen:
            continue
        seen.add(id(expr))
        reason = _missing(expr)
        if reason:
            return reason
        waiting.extend(expr.args)
    return None


def _missing(expr: Expr) -> str | None:
    if expr.dtype not in DTYPES:
        return f"elementwise code for {expr.dtype}"
    if expr.op not in _OPS:
        return f"elementwise {expr.op}"
    kind = dtypes.named(expr.args[0].dtype) if expr.args and expr.args[0].dtype in DTYPES else None
    if expr.op in _FLOAT_ONLY and kind is not None and not kind.is_float:
        return f"elementwise {expr.op} of {kind}"
    if expr.op in ("mod", "fmod") and kind is dtypes.FLOAT64:
        return "the remainder of float64"
    is_number_op = expr.op in _ARITHMETIC or expr.op in ("abs", "neg", "sign", "div", "pow", "mod")
    if is_number_op and kind is dtypes.BOOL:
        return f"elementwise {expr.op} of bool"
    return None


def emit(
    f: Function, expression: Expr, inputs: Sequence[Value], *, lanes: int | None = None
) -> Value:
    """The expression's value, in register form.

    ``inputs[i]`` is input i (bool as i1 or as i8 from memory). All have one lane count, which is
    also the result's; ``lanes`` is needed only when there are no inputs.
    """
    width = lanes if lanes is not None else loop.lanes_of(inputs[0].type) if inputs else 1
    return _Printer(f, inputs, width).value(expression)


class _Printer:
    """One expression being printed: what was computed so far, by object and by content."""

    def __init__(self, f: Function, inputs: Sequence[Value], lanes: int) -> None:
        self.f = f
        self.inputs = inputs
        self.lanes = lanes
        self._by_object: dict[int, Value] = {}
        self._by_content: dict[tuple[object, ...], Value] = {}

    def value(self, expr: Expr) -> Value:
        """The value of a subexpression, computed on its first use."""
        if id(expr) in self._by_object:
            return self._by_object[id(expr)]
        args = [self.value(arg) for arg in expr.args]
        texts = tuple(arg.text for arg in args)
        kinds = tuple(arg.dtype for arg in expr.args)
        key = (expr.op, expr.dtype, expr.index, repr(expr.value), texts, kinds)
        if key not in self._by_content:
            self._by_content[key] = self._print(expr, args)
        self._by_object[id(expr)] = self._by_content[key]
        return self._by_object[id(expr)]

    def _type(self, dtype: str) -> str:
        return loop.vector(self.lanes, register_element(dtype))

    def _print(self, expr: Expr, args: list[Value]) -> Value:
        if expr.op == "input":
            return from_memory(self.inputs[expr.index], expr.dtype)
        if expr.op == "const":
            return self.f.const(_representable(expr.value, expr.dtype), self._type(expr.dtype))
        if expr.op == "cast":
            return conversions.convert(self.f, args[0], expr.args[0].dtype, expr.dtype)
        result, dtype = self._operation(expr, args)
        return conversions.convert(self.f, result, dtype, expr.dtype)

    def _operation(self, expr: Expr, args: list[Value]) -> tuple[Value, str]:
        """The result and its dtype before it becomes the expression's."""
        f, op = self.f, expr.op
        dtype = expr.args[0].dtype
        if op in _FLOAT_ONLY:
            return _FLOAT_ONLY[op](f, args[0]), dtype
        if op in _ROUNDING:
            return (_ROUNDING[op](f, args[0]) if vectors.is_float(args[0]) else args[0]), dtype
        if op in _LOGIC:
            truth = conversions.convert(f, args[0], dtype, "bool")
            other = conversions.convert(f, args[1], expr.args[1].dtype, "bool")
            return f.binary(_LOGIC[op], truth, other), "bool"
        if op == "where":
            truth = conversions.convert(f, args[0], dtype, "bool")
            other = conversions.convert(f, args[2], expr.args[2].dtype, expr.args[1].dtype)
            return f.select(truth, args[1], other), expr.args[1].dtype
        if op in _ANY_NUMBER:
            return self._unary(op, args[0], dtype)
        if op == "pow":
            return powers.power(f, args[0], args[1], expr.args), dtype
        right = conversions.convert(f, args[1], expr.args[1].dtype, dtype)
        if op in _ARITHMETIC:
            return f.binary(_ARITHMETIC[op], args[0], right), dtype
        if op in _RELATIONS:
            return conversions.compare(f, _RELATIONS[op], args[0], right, dtype), "bool"
        if op in ("min", "max"):
            return self._extreme(op, args[0], right, expr), dtype
        return self._division(op, args[0], right, expr), dtype

    def _unary(self, op: str, x: Value, dtype: str) -> tuple[Value, str]:
        f = self.f
        is_signed = dtypes.named(dtype).is_signed
        if op == "abs":
            return (vectors.absolute(f, x) if is_signed else x), dtype
        if op == "neg":
            return vectors.negative(f, x), dtype
        if op == "relu":
            return (f.select(x < 0, 0, x) if is_signed else x), dtype
        if op == "not":
            return conversions.convert(f, x, dtype, "bool") ^ True, "bool"
        if op == "sign":
            if not is_signed:
                return f.select(x.equals(0), x, 1), dtype
            return f.select(x > 0, 1, f.select(x < 0, -1, x)), dtype
        if not vectors.is_float(x):
            return f.const(False, self._type("bool")), "bool"
        if op == "isnan":
            return vectors.is_nan(f, x), "bool"
        return vectors.absolute(f, x).equals(math.inf), "bool"

    def _extreme(self, op: str, left: Value, right: Value, expr: Expr) -> Value:
        f = self.f
        dtype = expr.args[0].dtype
        relation = "lt" if op == "min" else "gt"
        if not vectors.is_float(left):
            return f.select(conversions.compare(f, relation, left, right, dtype), left, right)
        # Beside a number the other operand's NaN is kept by one select.
        beyond = "gt" if op == "min" else "lt"
        if _is_number(expr.args[1]):
            return f.select(f.compare(beyond, left, right), right, left)
        if _is_number(expr.args[0]):
            return f.select(f.compare(beyond, right, left), left, right)
        choose = vectors.minimum if op == "min" else vectors.maximum
        return choose(f, left, right)

    def _division(self, op: str, left: Value, right: Value, expr: Expr) -> Value:
        f = self.f
        if vectors.is_float(left):
            if op == "div":
                return left / right
            return powers.remainder(f, left, right, follows_divisor=op == "mod")
        divisor = expr.args[1]
        known = int(divisor.value) if divisor.op == "const" else 0
        return conversions.divide(f, op, left, right, (expr.args[0].dtype, known))


def _is_number(expr: Expr) -> bool:
    return expr.op == "const" and not math.isnan(expr.value)


def _representable(value: float | int | bool, dtype: str) -> float | int | bool:
    with np.errstate(all="ignore"):
        if dtypes.named(dtype).is_float:
            return float(np.dtype(dtype).type(value))
        if isinstance(value, float):
            return int(np.float64(value).astype(dtype))
    return value
