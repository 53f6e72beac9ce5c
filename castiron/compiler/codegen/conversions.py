"""Casts between dtypes, comparisons and integer division, lane by lane.

Nothing here traps or is undefined: floats out of an integer's range saturate, NaN becomes 0,
division by zero gives 0. Signedness comes from the dtype's name, since LLVM's integers have none.
"""

from __future__ import annotations

from castiron.compiler.codegen import loop
from castiron.compiler.codegen.loop import Function, Value
from castiron.tensor import dtype as dtypes


def convert(f: Function, x: Value, source: str, result: str) -> Value:
    """The value as ONNX Cast gives it; bool is i1 on both sides."""
    if source == result:
        return x
    old, new = dtypes.named(source), dtypes.named(result)
    if new is dtypes.BOOL:
        return x.differs(0)
    if old is dtypes.BOOL:
        return f.convert("uitofp" if new.is_float else "zext", x, new.llvm)
    if old.is_float and new.is_float:
        return f.convert("fpext" if new.size_bytes > old.size_bytes else "fptrunc", x, new.llvm)
    if old.is_float:
        return _saturate(f, x, new)
    if new.is_float:
        return f.convert("sitofp" if old.is_signed else "uitofp", x, new.llvm)
    if new.size_bytes == old.size_bytes:
        return x
    widening = "sext" if old.is_signed else "zext"
    return f.convert(widening if new.size_bytes > old.size_bytes else "trunc", x, new.llvm)


def _saturate(f: Function, x: Value, new: dtypes.DType) -> Value:
    type_ = loop.vector(loop.lanes_of(x.type), new.llvm)
    name = "fptosi" if new.is_signed else "fptoui"
    suffix = f"{loop.mangled(type_)}.{loop.mangled(x.type)}"
    return f.call_intrinsic(f"llvm.{name}.sat.{suffix}", type_, [x])


def compare(f: Function, relation: str, left: Value, right: Value, dtype: str) -> Value:
    """lt, le, gt, ge, eq in the order of this dtype."""
    kind = dtypes.named(dtype)
    if kind.is_signed or relation == "eq":
        return f.compare(relation, left, right)
    result = loop.vector(loop.lanes_of(left.type), loop.I1)
    return f.emit(result, f"icmp u{relation} {left.type} {left.text}, {right.text}")


def divide(f: Function, op: str, left: Value, right: Value, kind: tuple[str, int]) -> Value:
    """div (truncating), fmod (sign of the dividend) or mod (sign of the divisor) of integers.

    ``kind`` is the dtype and the divisor where it is a known constant, else 0. Division by zero
    gives 0, as does the remainder; the smallest number divided by -1 wraps.
    """
    dtype, known = kind
    is_signed = dtypes.named(dtype).is_signed
    names = ("sdiv", "srem") if is_signed else ("udiv", "urem")
    opcode = names[0] if op == "div" else names[1]
    if known not in (0, -1):
        result = f.emit(left.type, f"{opcode} {left.type} {left.text}, {right.text}")
    else:
        result = _careful(f, opcode, left, right, is_signed)
    if op != "mod" or not is_signed:
        return result
    is_foreign = result.differs(0) & ((result ^ right) < 0)
    return f.select(is_foreign, result + right, result)


def _careful(f: Function, opcode: str, left: Value, right: Value, is_signed: bool) -> Value:
    is_zero = right.equals(0)
    unsafe = is_zero
    if is_signed:
        lowest = -(1 << (8 * _size_bytes(left) - 1))
        unsafe = is_zero | (left.equals(lowest) & right.equals(-1))
    divisor = f.select(unsafe, 1, right)
    result = f.emit(left.type, f"{opcode} {left.type} {left.text}, {divisor.text}")
    return f.select(is_zero, 0, result)


def _size_bytes(value: Value) -> int:
    return int(loop.element_of(value.type)[1:]) // 8
