"""A product of many rows with a constant matrix: fully connected layers and 1x1 convolutions.

The matrix is packed into panels at build time, the rows are read where they lie. Units are blocks
of rows (small enough for the second cache) times groups of panels. Every element is one chain of
multiply-adds in order of depth, from the bias on, so results depend neither on the cut nor on the
number of rows. Products of two run-time matrices are in matmul.py.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from castiron.compiler.codegen import step
from castiron.compiler.codegen.kernels import epilogues, packing, tiles
from castiron.compiler.codegen.loop import I64, PTR, Function, Module, Value
from castiron.compiler.target import Target
from castiron.graph.graph import Extent
from castiron.tensor import dim
from castiron.tensor.dim import Dim

# One unit should take about this long; a claim costs well under a microsecond.
_UNIT_MICROSECONDS = 40.0
_FLOPS_PER_MICROSECOND = 100e3
_BYTES_PER_MICROSECOND = 15e3


@dataclasses.dataclass(frozen=True, slots=True)
class Product:
    """``output[row] = epilogue(input[row] @ matrix + bias)`` for ``rows`` rows.

    ``matrix`` is [depth, columns]; ``a_row`` and ``a_step`` are bytes from one row of the input
    to the next and from one element of a row to the next; rows of the output are contiguous.
    ``likely_rows`` guides the cut where ``rows`` is not known.
    """

    name: str
    input: step.Read
    output: step.Write
    matrix: np.ndarray
    rows: Extent
    a_row: Extent
    a_step: Extent
    likely_rows: int | None = None
    bias: np.ndarray | None = None
    epilogue: epilogues.Epilogue | None = None
    extras: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Cut:
    """How rows and panels become units: ``blocks`` of rows times ``groups`` of panels."""

    blocks: Extent
    groups: int


def element_of(array: np.ndarray) -> str:
    """The LLVM element type of an array that products are computed in."""
    return {"float32": "float", "float64": "double", "int32": "i32", "int64": "i64"}[
        array.dtype.name
    ]


def lower(product: Product, target: Target) -> step.Step:
    """The product as one step."""
    depth, count = product.matrix.shape
    reads = [step.Read(value) for value in product.extras]
    epilogue, extras = epilogues.lifted(product.epilogue, reads)
    micro = tiles.Micro(
        reads_ahead=True,
        element=element_of(product.matrix),
        has_bias=product.bias is not None,
        strided_a=product.a_step != product.matrix.itemsize,
        epilogue=epilogue,
    )
    run = product.likely_rows if isinstance(product.rows, Dim) else product.rows
    columns = packing.columns(count, target, micro.element, rows=run, is_cold=run is not None)
    cut = divide((product.rows, run), depth, columns, target)
    strips = packing.strips(
        target,
        columns,
        packing.runs(product.rows, cut.blocks),
        8 if rows_collide(product.a_row) else 0,
    )
    size = micro.size_bytes
    operands: list[step.Read | step.Write | step.Packed] = [
        product.input,
        step.Packed(packing.pack(product.matrix, columns)),
        product.output,
    ]
    if product.bias is not None:
        operands.append(step.Packed(packing.pack_vector(product.bias, columns)))
    operands += extras
    return step.Step(
        name=product.name,
        kernel=_kernel(target, micro, columns, strips),
        operands=tuple(operands),
        params=(
            product.rows,
            depth,
            product.a_row,
            product.a_step,
            count * size,
            columns.full,
            columns.panels,
            columns.last_columns,
            cut.blocks,
            cut.groups,
        ),
        units=dim.mul(cut.blocks, cut.groups),
        flops=dim.mul(product.rows, 2 * depth * count),
        bytes_moved=dim.add(dim.mul(product.rows, (depth + count) * size), depth * count * size),
    )


def divide(
    count: tuple[Extent, int | None], depth: int, columns: packing.Columns, target: Target
) -> Cut:
    """Blocks of rows whose part of A stays in the second cache, and groups of panels.

    ``count`` is the number of rows, and what it is likely to be.
    """
    rows, likely = count
    size = target.vector_bytes // columns.lanes
    tallest = tiles.most_rows(target, columns.main)
    in_cache = target.l2_bytes // 2 // max(1, depth * size)
    row_time = 2 * depth * columns.padded / _FLOPS_PER_MICROSECOND
    enough = int(_UNIT_MICROSECONDS / row_time) if row_time else in_cache
    most = max(2 * tallest, min(in_cache, max(enough, 8 * tallest)))
    blocks = dim.ceildiv(rows, most)
    block_rows = most
    if likely is not None:
        block_rows = -(-likely // max(1, -(-likely // most)))
    weights = depth * columns.padded * size / _BYTES_PER_MICROSECOND
    time = max(block_rows * row_time, weights)
    groups = max(1, min(columns.panels, round(time / _UNIT_MICROSECONDS)))
    return Cut(blocks, groups)


def rows_collide(a_row: Extent) -> bool:
    """Whether rows of A lie so that more than eight share too few places of the first cache."""
    return not isinstance(a_row, Dim) and a_row > 0 and a_row % 4096 == 0


def _kernel(
    target: Target,
    micro: tiles.Micro,
    columns: packing.Columns,
    strips: tuple[tiles.Strips, ...],
) -> step.Kernel:
    module = Module(target)
    symbol = f"gemm_{micro.tag()}_{packing.tag(strips)}"
    panels = packing.panels(module, micro, strips)
    _write(module.kernel(symbol), micro, columns, panels)
    return step.Kernel(symbol, module.text())


def _write(
    f: Function, micro: tiles.Micro, columns: packing.Columns, panels: dict[tiles.Width, Function]
) -> None:
    args, begin, end, _ = f.params
    at = _arguments(f, args, micro)
    with f.loop(begin, end) as unit:
        block = unit.index // at["groups"]
        group = unit.index - block * at["groups"]
        first_row = block * at["rows"] // at["blocks"]
        rows = (block + 1) * at["rows"] // at["blocks"] - first_row
        first = group * at["panels"] // at["groups"]
        last = (group + 1) * at["panels"] // at["groups"]
        here = {**at, "rows": rows}
        here["a"] = f.offset(at["a"], first_row * at["a_row"])
        here["c_down"] = first_row * at["c_row"]
        if columns.full:
            with f.loop(first, f.minimum(last, at["full"])) as turn:
                _call(f, micro, (columns, tiles.Width(columns.main)), panels, here, turn.index)
        if columns.rest:
            with f.when(last > at["full"]):
                _call(f, micro, (columns, columns.rest), panels, here, at["full"])
    f.return_()


def _arguments(f: Function, args: Value, micro: tiles.Micro) -> dict[str, Value]:
    names = ["a", "b", "c"] + (["bias"] if micro.has_bias else [])
    if micro.epilogue:
        names += [f"e{n}" for n in range(len(micro.epilogue.kinds))]
    numbers = "rows inner a_row a_step c_row full panels columns blocks groups".split()
    at = {name: f.argument(args, n, PTR) for n, name in enumerate(names)}
    start = len(names)
    at |= {name: f.argument(args, start + n, I64) for n, name in enumerate(numbers)}
    return at


def _call(
    f: Function,
    micro: tiles.Micro,
    shape: tuple[packing.Columns, tiles.Width],
    panels: dict[tiles.Width, Function],
    here: dict[str, Value],
    index: Value,
) -> None:
    columns, width = shape
    size = micro.size_bytes
    step_bytes = columns.main * columns.lanes * size
    across = index * step_bytes
    now = dict(here)
    now["b"] = f.offset(here["b"], across * here["inner"])
    now |= {"turns": f.const(1, I64), "turn": f.const(0, I64)}
    now["b_row"] = f.const(width.vectors * columns.lanes * size, I64)
    now["c"] = f.offset(f.offset(here["c"], here["c_down"]), across)
    if micro.has_bias:
        now["bias"] = f.offset(here["bias"], across)
    if micro.epilogue:
        for n, kind in enumerate(micro.epilogue.kinds):
            place = here[f"e{n}"]
            if kind == epilogues.FULL:
                place = f.offset(place, here["c_down"])
            now[f"e{n}"] = place if kind == epilogues.SCALAR else f.offset(place, across)
    labels = [label for _, label in tiles.panel_parameters(micro, width)]
    f.call(panels[width], [now[label] for label in labels])
