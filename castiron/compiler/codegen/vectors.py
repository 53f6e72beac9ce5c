"""Instructions beside those of the loop language: bits, signs and rounding of float vectors.

Every function takes the Function to append to and values of one lane count. None calls libm:
where the target cannot round in one instruction, a few additions do it. ``elementary.py`` and
``pointwise.py`` continue from here.
"""

from __future__ import annotations

from collections.abc import Sequence

from castiron.compiler.codegen import loop
from castiron.compiler.codegen.loop import Function, Value

_INTEGER_OF = {loop.F32: loop.I32, loop.F64: loop.I64}
# Adding and subtracting this rounds to the nearest integer (ties to even) below 2^22 or 2^51.
MAGIC = {loop.F32: 12582912.0, loop.F64: 6755399441055744.0}
# From here on every float is an integer.
_ALL_INTEGERS = {loop.F32: 8388608.0, loop.F64: 4503599627370496.0}


def is_float(value: Value) -> bool:
    """Whether the elements are float or double."""
    return loop.element_of(value.type) in _INTEGER_OF


def unary_intrinsic(f: Function, name: str, x: Value) -> Value:
    """``llvm.<name>`` of one operand, of the operand's type."""
    return f.call_intrinsic(f"llvm.{name}.{loop.mangled(x.type)}", x.type, [x])


def absolute(f: Function, x: Value) -> Value:
    """|x| of floats; of integers with wrapping."""
    if is_float(x):
        return unary_intrinsic(f, "fabs", x)
    return f.select(x < 0, negative(f, x), x)


def negative(f: Function, x: Value) -> Value:
    """-x: the sign bit of floats turned over, integers with wrapping."""
    if is_float(x):
        return f.emit(x.type, f"fneg {x.type} {x.text}")
    return f.coerce(0, x.type) - x


def copy_sign(f: Function, magnitude: Value, sign: Value) -> Value:
    """|magnitude| with the sign bit of ``sign``."""
    name = f"llvm.copysign.{loop.mangled(magnitude.type)}"
    return f.call_intrinsic(name, magnitude.type, [magnitude, sign])


def square_root(f: Function, x: Value) -> Value:
    """The correctly rounded square root."""
    return unary_intrinsic(f, "sqrt", x)


def is_nan(f: Function, x: Value) -> Value:
    """True in lanes that are NaN."""
    return f.compare("ne", x, x)


def bits(f: Function, x: Value) -> Value:
    """The bit pattern of floats as integers of the same width."""
    return f.convert("bitcast", x, _INTEGER_OF[loop.element_of(x.type)])


def from_bits(f: Function, x: Value, element: str) -> Value:
    """Floats from their bit patterns."""
    return f.convert("bitcast", x, element)


def shift_right_logical(f: Function, x: Value, amount: int) -> Value:
    """Bits moved right, zeros coming in."""
    return f.binary("lshr", x, amount)


def horner(f: Function, x: Value, coefficients: Sequence[float]) -> Value:
    """c0 + c1 x + c2 x^2 + ...; coefficients lowest first."""
    result = f.coerce(coefficients[-1], x.type)
    for coefficient in reversed(coefficients[:-1]):
        result = f.fma(x, result, f.coerce(coefficient, x.type))
    return result


def no_less(f: Function, x: Value, limit: float) -> Value:
    """max(x, limit) that keeps NaN."""
    return f.select(x < limit, limit, x)


def no_more(f: Function, x: Value, limit: float) -> Value:
    """min(x, limit) that keeps NaN."""
    return f.select(x > limit, limit, x)


def minimum(f: Function, left: Value, right: Value) -> Value:
    """The smaller float; NaN where either is NaN, whatever their order."""
    smaller = f.select(left < right, left, right)
    return f.select(is_nan(f, left), left, smaller)


def maximum(f: Function, left: Value, right: Value) -> Value:
    """The larger float; NaN where either is NaN, whatever their order."""
    larger = f.select(left > right, left, right)
    return f.select(is_nan(f, left), left, larger)


def _rounds_in_one(f: Function) -> bool:
    # Rounding instructions came to x86 before FMA, and every AArch64 has both.
    return f.target.has_fma


def round_even(f: Function, x: Value) -> Value:
    """The nearest integer, ties to even; the sign of zero is kept."""
    if _rounds_in_one(f):
        return unary_intrinsic(f, "roundeven", x)
    element = loop.element_of(x.type)
    size = absolute(f, x)
    near = (size + MAGIC[element]) - MAGIC[element]
    return copy_sign(f, f.select(size < _ALL_INTEGERS[element] / 4, near, _exact(f, size)), x)


def _exact(f: Function, size: Value) -> Value:
    """Rounds magnitudes that are too large for MAGIC but may still have a fraction."""
    limit = _ALL_INTEGERS[loop.element_of(size.type)]
    return f.select(size < limit, (size + limit) - limit, size)


def floor(f: Function, x: Value) -> Value:
    """The largest integer not above x."""
    if _rounds_in_one(f):
        return unary_intrinsic(f, "floor", x)
    near = round_even(f, x)
    return copy_sign(f, f.select(near > x, near - 1.0, near), x)


def ceil(f: Function, x: Value) -> Value:
    """The smallest integer not below x."""
    if _rounds_in_one(f):
        return unary_intrinsic(f, "ceil", x)
    near = round_even(f, x)
    return copy_sign(f, f.select(near < x, near + 1.0, near), x)


def truncate(f: Function, x: Value) -> Value:
    """The integer part, toward zero."""
    if _rounds_in_one(f):
        return unary_intrinsic(f, "trunc", x)
    size = absolute(f, x)
    near = round_even(f, size)
    return copy_sign(f, f.select(near > size, near - 1.0, near), x)


def prefetch(f: Function, pointer: Value) -> None:
    """Ask the second cache for the line at this address, which may lie anywhere."""
    f.module.declare("llvm.prefetch.p0", "void", ["ptr", "i32", "i32", "i32"])
    # Read, locality 2 (into the second cache and below), data.
    f.statement(f"call void @llvm.prefetch.p0(ptr {pointer.text}, i32 0, i32 2, i32 1)")
