"""Products of two run-time matrices, for any batch: attention, dynamic Gemm.

B is not packed beforehand. When enough rows read a panel of it, or when its columns are not
contiguous, the panel is first copied to scratch; otherwise it is read in place, its last vector
masked. Units are batch entries times blocks of rows times groups of panels.
"""

from __future__ import annotations

import dataclasses

from castiron.compiler.codegen import loop as language
from castiron.compiler.codegen import step
from castiron.compiler.codegen.kernels import epilogues, packing, tiles
from castiron.compiler.codegen.loop import I64, PTR, Function, Module, Value
from castiron.compiler.target import Target
from castiron.graph.graph import Extent
from castiron.tensor import dim
from castiron.tensor.dim import Dim

# Copying a panel costs about as much as multiplying it with this many rows.
_ROWS_THAT_PAY = 24
_BLOCK_ROWS = 192
_GROUP_PANELS = 4


@dataclasses.dataclass(frozen=True, slots=True)
class Axis:
    """One batch axis: its extent and the distance of its entries in A and B, in bytes."""

    extent: Extent
    a_stride: Extent
    b_stride: Extent


@dataclasses.dataclass(frozen=True, slots=True)
class Product:
    """``output[i] = epilogue(a[i] @ b[i])`` for every batch entry ``i``; the output is contiguous.

    Strides are bytes: ``a_row``/``a_step`` from one row of A to the next and within a row,
    ``b_row``/``b_step`` likewise from one depth of B to the next and from column to column.
    """

    name: str
    a: step.Read
    b: step.Read
    output: step.Write
    element: str
    axes: tuple[Axis, ...]
    size: tuple[Extent, Extent, Extent]  # rows, depth, columns
    a_strides: tuple[Extent, Extent]  # row, step
    b_strides: tuple[Extent, Extent]  # row, step
    epilogue: epilogues.Epilogue | None = None
    extras: tuple[str, ...] = ()


def lower(product: Product, target: Target) -> step.Step:
    """The product as one step."""
    reads = [step.Read(value) for value in product.extras]
    epilogue, extras = epilogues.lifted(product.epilogue, reads)
    micro = tiles.Micro(
        element=product.element,
        partial_b=target.has_masked_ops,
        strided_a=product.a_strides[1] != tiles.Micro(product.element).size_bytes,
        epilogue=epilogue,
    )
    rows, depth, columns = product.size
    size = micro.size_bytes
    wide = tiles.widest(target) * tiles.lanes_of(target, micro.element)
    entries = dim.product([axis.extent for axis in product.axes])
    blocks = dim.ceildiv(rows, _BLOCK_ROWS)
    panels = dim.ceildiv(columns, wide)
    groups = dim.ceildiv(panels, _GROUP_PANELS)
    strides = [
        number for axis in product.axes for number in (axis.extent, axis.a_stride, axis.b_stride)
    ]
    return step.Step(
        name=product.name,
        kernel=_kernel(target, micro, len(product.axes), (rows, columns)),
        operands=(
            product.a, product.b, product.output, *extras,
        ),
        params=(
            rows, depth, columns, *product.a_strides, *product.b_strides,
            panels, blocks, groups, *strides,
        ),
        units=dim.product([entries, blocks, groups]),
        scratch_bytes=dim.mul(depth, wide * size),
        flops=dim.product([entries, rows, depth, columns, 2]),
        bytes_moved=dim.mul(entries, _bytes_of_one(product.size, size)),
    )  # fmt: skip


def _bytes_of_one(size: tuple[Extent, Extent, Extent], element_bytes: int) -> Extent:
    rows, depth, columns = size
    moved = dim.mul(rows, depth)
    moved = dim.add(moved, dim.mul(depth, columns))
    return dim.mul(dim.add(moved, dim.mul(rows, columns)), element_bytes)


