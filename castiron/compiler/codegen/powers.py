"""Powers and remainders: the two-operand functions with many special cases.

float32 powers go through double, so that large exponents cost no accuracy; float64 powers have a
relative error up to about 1e-13 for results far from 1. ``pointwise.py`` calls these.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from castiron.compiler.codegen import conversions, elementary, loop, vectors
from castiron.compiler.codegen.loop import F32, F64, Function, Value
from castiron.graph.expr import Expr
from castiron.tensor import dtype as dtypes

# Beyond this, a chain of multiplications is neither shorter nor more accurate.
_MAX_CHAIN = 8
# A quotient of floats needs 29 bits for its product with the divisor to be exact in double.
_QUOTIENT_BITS = 28


def power(f: Function, base: Value, exponent: Value, kinds: Sequence[Expr]) -> Value:
    """base ** exponent in the base's dtype, with C's special cases; ``kinds`` are the operands.

    Small constant whole exponents are multiplications. Integers wrap; a negative exponent of an
    integer gives the whole part of the reciprocal, and 0 for base 0.
    """
    dtype, other = kinds[0].dtype, kinds[1].dtype
    known = constant_of(kinds[1])
    is_float = dtypes.named(dtype).is_float
    if known is not None and known in range(-_MAX_CHAIN if is_float else 0, _MAX_CHAIN + 1):
        return _chain(f, base, int(known))
    if is_float:
        exponent = conversions.convert(f, exponent, other, dtype)
        if known == 0.5:
            return _root(f, base)
        return _float_power(f, base, exponent)
    if dtypes.named(other).is_float:
        wide = conversions.convert(f, base, dtype, "float64")
        result = _float_power(f, wide, conversions.convert(f, exponent, other, "float64"))
        return conversions.convert(f, result, "float64", dtype)
    return _integer_power(f, base, conversions.convert(f, exponent, other, dtype), dtype)


def constant_of(expr: Expr) -> float | None:
    """The number that an expression always is, or None."""
    while expr.op == "cast":
        expr = expr.args[0]
    return float(expr.value) if expr.op == "const" else None


def _chain(f: Function, base: Value, exponent: int) -> Value:
    if exponent == 0:
        return f.coerce(1, base.type)
    result: Value | None = None
    square, rest = base, abs(exponent)
    while True:
        if rest & 1:
            result = square if result is None else result * square
        rest >>= 1
        if not rest:
            break
        square = square * square
    assert result is not None
    return result if exponent > 0 else 1.0 / result


def _root(f: Function, base: Value) -> Value:
    # pow(-0, 0.5) is +0 and pow(-inf, 0.5) is +inf, unlike the square root.
    root = vectors.square_root(f, base) + 0.0
    return f.select(base.equals(-math.inf), math.inf, root)


def _float_power(f: Function, base: Value, exponent: Value) -> Value:
    if loop.element_of(base.type) == F32:
        wide = f.convert("fpext", base, F64)
        wide_exponent = f.convert("fpext", exponent, F64)
        size = elementary.power_of_size(f, wide, wide_exponent, is_moderate=True)
        size = f.convert("fptrunc", size, F32)
    else:
        size = elementary.power_of_size(f, base, exponent, is_moderate=False)
    is_whole = vectors.truncate(f, exponent).equals(exponent)
    half = exponent * 0.5
    is_odd = is_whole & vectors.truncate(f, half).differs(half)
    is_negative = vectors.bits(f, base) < 0
    signed = f.select(is_odd & is_negative, vectors.negative(f, size), size)
    fraction = (base < 0.0) & (is_whole ^ True) & base.differs(-math.inf)
    result = f.select(fraction, math.nan, signed)
    # |base| = 1 to an infinite power is 1; 1 to any power and any power of 0 are 1, even NaN.
    unit = vectors.absolute(f, base).equals(1.0) & vectors.absolute(f, exponent).equals(math.inf)
    return f.select(base.equals(1.0) | exponent.equals(0.0) | unit, 1.0, result)


def _integer_power(f: Function, base: Value, exponent: Value, dtype: str) -> Value:
    """Square and multiply over six bits: larger exponents overflow unless |base| <= 1."""
    is_signed = dtypes.named(dtype).is_signed
    result = f.coerce(1, base.type)
    square = base
    for bit in range(6):
        taken = ((exponent >> bit) & 1).differs(0)
        result = f.select(taken, result * square, result)
        square = square * square
    result = f.select(base.equals(0) & exponent.differs(0), 0, result)
    if not is_signed:
        return result
    is_unit = base.equals(1) | base.equals(-1)
    return f.select((exponent < 0) & (is_unit ^ True), 0, result)


def remainder(f: Function, left: Value, right: Value, *, follows_divisor: bool) -> Value:
    """The exact float32 remainder: sign of the dividend, or of the divisor as Python has it.

    Each round removes up to 2^28 times the divisor exactly in double; the number of rounds
    follows from the largest quotient among the lanes. Division by 0 and infinite dividends give
    NaN; an infinite divisor leaves the dividend.
    """
    dividend = f.convert("fpext", vectors.absolute(f, left), F64)
    divisor = f.convert("fpext", vectors.absolute(f, right), F64)
    with f.loop(0, _num_rounds(f, left, right), 1, [dividend]) as rounds:
        rounds.update([_remove(f, rounds.carried[0], divisor)])
    size = f.convert("fptrunc", rounds.results[0], F32)
    is_valid = (vectors.absolute(f, left) < math.inf) & right.differs(0.0)
    result = vectors.copy_sign(f, f.select(is_valid, size, math.nan), left)
    result = f.select(vectors.absolute(f, right).equals(math.inf) & is_valid, left, result)
    result = f.select(vectors.is_nan(f, right), right, result)
    if not follows_divisor:
        return result
    is_foreign = result.differs(0.0) & ((vectors.bits(f, result) ^ vectors.bits(f, right)) < 0)
    shifted = f.select(is_foreign, result + right, result)
    return f.select(result.equals(0.0), vectors.copy_sign(f, result, right), shifted)


def _num_rounds(f: Function, left: Value, right: Value) -> Value:
    """How often ``_remove`` must run for all lanes: the largest exponent difference decides."""
    exponents = []
    for x in (left, right):
        # Subnormal numbers have exponents down to -149; the scaling makes room for them.
        pattern = vectors.bits(f, f.convert("fpext", vectors.absolute(f, x), F64))
        exponents.append(f.convert("trunc", vectors.shift_right_logical(f, pattern, 52), loop.I32))
    gap = exponents[0] - exponents[1]
    lanes = loop.lanes_of(gap.type)
    widest = gap
    if lanes > 1:
        name = f"llvm.vector.reduce.smax.{loop.mangled(gap.type)}"
        widest = f.call_intrinsic(name, loop.I32, [gap])
    # Zero, infinite and NaN operands have extreme exponents; 12 rounds are enough for any floats.
    count = f.minimum(f.maximum(widest, 0) // (_QUOTIENT_BITS - 1) + 1, 12)
    return f.convert("sext", count, loop.I64)


def _remove(f: Function, rest: Value, divisor: Value) -> Value:
    quotient = vectors.truncate(f, rest / divisor)
    # Only the upper bits, so that the product below is exact.
    pattern = vectors.bits(f, quotient) & -(1 << (53 - _QUOTIENT_BITS))
    quotient = vectors.from_bits(f, pattern, F64)
    rest = rest - quotient * divisor
    # The division may have rounded up to the next whole number.
    return f.select(rest < 0.0, rest + divisor, rest)
