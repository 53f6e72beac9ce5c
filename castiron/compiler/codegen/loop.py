"""The loop language: typed values, structured loops and branches, printed as LLVM IR text.

A kernel is written as Python that calls a ``Function``'s methods; every call appends
instructions. Loops carry values explicitly (they become phi nodes), so no memory slot and no
mid-level pass is needed between this text and good machine code. ``Module`` gathers functions,
constants and the intrinsics they use into one text.

This file knows LLVM's textual syntax and nothing of llvmlite; ``assemble.py`` compiles the text.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from castiron.compiler.codegen.machine_types import (
    F32,
    F64,
    I1,
    I8,
    I16,
    I32,
    I64,
    PTR,
    align_of,
    element_of,
    lanes_of,
    literal,
    mangled,
    vector,
)
from castiron.compiler.target import Target

__all__ = (
    "F32", "F64", "I1", "I8", "I16", "I32", "I64", "PTR", "Function", "Loop", "Module", "Operand",
    "Value", "element_of", "lanes_of", "literal", "mangled", "vector",
)  # fmt: skip

Operand: TypeAlias = "Value | int | float"


class Value:
    """One typed SSA value; arithmetic between values appends to the function they live in."""

    __slots__ = ("function", "text", "type")

    def __init__(self, function: Function, text: str, type_: str) -> None:
        self.function = function
        self.text = text
        self.type = type_

    def __add__(self, other: Operand) -> Value:
        return self.function.binary("add", self, other)

    def __radd__(self, other: Operand) -> Value:
        return self.function.binary("add", self, other)

    def __sub__(self, other: Operand) -> Value:
        return self.function.binary("sub", self, other)

    def __rsub__(self, other: Operand) -> Value:
        return self.function.binary("sub", self.function.coerce(other, self.type), self)

    def __mul__(self, other: Operand) -> Value:
        return self.function.binary("mul", self, other)

    def __rmul__(self, other: Operand) -> Value:
        return self.function.binary("mul", self, other)

    def __truediv__(self, other: Operand) -> Value:
        return self.function.binary("div", self, other)

    def __rtruediv__(self, other: Operand) -> Value:
        return self.function.binary("div", self.function.coerce(other, self.type), self)

    def __floordiv__(self, other: Operand) -> Value:
        """Division of non-negative integers (rounds toward zero)."""
        return self.function.binary("div", self, other)

    def __mod__(self, other: Operand) -> Value:
        """Remainder of non-negative integers."""
        return self.function.binary("rem", self, other)

    def __and__(self, other: Operand) -> Value:
        return self.function.binary("and", self, other)

    def __or__(self, other: Operand) -> Value:
        return self.function.binary("or", self, other)

    def __xor__(self, other: Operand) -> Value:
        return self.function.binary("xor", self, other)

    def __lshift__(self, other: Operand) -> Value:
        return self.function.binary("shl", self, other)

    def __rshift__(self, other: Operand) -> Value:
        """Arithmetic shift right."""
        return self.function.binary("ashr", self, other)

    def __lt__(self, other: Operand) -> Value:
        return self.function.compare("lt", self, other)

    def __le__(self, other: Operand) -> Value:
        return self.function.compare("le", self, other)

    def __gt__(self, other: Operand) -> Value:
        return self.function.compare("gt", self, other)

    def __ge__(self, other: Operand) -> Value:
        return self.function.compare("ge", self, other)

    def equals(self, other: Operand) -> Value:
        """Lane-wise equality (ordered for floats): i1 or a vector of i1."""
        return self.function.compare("eq", self, other)

    def differs(self, other: Operand) -> Value:
        """Lane-wise inequality (unordered for floats, so NaN differs from itself)."""
        return self.function.compare("ne", self, other)


class Loop:
    """A counted loop being written: ``index`` and ``carried`` inside, ``results`` after it."""

    def __init__(self, function: Function, index: Value, carried: list[Value]) -> None:
        self._function = function
        self.index = index
        self.carried = carried
        self.updated: list[Value] = list(carried)
        self.results: list[Value] = []

    def update(self, values: Sequence[Value]) -> None:
        """Give the carried values of the next iteration; call once, at the end of the body."""
        assert len(values) == len(self.carried), "every carried value needs its update"
        self.updated = list(values)


class Function:
    """One function being written. ``params`` holds its parameters as values."""

    def __init__(
        self,
        module: Module,
        name: str,
        params: Sequence[tuple[str, str]],
        *,
        returns: str = "void",
        exported: bool = False,
    ) -> None:
        self.module = module
        self.target = module.target
        self.name = name
        self.returns = returns
        self.exported = exported
        self.signature = [type_ for type_, _ in params]
        self.params = [Value(self, f"%{label}", type_) for type_, label in params]
        self._lines: list[str] = []
        self._entry: list[str] = []
        self._block = "entry"
        self._count = 0

    # -- values -----------------------------------------------------------------------------

    def coerce(self, operand: Operand, type_: str) -> Value:
        """The operand as a value of this type; numbers become literals, scalars splats."""
        if not isinstance(operand, Value):
            return Value(self, literal(operand, type_), type_)
        if operand.type == type_:
            return operand
        assert lanes_of(operand.type) == 1 and element_of(type_) == operand.type, (
            f"cannot use {operand.type} as {type_}"
        )
        return self.splat(operand, lanes_of(type_))

    def const(self, value: float | int | bool, type_: str) -> Value:
        """A constant."""
        return Value(self, literal(value, type_), type_)

    def emit(self, type_: str, instruction: str) -> Value:
        """Append ``%new = instruction`` and return the new value."""
        self._count += 1
        name = f"%v{self._count}"
        self._lines.append(f"  {name} = {instruction}")
        return Value(self, name, type_)

    def statement(self, instruction: str) -> None:
        """Append an instruction without a result."""
        self._lines.append(f"  {instruction}")

    def binary(self, operation: str, left: Value, right: Operand) -> Value:
        """add, sub, mul, div, rem, and, or, xor, shl, ashr, lshr, for ints or floats."""
        if isinstance(right, Value) and lanes_of(right.type) > lanes_of(left.type):
            left = self.coerce(left, right.type)
        other = self.coerce(right, left.type)
        is_float = element_of(left.type) in (F32, F64, "half", "bfloat")
        names = {"div": "sdiv", "rem": "srem"}
        opcode = f"f{operation}" if is_float else names.get(operation, operation)
        return self.emit(left.type, f"{opcode} {left.type} {left.text}, {other.text}")

    def compare(self, relation: str, left: Value, right: Operand) -> Value:
        """lt, le, gt, ge, eq (ordered) and ne (unordered); signed for integers."""
        if isinstance(right, Value) and lanes_of(right.type) > lanes_of(left.type):
            left = self.coerce(left, right.type)
        other = self.coerce(right, left.type)
        element = element_of(left.type)
        if element in (F32, F64):
            opcode = "fcmp une" if relation == "ne" else f"fcmp o{relation}"
        else:
            opcode = f"icmp {relation if relation in ('eq', 'ne') else 's' + relation}"
        result = vector(lanes_of(left.type), I1)
        return self.emit(result, f"{opcode} {left.type} {left.text}, {other.text}")

    def select(self, condition: Value, yes: Operand, no: Operand) -> Value:
        """Lane-wise ``yes if condition else no``; at least one of the two must be a value."""
        known = yes if isinstance(yes, Value) else no
        assert isinstance(known, Value), "one side of a select must be a value"
        type_ = known.type
        if isinstance(no, Value) and lanes_of(no.type) > lanes_of(type_):
            type_ = no.type
        first, second = self.coerce(yes, type_), self.coerce(no, type_)
        return self.emit(
            type_,
            f"select {condition.type} {condition.text}, {type_} {first.text}, "
            f"{type_} {second.text}",
        )

    def minimum(self, left: Value, right: Operand) -> Value:
        """The smaller of two integers."""
        return self.select(left < right, left, right)

    def maximum(self, left: Value, right: Operand) -> Value:
        """The larger of two integers."""
        return self.select(left > right, left, right)

    def convert(self, opcode: str, value: Value, element: str) -> Value:
        """An LLVM conversion (sitofp, fptosi, sext, zext, trunc, fpext, bitcast...)."""
        result = vector(lanes_of(value.type), element)
        return self.emit(result, f"{opcode} {value.type} {value.text} to {result}")

    def splat(self, value: Value, lanes: int) -> Value:
        """All lanes equal to a scalar."""
        if lanes == 1:
            return value
        type_ = vector(lanes, value.type)
        first = self.emit(type_, f"insertelement {type_} poison, {value.type} {value.text}, i64 0")
        return self.emit(
            type_,
            f"shufflevector {type_} {first.text}, {type_} poison, <{lanes} x i32> zeroinitializer",
        )

    def shuffle(self, left: Value, right: Value, lanes: Sequence[int]) -> Value:
        """Lanes picked from two vectors laid end to end."""
        mask = ", ".join(f"i32 {lane}" for lane in lanes)
        result = vector(len(lanes), element_of(left.type))
        return self.emit(
            result,
            f"shufflevector {left.type} {left.text}, {right.type} {right.text}, "
            f"<{len(lanes)} x i32> <{mask}>",
        )

    def extract(self, value: Value, lane: int) -> Value:
        """One lane of a vector."""
        if lanes_of(value.type) == 1:
            return value
        return self.emit(
            element_of(value.type), f"extractelement {value.type} {value.text}, i64 {lane}"
        )

    def call_intrinsic(self, name: str, returns: str, args: Sequence[Value]) -> Value:
        """Call ``llvm.*`` or another external by name, declaring it in the module."""
        self.module.declare(name, returns, [arg.type for arg in args])
        listed = ", ".join(f"{arg.type} {arg.text}" for arg in args)
        if returns == "void":
            self.statement(f"call void @{name}({listed})")
            return Value(self, "", "void")
        return self.emit(returns, f"call {returns} @{name}({listed})")

    def call(self, function: Function, args: Sequence[Operand]) -> Value:
        """Call another function of the module."""
        values = [
            self.coerce(arg, type_) for arg, type_ in zip(args, function.signature, strict=True)
        ]
        listed = ", ".join(f"{value.type} {value.text}" for value in values)
        if function.returns == "void":
            self.statement(f"call void @{function.name}({listed})")
            return Value(self, "", "void")
        return self.emit(function.returns, f"call {function.returns} @{function.name}({listed})")

    def fma(self, left: Value, right: Operand, addend: Operand) -> Value:
        """left * right + addend: fused where the target has it, two operations otherwise."""
        type_ = left.type
        if isinstance(addend, Value) and lanes_of(addend.type) > lanes_of(type_):
            type_ = addend.type
        first, second, third = (self.coerce(x, type_) for x in (left, right, addend))
        if not self.target.has_fma:
            return first * second + third
        suffix = mangled(type_)
        return self.call_intrinsic(f"llvm.fma.{suffix}", type_, [first, second, third])

    # -- memory -----------------------------------------------------------------------------

    def offset(self, pointer: Value, size_bytes: Operand) -> Value:
        """pointer + size_bytes."""
        if isinstance(size_bytes, int) and size_bytes == 0:
            return pointer
        amount = self.coerce(size_bytes, I64)
        return self.emit(PTR, f"getelementptr i8, ptr {pointer.text}, i64 {amount.text}")

    def load(self, type_: str, pointer: Value, size_bytes: Operand = 0, *, align: int = 0) -> Value:
        """Load at pointer + size_bytes; ``align`` defaults to the element's size."""
        place = self.offset(pointer, size_bytes)
        return self.emit(type_, f"load {type_}, ptr {place.text}, align {align or align_of(type_)}")

    def store(
        self, value: Value, pointer: Value, size_bytes: Operand = 0, *, align: int = 0
    ) -> None:
        """Store at pointer + size_bytes."""
        place = self.offset(pointer, size_bytes)
        self.statement(
            f"store {value.type} {value.text}, ptr {place.text}, "
            f"align {align or align_of(value.type)}"
        )

    def argument(self, args: Value, index: int, type_: str = I64) -> Value:
        """Word ``index`` of a kernel's argument block, as i64 or ptr."""
        return self.load(type_, args, 8 * index, align=8)

    def lane_mask(self, count: Value, lanes: int) -> Value:
        """True in the first ``count`` lanes (count is an i64; more than ``lanes`` is all)."""
        wide = vector(lanes, I64)
        steps = ", ".join(f"i64 {lane}" for lane in range(lanes))
        limit = self.splat(count, lanes)
        if lanes == 1:
            return self.compare("gt", count, 0)
        return self.emit(vector(lanes, I1), f"icmp slt {wide} <{steps}>, {limit.text}")

    def masked_load(
        self, type_: str, pointer: Value, mask: Value, otherwise: float | int = 0
    ) -> Value:
        """Load only the lanes whose mask is set; the others get ``otherwise``."""
        name = f"llvm.masked.load.{mangled(type_)}.p0"
        self.module.declare(name, type_, [f"ptr align {align_of(type_)}", mask.type, type_])
        fill = literal(otherwise, type_)
        return self.emit(
            type_,
            f"call {type_} @{name}(ptr align {align_of(type_)} {pointer.text}, "
            f"{mask.type} {mask.text}, {type_} {fill})",
        )

    def masked_store(self, value: Value, pointer: Value, mask: Value) -> None:
        """Store only the lanes whose mask is set."""
        type_ = value.type
        name = f"llvm.masked.store.{mangled(type_)}.p0"
        self.module.declare(name, "void", [type_, f"ptr align {align_of(type_)}", mask.type])
        self.statement(
            f"call void @{name}({type_} {value.text}, ptr align {align_of(type_)} {pointer.text}, "
            f"{mask.type} {mask.text})"
        )

    def slots(self, count: int, element: str, align: int = 64) -> Value:
        """Stack memory for ``count`` elements, allocated once at function entry."""
        self._count += 1
        name = f"%slots{self._count}"
        self._entry.append(f"  {name} = alloca [{count} x {element}], align {align}")
        return Value(self, name, PTR)

    # -- control ----------------------------------------------------------------------------

    @contextlib.contextmanager
    def loop(
        self, start: Operand, stop: Operand, step: int | Value = 1, carry: Sequence[Value] = ()
    ) -> Iterator[Loop]:
        """``for index in range(start, stop, step)`` with carried values; step is positive."""
        first, last = self.coerce(start, I64), self.coerce(stop, I64)
        stride = self.coerce(step, I64)
        self._count += 1
        label = f"loop{self._count}"
        before = self._block
        self.statement(f"br label %{label}.head")
        self._open(f"{label}.head")
        place = len(self._lines)
        self._lines.append("")
        index = Value(self, f"%{label}.i", I64)
        carried = [Value(self, f"%{label}.c{n}", v.type) for n, v in enumerate(carry)]
        going = self.emit(I1, f"icmp slt i64 {index.text}, {last.text}")
        self.statement(f"br i1 {going.text}, label %{label}.body, label %{label}.done")
        self._open(f"{label}.body")
        loop = Loop(self, index, carried)
        yield loop
        following = self.emit(I64, f"add nsw i64 {index.text}, {stride.text}")
        back = self._block
        self.statement(f"br label %{label}.head")
        phis = [f"  {index.text} = phi i64 [{first.text}, %{before}], [{following.text}, %{back}]"]
        for value, initial, latest in zip(carried, carry, loop.updated, strict=True):
            phis.append(
                f"  {value.text} = phi {value.type} [{initial.text}, %{before}], "
                f"[{latest.text}, %{back}]"
            )
        self._lines[place] = "\n".join(phis)
        self._open(f"{label}.done")
        loop.results = carried

    @contextlib.contextmanager
    def when(self, condition: Value) -> Iterator[None]:
        """Run the body only when the scalar condition holds."""
        self._count += 1
        label = f"when{self._count}"
        self.statement(f"br i1 {condition.text}, label %{label}.yes, label %{label}.done")
        self._open(f"{label}.yes")
        yield
        self.statement(f"br label %{label}.done")
        self._open(f"{label}.done")

    @contextlib.contextmanager
    def unless(self, condition: Value) -> Iterator[None]:
        """Run the body only when the scalar condition does not hold."""
        with self.when(condition ^ True):
            yield

    def return_(self, value: Value | None = None) -> None:
        """End the function here; nothing may follow in this block."""
        self.statement(f"ret {value.type} {value.text}" if value else "ret void")

    def _open(self, label: str) -> None:
        self._lines.append(f"{label}:")
        self._block = label

    def text(self) -> str:
        """The definition as LLVM IR."""
        params = ", ".join(f"{value.type} {value.text}" for value in self.params)
        linkage = "dso_local" if self.exported else "internal"
        body = "\n".join(["entry:", *self._entry, *self._lines])
        return (
            f"define {linkage} {self.returns} @{self.name}({params}) #0 align 64 {{\n{body}\n}}\n"
        )


