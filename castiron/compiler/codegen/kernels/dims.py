"""Values made from numbers known before the data: DimsToTensor, Range, ConstantOfShape."""

from __future__ import annotations

import struct

import numpy as np

from castiron.compiler.codegen import step
from castiron.compiler.codegen.kernels import strided
from castiron.compiler.codegen.loop import F32, F64, I1, PTR, Function, Module, Value
from castiron.compiler.target import Target
from castiron.graph.graph import Extent, Graph, Node
from castiron.tensor import dim
from castiron.tensor import dtype as dtypes

OPS = ("DimsToTensor", "Range", "ConstantOfShape")
_MOST_PARAMS = 80  # of one step; the argument block has 96 words
_CLAIM_ELEMENTS = 32 << 10


def gap(node: Node, graph: Graph) -> str | None:
    """None where the numbers are attributes and the dtype has arithmetic here."""
    needed = {"DimsToTensor": "dims", "Range": "limit", "ConstantOfShape": "shape"}[node.op]
    if node.attr(needed) is None:
        return f"{node.op} whose {needed} depends on the data"
    dtype = graph.dtype(node.outputs[0])
    if node.op == "ConstantOfShape":
        return None if dtype.size_bytes else "ConstantOfShape of strings"
    if dtype.name in ("float16", "bfloat16", "string"):
        return f"{node.op} of dtype {dtype}"
    return None


def lower(node: Node, graph: Graph, target: Target) -> step.Lowered:
    """The node as steps that read nothing."""
    if node.op == "DimsToTensor":
        return step.Lowered(steps=tuple(_write_dims(node, graph, target)))
    if node.op == "Range":
        return step.Lowered(steps=(_range(node, graph, target),))
    return step.Lowered(steps=(_fill(node, graph, target),))


def _write_dims(node: Node, graph: Graph, target: Target) -> list[step.Step]:
    dtype = graph.dtype(node.outputs[0])
    values: tuple[Extent, ...] = tuple(node.attr("dims"))
    steps = []
    for first in range(0, len(values), _MOST_PARAMS):
        part = values[first : first + _MOST_PARAMS]
        symbol = f"write_dims_{dtype.name}_{len(part)}"
        write = step.Write(node.outputs[0], first * dtype.size_bytes)
        kernel = step.Kernel(symbol, _write_text(symbol, len(part), dtype, target))
        steps.append(step.Step(node.name or node.op, kernel, (write,), part, units=1, grain=0))
    return steps


def _write_text(symbol: str, count: int, dtype: dtypes.DType, target: Target) -> str:
    module = Module(target)
    f = module.kernel(symbol)
    args, begin, end, _ = f.params
    to = f.argument(args, 0, PTR)
    with f.when(begin < end):
        for index in range(count):
            value = _converted(f, f.argument(args, 1 + index), dtype)
            f.store(value, to, index * dtype.size_bytes)
    f.return_()
    return module.text()


def _converted(f: Function, value: Value, dtype: dtypes.DType) -> Value:
    """An i64 as an element of this dtype."""
    if dtype.is_float:
        return f.convert("sitofp", value, dtype.llvm)
    if dtype.name == "bool":
        return f.convert("zext", value.differs(0), dtype.llvm)
    return value if dtype.size_bytes == 8 else f.convert("trunc", value, dtype.llvm)


def _range(node: Node, graph: Graph, target: Target) -> step.Step:
    dtype = graph.dtype(node.outputs[0])
    symbol = f"range_{dtype.name}"
    kernel = step.Kernel(symbol, _range_text(symbol, dtype, target))
    params = (node.attr("start"), node.attr("delta"))
    return step.Step(
        name=node.name or node.op,
        kernel=kernel,
        operands=(step.Write(node.outputs[0]),),
        params=params,
        units=graph.shape(node.outputs[0])[0],
        grain=_CLAIM_ELEMENTS,
    )


def _range_text(symbol: str, dtype: dtypes.DType, target: Target) -> str:
    """Element i is start + i * delta, in exact integer arithmetic, then converted."""
    module = Module(target)
    f = module.kernel(symbol)
    args, begin, end, _ = f.params
    to = f.argument(args, 0, PTR)
    start, delta = f.argument(args, 1), f.argument(args, 2)
    with f.loop(begin, end, carry=[start + begin * delta]) as unit:
        value = _converted(f, unit.carried[0], dtype)
        f.store(value, to, unit.index * dtype.size_bytes)
        unit.update([unit.carried[0] + delta])
    f.return_()
    return module.text()


def _fill(node: Node, graph: Graph, target: Target) -> step.Step:
    """All elements equal to a constant, whose bits are a param."""
    dtype = graph.dtype(node.outputs[0])
    bits = bits_of(np.asarray(node.attr("value")).reshape(-1)[:1])
    count = dim.product(graph.shape(node.outputs[0]))
    piece = _CLAIM_ELEMENTS
    symbol = f"fill_constant_{dtype.size_bytes}"
    return step.Step(
        name=node.name or node.op,
        kernel=step.Kernel(symbol, _fill_text(symbol, dtype.size_bytes, target)),
        operands=(step.Write(node.outputs[0]),),
        params=(bits, count, piece),
        units=dim.ceildiv(count, piece),
        bytes_moved=dim.mul(count, dtype.size_bytes),
    )


def bits_of(element: np.ndarray) -> int:
    """The bytes of one element as a signed word, zeros above."""
    raw = element.tobytes()
    return int(struct.unpack("<q", raw + b"\0" * (8 - len(raw)))[0])


def from_word(f: Function, word: Value, type_: str) -> Value:
    """The element of this type whose bits are the low ones of an i64."""
    if type_ in (F64, F32):
        bits = word if type_ == F64 else f.convert("trunc", word, "i32")
        return f.convert("bitcast", bits, type_)
    assert type_ != I1
    return word if type_ == "i64" else f.convert("trunc", word, type_)


def _fill_text(symbol: str, size: int, target: Target) -> str:
    module = Module(target)
    fill = strided.filler(module, size)
    f = module.kernel(symbol)
    args, begin, end, _ = f.params
    to = f.argument(args, 0, PTR)
    value = from_word(f, f.argument(args, 1), strided.MOVES[size])
    count, piece = f.argument(args, 2), f.argument(args, 3)
    with f.loop(begin, end) as unit:
        first = unit.index * piece
        f.call(fill, [f.offset(to, first * size), value, f.minimum(count - first, piece)])
    f.return_()
    return module.text()
