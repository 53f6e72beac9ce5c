"""One expression as a kernel over arrays: for tests of functions and operations by themselves."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence

import numpy as np

from castiron.compiler import target as targets
from castiron.compiler.codegen import loop, pointwise, step
from castiron.graph.expr import Expr
from castiron.tensor import dtype as dtypes
from tests.codegen import runner


@functools.cache
def text_of(expression: Expr, inputs: tuple[str, ...], target: targets.Target) -> tuple[str, str]:
    """(symbol, LLVM text): whole vectors of every input in, of the result out."""
    symbol = f"printed_{step.tag(repr((expression, inputs)))}"
    module = loop.Module(target)
    f = module.kernel(symbol)
    lanes = target.vector_lanes_f32
    pointers = [f.argument(f.params[0], n, loop.PTR) for n in range(len(inputs) + 1)]
    kinds = [dtypes.named(name) for name in (*inputs, expression.dtype)]
    with f.loop(f.params[1], f.params[2], lanes) as element:
        given = [
            f.load(loop.vector(lanes, kind.llvm), pointer, element.index * kind.size_bytes)
            for kind, pointer in zip(kinds[:-1], pointers, strict=False)
        ]
        value = pointwise.emit(f, expression, given, lanes=lanes)
        value = pointwise.to_memory(f, value, expression.dtype)
        f.store(value, pointers[-1], element.index * kinds[-1].size_bytes)
    f.return_()
    return symbol, module.text()


def compute(expression: Expr, arrays: Sequence[np.ndarray], target: targets.Target) -> np.ndarray:
    """The expression of arrays of one length, computed by the printed code."""
    symbol, text = text_of(expression, tuple(array.dtype.name for array in arrays), target)
    place = runner.address(text, target, symbol)
    size = arrays[0].size
    padded = size + -size % 16
    full = [np.concatenate([array, np.ones(padded - size, array.dtype)]) for array in arrays]
    result = np.empty(padded, expression.dtype)
    addresses = [array.ctypes.data for array in (*full, result)]
    block = (ctypes.c_int64 * len(addresses))(*addresses)
    prototype = ctypes.CFUNCTYPE(
        None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p
    )
    prototype(place)(ctypes.addressof(block), 0, padded, 0)
    return result[:size]
