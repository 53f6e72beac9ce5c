"""The arithmetic of reductions: where one starts, how it takes an element, how it ends.

``of`` gives the accumulator of an op and dtype. NaN survives maxima and minima; the reduction of
nothing is the identity, and a mean of nothing NaN (integers: 0). Integers wrap, integer means
truncate.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

from castiron.compiler.codegen import conversions, elementary, loop, vectors
from castiron.compiler.codegen.loop import Function, Value
from castiron.tensor import dtype as dtypes

OPS = (
    "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2",
    "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp",
)  # fmt: skip
_FLOAT_OPS = ("ReduceL2", "ReduceLogSum", "ReduceLogSumExp")
_NUMBERS = ("float32", "float64", "int32", "int64")
_ORDERED = (*_NUMBERS, "int8", "uint8", "bool")

_Take = Callable[[Function, Value, Value, "Value | None"], Value]
_Join = Callable[[Function, Value, Value], Value]
_Finish = Callable[[Function, Value, Value, "Value | None"], Value]


@dataclasses.dataclass(frozen=True, slots=True)
class Accumulator:
    """One reduction.

    ``take(f, sum, x, shift)`` adds an element, ``join`` two sums; ``fill`` is an element that
    adds nothing. ``finish(f, sum, count, shift)`` gives the result; count is an i64. With
    ``first`` the values are reduced twice, and the result of the first is the shift.
    """

    identity: float | int
    fill: float | int
    take: _Take
    join: _Join
    finish: _Finish
    first: Accumulator | None = None


def gap(op: str, dtype: dtypes.DType) -> str | None:
    """Why the op has no accumulator for this dtype, or None."""
    allowed: tuple[str, ...] = _ORDERED if op in ("ReduceMax", "ReduceMin") else _NUMBERS
    if op in _FLOAT_OPS:
        allowed = _NUMBERS[:2]
    return None if dtype.name in allowed else f"{op} of {dtype}"


def of(op: str, dtype: dtypes.DType) -> Accumulator:
    """The accumulator of an op for which ``gap`` says None."""
    if op in ("ReduceMax", "ReduceMin"):
        return _extreme(dtype, "gt" if op == "ReduceMax" else "lt")
    if op == "ReduceProd":
        return Accumulator(1, 1, lambda _, s, x, __: s * x, lambda _, a, b: a * b, _as_it_is)
    if op == "ReduceLogSumExp":
        top = Accumulator(-math.inf, -math.inf, _larger_one, _larger, _as_it_is)
        return Accumulator(0, -math.inf, _take_exp, _add, _log_shifted, top)
    takes: dict[str, _Take] = {
        "ReduceL1": _take_size, "ReduceL2": _take_square, "ReduceSumSquare": _take_square,
    }  # fmt: skip
    finishes: dict[str, _Finish] = {
        "ReduceMean": _divided,
        "ReduceL2": lambda f, s, _, __: vectors.square_root(f, s),
        "ReduceLogSum": lambda f, s, _, __: elementary.log(f, s),
    }
    return Accumulator(0, 0, takes.get(op, _take), _add, finishes.get(op, _as_it_is))


def _add(_: Function, a: Value, b: Value) -> Value:
    return a + b


def _take(_: Function, total: Value, x: Value, __: Value | None) -> Value:
    return total + x


def _take_size(f: Function, total: Value, x: Value, _: Value | None) -> Value:
    return total + vectors.absolute(f, x)


def _take_square(f: Function, total: Value, x: Value, _: Value | None) -> Value:
    return f.fma(x, x, total) if vectors.is_float(x) else total + x * x


def _take_exp(f: Function, total: Value, x: Value, shift: Value | None) -> Value:
    assert shift is not None, "LogSumExp reduces twice"
    return total + elementary.exp_or_zero(f, x - shift)


def _log_shifted(f: Function, total: Value, _: Value, shift: Value | None) -> Value:
    assert shift is not None, "LogSumExp reduces twice"
    # Differences from an infinite maximum are NaN; the maximum itself is the result then.
    is_infinite = vectors.absolute(f, shift).equals(math.inf)
    return f.select(is_infinite, shift, elementary.log(f, total) + shift)


def _larger(f: Function, a: Value, b: Value) -> Value:
    return f.select(b > a, b, a)


def _larger_one(f: Function, total: Value, x: Value, _: Value | None) -> Value:
    return _larger(f, total, x)


def _as_it_is(_: Function, total: Value, __: Value, ___: Value | None) -> Value:
    return total


def _divided(f: Function, total: Value, count: Value, _: Value | None) -> Value:
    lanes, element = loop.lanes_of(total.type), loop.element_of(total.type)
    if vectors.is_float(total):
        return total / f.splat(f.convert("sitofp", count, element), lanes)
    number = count if element == loop.I64 else f.convert("trunc", count, element)
    return total / f.splat(f.maximum(number, 1), lanes)


def _extreme(dtype: dtypes.DType, relation: str) -> Accumulator:
    def join(f: Function, a: Value, b: Value) -> Value:
        if not dtype.is_float:
            return f.select(conversions.compare(f, relation, b, a, dtype.name), b, a)
        return (vectors.maximum if relation == "gt" else vectors.minimum)(f, a, b)

    def take(f: Function, total: Value, x: Value, _: Value | None) -> Value:
        return join(f, total, x)

    lowest, highest = _limits(dtype)
    identity = lowest if relation == "gt" else highest
    return Accumulator(identity, identity, take, join, _as_it_is)


def _limits(dtype: dtypes.DType) -> tuple[float | int, float | int]:
    if dtype.is_float:
        return -math.inf, math.inf
    if dtype is dtypes.BOOL:
        return 0, 1
    width = 8 * dtype.size_bytes
    # As LLVM writes it: the bits of the largest unsigned number are those of -1.
    return (-(1 << (width - 1)), (1 << (width - 1)) - 1) if dtype.is_signed else (0, -1)
