"""Trilu and EyeLike: matrices cut or filled along a diagonal, one row per unit."""

from __future__ import annotations

import numpy as np

from castiron.compiler.codegen import step
from castiron.compiler.codegen.kernels import dims as constants
from castiron.compiler.codegen.kernels import strided
from castiron.compiler.codegen.loop import PTR, Module
from castiron.compiler.target import Target
from castiron.graph.graph import Graph, Node
from castiron.tensor import dim as dims
from castiron.tensor import dtype as dtypes

OPS = ("Trilu", "EyeLike")
_CLAIM_BYTES = 128 << 10


def gap(node: Node, graph: Graph) -> str | None:
    """None where the diagonal is known before the data are."""
    kind = graph.types[node.outputs[0]]
    if kind.shape is None or kind.dtype is None or not kind.dtype.size_bytes:
        return f"{node.op} of a value whose rank or element size is not known"
    if node.op == "Trilu" and node.attr("k") is None:
        return "Trilu whose diagonal depends on the data"
    if node.op == "EyeLike" and kind.dtype is dtypes.BFLOAT16:
        return "EyeLike of dtype bfloat16"
    return None


def lower(node: Node, graph: Graph, target: Target) -> step.Lowered:
    """One step over all rows."""
    shape, dtype = graph.shape(node.outputs[0]), graph.dtype(node.outputs[0])
    size = dtype.size_bytes
    reads: tuple[step.Read, ...] = ()
    if node.op == "Trilu":
        side = "upper" if node.attr("upper", 1) else "lower"
        symbol = f"trilu_{side}_{size}"
        text = _trilu_text(symbol, side == "upper", size, target)
        reads = (step.Read(node.inputs[0]),)
        word = 0
    else:
        symbol = f"eye_{size}"
        text = _eye_text(symbol, size, target)
        word = constants.bits_of(np.ones(1, dtype.name))
    units = dims.product(list(shape[:-1]))
    return step.Lowered(
        steps=(
            step.Step(
                name=node.name or node.op,
                kernel=step.Kernel(symbol, text),
                operands=(step.Write(node.outputs[0]), *reads),
                params=(shape[-2], shape[-1], node.attr("k", 0), word),
                units=units,
                grain=strided.grain_of(dims.mul(shape[-1], size), _CLAIM_BYTES),
                bytes_moved=dims.mul(dims.product(list(shape)), 2 * size),
            ),
        )
    )


def _trilu_text(symbol: str, is_upper: bool, size: int, target: Target) -> str:
    """Columns from row + k on are kept (upper), or those up to row + k (lower)."""
    module = Module(target)
    copy, fill = strided.copier(module), strided.filler(module, size)
    f = module.kernel(symbol)
    args, begin, end, _ = f.params
    to, source = f.argument(args, 0, PTR), f.argument(args, 1, PTR)
    rows, columns, k = (f.argument(args, 2 + n) for n in range(3))
    zero = f.const(0, strided.MOVES[size])
    with f.loop(begin, end) as unit:
        row = unit.index % f.maximum(rows, 1)
        cut = row + k if is_upper else row + k + 1
        cut = f.maximum(f.minimum(cut, columns), 0)
        start = unit.index * columns * size
        here, there = f.offset(to, start), f.offset(source, start)
        split = cut * size
        if is_upper:
            f.call(fill, [here, zero, cut])
            kept = (columns - cut) * size
            f.call(copy, [f.offset(here, split), f.offset(there, split), kept])
        else:
            f.call(copy, [here, there, split])
            f.call(fill, [f.offset(here, split), zero, columns - cut])
    f.return_()
    return module.text()


def _eye_text(symbol: str, size: int, target: Target) -> str:
    module = Module(target)
    fill = strided.filler(module, size)
    f = module.kernel(symbol)
    args, begin, end, _ = f.params
    to = f.argument(args, 0, PTR)
    rows, columns, k, word = (f.argument(args, 1 + n) for n in range(4))
    one = constants.from_word(f, word, strided.MOVES[size])
    with f.loop(begin, end) as unit:
        here = f.offset(to, unit.index * columns * size)
        f.call(fill, [here, f.const(0, strided.MOVES[size]), columns])
        column = unit.index % f.maximum(rows, 1) + k
        with f.when((column >= 0) & (column < columns)):
            f.store(one, here, column * size)
    f.return_()
    return module.text()
