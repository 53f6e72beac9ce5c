"""What happens to finished accumulators: an expression over them and tensors read from memory.

Light expressions are printed between the last multiplication and the store of a strip. Heavy ones
(exponentials and the like, which would fill every strip function) run over the block that a strip
has just stored, while it lies in the first cache. Expressions themselves are printed by
codegen/pointwise.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from castiron.compiler.codegen import loop as language
from castiron.compiler.codegen import pointwise, step
from castiron.compiler.codegen.loop import I64, PTR, Function, Module, Value
from castiron.graph import expr
from castiron.graph.expr import Expr
from castiron.graph.graph import Graph, Node
from castiron.tensor import dtype as dtypes

FULL, VECTOR, SCALAR = "full", "vector", "scalar"

_LIGHT = frozenset(
    "input const add sub mul min max relu neg abs where less less_equal greater greater_equal"
    " equal and or not div".split()
)
_MOST_LIGHT = 12
# Operations whose constant operands may as well come from memory, constants that are so common
# that they stay in the text, and how many of the others leave it.
_LIFTED = ("add", "sub", "mul", "min", "max")
_USUAL = (-1.0, 0.0, 0.5, 1.0, 2.0, 3.0, 6.0)
_MOST_LIFTED = 8


Operand = step.Read | step.Packed


@dataclasses.dataclass(frozen=True, slots=True)
class Epilogue:
    """``expression`` of the accumulator (input 0) and of tensors (``kinds`` of inputs 1, 2...).

    A FULL tensor has the output's shape, a VECTOR lies along its last axis, a SCALAR is one
    element.
    """

    expression: Expr
    kinds: tuple[str, ...] = ()


def tag(epilogue: Epilogue | None) -> str:
    """The part of a kernel's symbol that names the epilogue; empty without one."""
    if epilogue is None:
        return ""
    kinds = "".join(kind[0] for kind in epilogue.kinds)
    return f"_e{kinds}{step.tag(expr.text(epilogue.expression) + str(_dtypes(epilogue)))}"


def is_light(epilogue: Epilogue | None) -> bool:
    """Whether the expression is printed inside the strips."""
    return epilogue is None or _weight(epilogue.expression) <= _MOST_LIGHT


def _weight(expression: Expr) -> int:
    if expression.op not in _LIGHT:
        return _MOST_LIGHT + 1
    own = 0 if expression.op in ("input", "const") else 1
    return own + sum(_weight(arg) for arg in expression.args)


def lifted(
    epilogue: Epilogue | None, operands: Sequence[Operand]
) -> tuple[Epilogue | None, tuple[Operand, ...]]:
    """The epilogue with its uncommon constants as scalars in memory, and all it reads.

    Layers that differ in such constants only then share one kernel.
    """
    if epilogue is None:
        return None, tuple(operands)
    found: list[float] = []
    expression = _without_constants(epilogue.expression, len(operands) + 1, found)
    kinds = (*epilogue.kinds, *(SCALAR for _ in found))
    scalars = (step.Packed(np.array([value], np.float32)) for value in found)
    return Epilogue(expression, kinds), (*operands, *scalars)


def _without_constants(expression: Expr, first: int, found: list[float]) -> Expr:
    """The expression with constants replaced by inputs ``first``, ``first + 1``..."""
    args = []
    for arg in expression.args:
        is_constant = arg.op == "const" and arg.dtype == "float32" and arg.value not in _USUAL
        if is_constant and expression.op in _LIFTED and len(found) < _MOST_LIFTED:
            found.append(float(arg.value))
            args.append(expr.input_(first + len(found) - 1, "float32"))
        else:
            args.append(_without_constants(arg, first, found))
    return dataclasses.replace(expression, args=tuple(args))


def loaded(f: Function, epilogue: Epilogue, pointers: Sequence[Value], lanes: int) -> list[Value]:
    """The pointers with every scalar already read into a register, for ``apply`` to use."""
    dtypes_ = _dtypes(epilogue)
    found = []
    for number, (kind, pointer) in enumerate(zip(epilogue.kinds, pointers, strict=True), 1):
        element = dtypes.named(dtypes_.get(number, "float32")).llvm
        is_scalar = kind == SCALAR
        found.append(f.splat(f.load(element, pointer), lanes) if is_scalar else pointer)
    return found


def _dtypes(epilogue: Epilogue) -> dict[int, str]:
    """Input index to the dtype that the expression reads it as."""
    found: dict[int, str] = {}
    waiting = [epilogue.expression]
    while waiting:
        item = waiting.pop()
        if item.op == "input":
            found[item.index] = item.dtype
        waiting.extend(item.args)
    return dict(sorted(found.items()))


def places(
    f: Function,
    epilogue: Epilogue,
    pointers: Sequence[Value],
    at: tuple[Value | int, Value | int],
) -> list[Value]:
    """The pointers moved by (row offset, column offset) in bytes, as far as each kind moves."""
    row, column = at
    moved = []
    for kind, pointer in zip(epilogue.kinds, pointers, strict=True):
        start = f.offset(pointer, row) if kind == FULL else pointer
        moved.append(start if kind == SCALAR else f.offset(start, column))
    return moved