class Module:
    """The text of one kernel: functions, constants, declared intrinsics."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._functions: list[Function] = []
        self._declared: dict[str, str] = {}
        self._constants: dict[str, str] = {}

    def function(
        self,
        name: str,
        params: Sequence[tuple[str, str]],
        *,
        returns: str = "void",
        exported: bool = False,
    ) -> Function:
        """A new function to write. Not inlined: microkernels rely on that."""
        function = Function(self, name, params, returns=returns, exported=exported)
        self._functions.append(function)
        return function

    def kernel(self, symbol: str) -> Function:
        """A new exported kernel: ``void symbol(ptr args, i64 begin, i64 end, ptr scratch)``."""
        params = [(PTR, "args"), (I64, "begin"), (I64, "end"), (PTR, "scratch")]
        return self.function(symbol, params, exported=True)

    def declare(self, name: str, returns: str, params: Sequence[str]) -> None:
        """Declare an external (an intrinsic) once."""
        self._declared[name] = f"declare {returns} @{name}({', '.join(params)})"

    def table(self, name: str, element: str, values: Sequence[float | int]) -> str:
        """A constant array in read-only data; returns the text of its address."""
        items = ", ".join(f"{element} {literal(value, element)}" for value in values)
        self._constants[name] = (
            f"@{name} = internal constant [{len(values)} x {element}] [{items}], align 64"
        )
        return f"@{name}"

    def text(self) -> str:
        """The whole module as LLVM IR, functions in the order they were made."""
        parts = [*self._constants.values(), *(f.text() for f in self._functions)]
        parts += [self._declared[name] for name in sorted(self._declared)]
        parts.append('attributes #0 = { noinline nounwind "no-builtins" }')
        return "\n".join(parts) + "\n"