def _kernel(
    target: Target, micro: tiles.Micro, axes: int, size: tuple[Extent, Extent]
) -> step.Kernel:
    rows, columns = size
    runs = packing.runs(rows, dim.ceildiv(rows, _BLOCK_ROWS))
    # More than eight rows would lie in too few places of the first cache for usual strides.
    strips = [tiles.strips(target, width, runs, 8) for width in _widths(target, micro, columns)]
    symbol = f"matmul_{micro.tag()}_a{axes}_{packing.tag(strips)}"
    module = Module(target)
    _Kernel(module, symbol, micro, (axes, strips)).write()
    return step.Kernel(symbol, module.text())


def _widths(target: Target, micro: tiles.Micro, columns: Extent) -> list[tiles.Width]:
    """The widths of panels that can occur: all of them when the columns are not known."""
    main = tiles.widest(target)
    lanes = tiles.lanes_of(target, micro.element)
    if isinstance(columns, Dim):
        return [tiles.Width(main), *(tiles.Width(n, masked=True) for n in range(1, main + 1))]
    full, rest = divmod(columns, main * lanes)
    found = [tiles.Width(main)] if full else []
    if rest:
        found.append(tiles.Width(-(-rest // lanes), masked=True))
    return found


class _Kernel:
    """The kernel being written."""

    def __init__(
        self,
        module: Module,
        symbol: str,
        micro: tiles.Micro,
        shape: tuple[int, list[tiles.Strips]],
    ) -> None:
        axes, strips = shape
        self.module, self.micro = module, micro
        self.lanes = tiles.lanes_of(module.target, micro.element)
        self.main = tiles.widest(module.target)
        self.panels = packing.panels(module, micro, strips)
        self.pack = _packer(module, micro.element, self.main)
        self.f = module.kernel(symbol)
        self.axes = axes
        self.at = self._arguments()

    def _arguments(self) -> dict[str, Value]:
        f, args = self.f, self.f.params[0]
        names = ["a", "b", "c"]
        if self.micro.epilogue:
            names += [f"e{n}" for n in range(len(self.micro.epilogue.kinds))]
        numbers = "rows inner all_columns a_row a_step b_row b_step panels blocks groups".split()
        for n in range(self.axes):
            numbers += [f"extent{n}", f"a_stride{n}", f"b_stride{n}"]
        at = {name: f.argument(args, n, PTR) for n, name in enumerate(names)}
        at |= {name: f.argument(args, len(names) + n, I64) for n, name in enumerate(numbers)}
        at["c_row"] = at["all_columns"] * self.micro.size_bytes
        return at

    def write(self) -> None:
        f, at = self.f, self.at
        _, begin, end, _ = f.params
        with f.loop(begin, end) as unit:
            part = unit.index // at["groups"]
            group = unit.index - part * at["groups"]
            entry = part // at["blocks"]
            block = part - entry * at["blocks"]
            here = self._entry(entry)
            first_row = block * at["rows"] // at["blocks"]
            here["rows"] = (block + 1) * at["rows"] // at["blocks"] - first_row
            here["a"] = f.offset(here["a"], first_row * at["a_row"])
            here["down"] = here["down"] + first_row * at["c_row"]
            first = group * at["panels"] // at["groups"]
            last = (group + 1) * at["panels"] // at["groups"]
            with f.loop(first, last) as turn:
                self._panel(here, turn.index)
        f.return_()

    def _entry(self, entry: Value) -> dict[str, Value]:
        """The places of a batch entry in A, B and (as a distance) the output."""
        f, at = self.f, self.at
        here = dict(at)
        rest = entry
        for n in reversed(range(self.axes)):
            above = rest // at[f"extent{n}"]
            index = rest - above * at[f"extent{n}"]
            here["a"] = f.offset(here["a"], index * at[f"a_stride{n}"])
            here["b"] = f.offset(here["b"], index * at[f"b_stride{n}"])
            rest = above
        here["down"] = entry * at["rows"] * at["c_row"]
        return here

    def _panel(self, here: dict[str, Value], index: Value) -> None:
        f, micro, size = self.f, self.micro, self.micro.size_bytes
        wide = self.main * self.lanes
        columns = f.minimum(here["all_columns"] - index * wide, wide)
        across = index * (wide * size)
        now = dict(here)
        now["c"] = f.offset(f.offset(here["c"], here["down"]), across)
        kinds = micro.epilogue.kinds if micro.epilogue else ()
        for n, kind in enumerate(kinds):
            place = here[f"e{n}"]
            if kind == epilogues.FULL:
                place = f.offset(place, here["down"])
            now[f"e{n}"] = place if kind == epilogues.SCALAR else f.offset(place, across)
        place = f.offset(here["b"], index * wide * here["b_step"])
        now["b"], now["b_row"] = self._packed(here, place, columns)
        self._call(now, columns)

    def _packed(self, here: dict[str, Value], b: Value, columns: Value) -> tuple[Value, Value]:
        """The panel's place and row distance: in scratch when copying pays or must be."""
        f, size = self.f, self.micro.size_bytes
        scratch = f.params[3]
        must = (
            f.coerce(1, I64).equals(1)
            if not f.target.has_masked_ops
            else (here["rows"] >= _ROWS_THAT_PAY) | here["b_step"].differs(size)
        )
        with f.when(must):
            f.call(
                self.pack,
                [b, here["b_row"], here["b_step"], here["inner"], columns, scratch],
            )
        row = f.select(must, self.main * self.lanes * size, here["b_row"])
        return f.select(must, scratch, b), row

    def _call(self, now: dict[str, Value], columns: Value) -> None:
        f = self.f
        vectors = (columns + (self.lanes - 1)) // self.lanes
        is_full = columns.equals(self.main * self.lanes)
        for width, panel in self.panels.items():
            fits = vectors.equals(width.vectors)
            if width.vectors == self.main:
                fits = fits & (is_full ^ True) if width.masked else is_full
            with f.when(fits):
                if width.masked:
                    now["columns"] = columns - (width.vectors - 1) * self.lanes
                labels = [name for _, name in tiles.panel_parameters(self.micro, width)]
                f.call(panel, [now[label] for label in labels])


def _packer(module: Module, element: str, vectors: int) -> Function:
    """A function that copies a panel of at most ``vectors`` registers to contiguous memory."""
    params = [(PTR, "b"), (I64, "b_row"), (I64, "b_step"), (I64, "depth"), (I64, "columns"),
              (PTR, "to")]  # fmt: skip
    f = module.function("pack_panel", params)
    b_step = f.params[2]
    lanes = tiles.lanes_of(module.target, element)
    size = module.target.vector_bytes // lanes
    with f.when(b_step.equals(size)):
        _copy_rows(f, language.vector(lanes, element), vectors, size)
    with f.when(b_step.differs(size)):
        _copy_elements(f, element, vectors * lanes * size, size)
    f.return_()
    return f


def _copy_rows(f: Function, type_: str, vectors: int, size: int) -> None:
    b, b_row, _, depth, columns, to = f.params
    lanes = language.lanes_of(type_)
    masks = [f.lane_mask(columns - vector * lanes, lanes) for vector in range(vectors)]
    with f.loop(0, depth, carry=[b, to]) as turn:
        source, place = turn.carried
        for vector, mask in enumerate(masks):
            value = f.masked_load(type_, f.offset(source, vector * lanes * size), mask)
            f.store(value, place, vector * lanes * size)
        turn.update([f.offset(source, b_row), f.offset(place, vectors * lanes * size)])


def _copy_elements(f: Function, element: str, row_bytes: int, size: int) -> None:
    b, b_row, b_step, depth, columns, to = f.params
    with f.loop(0, depth) as outer:
        place = f.offset(to, outer.index * row_bytes)
        with f.loop(0, row_bytes // size) as column:
            f.store(f.const(0, element), place, column.index * size)
    with f.loop(0, columns) as column:
        source = f.offset(b, column.index * b_step)
        place = f.offset(to, column.index * size)
        with f.loop(0, depth) as inner:
            value = f.load(element, source, inner.index * b_row)
            f.store(value, place, inner.index * row_bytes)