def apply(
    f: Function, epilogue: Epilogue, value: Value, where: tuple[Sequence[Value], Value | None]
) -> Value:
    """The epilogue of one vector; ``where`` is (pointer of each tensor, mask or None).

    In place of a pointer there may be a vector that was read before.
    """
    pointers, mask = where
    lanes = language.lanes_of(value.type)
    inputs = [value]
    kinds = _dtypes(epilogue)
    for number, (kind, pointer) in enumerate(zip(epilogue.kinds, pointers, strict=True), 1):
        element = dtypes.named(kinds.get(number, "float32")).llvm
        inputs.append(_read(f, kind, pointer, (element, lanes, mask)))
    return pointwise.emit(f, epilogue.expression, inputs)


def _read(f: Function, kind: str, pointer: Value, how: tuple[str, int, Value | None]) -> Value:
    element, lanes, mask = how
    if pointer.type != PTR:
        return pointer
    if kind == SCALAR:
        return f.splat(f.load(element, pointer), lanes)
    type_ = language.vector(lanes, element)
    return f.load(type_, pointer) if mask is None else f.masked_load(type_, pointer, mask)


def finisher(module: Module, epilogue: Epilogue, label: str, element: str) -> Function:
    """A function that applies the epilogue in place to ``rows`` rows of ``columns`` elements.

    Rows without a gap between them are taken as one, so that narrow ones fill the registers.
    """
    extras = [(PTR, f"e{n}") for n in range(len(epilogue.kinds))]
    params = [(I64, "rows"), (I64, "columns"), (PTR, "c"), (I64, "c_row"), *extras]
    f = module.function(f"finish_{label}", params)
    size = {"float": 4, "double": 8, "i32": 4, "i64": 8}[element]
    rows, columns, c, c_row, *tensors = f.params
    if VECTOR not in epilogue.kinds:
        is_dense = c_row.equals(columns * size)
        columns = f.select(is_dense, rows * columns, columns)
        rows = f.select(is_dense, 1, rows)
    lanes = module.target.vector_lanes_f32 * 4 // size
    type_ = language.vector(lanes, element)
    tensors = loaded(f, epilogue, tensors, lanes)
    whole = columns - columns % lanes
    with f.loop(0, rows) as row:
        start = row.index * c_row
        with f.loop(0, whole, lanes) as column:
            _finish_vector(f, epilogue, (c, tensors), (start, column.index * size, type_, None))
        with f.when(whole < columns):
            mask = f.lane_mask(columns - whole, lanes)
            _finish_vector(f, epilogue, (c, tensors), (start, whole * size, type_, mask))
    f.return_()
    return f


def _finish_vector(
    f: Function,
    epilogue: Epilogue,
    memory: tuple[Value, Sequence[Value]],
    at: tuple[Value, Value, str, Value | None],
) -> None:
    c, tensors = memory
    row, column, type_, mask = at
    place = f.offset(f.offset(c, row), column)
    moved = places(f, epilogue, tensors, (row, column))
    value = f.load(type_, place) if mask is None else f.masked_load(type_, place, mask)
    value = apply(f, epilogue, value, (moved, mask))
    if mask is None:
        f.store(value, place)
    else:
        f.masked_store(value, place, mask)


def call_finisher(
    f: Function, finish: Function, now: Mapping[str, Value], size: tuple[Value, Value]
) -> None:
    """Run the finisher on the block that starts at ``now``'s pointers; size is (rows, columns)."""
    extras = [now[f"e{n}"] for n in range(len(finish.params) - 4)]
    f.call(finish, [*size, now["c"], now["c_row"], *extras])


def of_node(node: Node, graph: Graph) -> tuple[Epilogue | None, tuple[str, ...]]:
    """The node's fused epilogue and the values that its inputs 1, 2... read."""
    expression = node.attr("epilogue")
    if expression is None:
        return None, ()
    values = node.inputs[node.attr("num_own", len(node.inputs)) :]
    shape = graph.shape(node.outputs[0])
    kinds = tuple(kind_of(graph.shape(value), shape) or FULL for value in values)
    return Epilogue(expression, kinds), values


def kind_of(shape: Sequence[object], output: Sequence[object]) -> str | None:
    """How a tensor of this shape is read beside the output; None if it is none of the kinds."""
    if all(extent == 1 for extent in shape):
        return SCALAR
    if len(shape) == len(output) and tuple(shape) == tuple(output):
        return FULL
    if all(extent == 1 for extent in shape[:-1]) and shape[-1] == output[-1]:
        return VECTOR
    return None


def gap(node: Node, graph: Graph) -> str | None:
    """Why the node's epilogue cannot be printed, or None."""
    if node.attr("epilogue") is None:
        return None
    output = graph.shape(node.outputs[0])
    for value in node.inputs[node.attr("num_own", len(node.inputs)) :]:
        if kind_of(graph.shape(value), output) is None:
            return f"epilogue input {value} neither has the output's shape nor lies along its end"
    return None
