"""Plans to tables: the dims of a stage as rows of small operations, its steps as ints.

``executable/program.py`` defines the tables; here they are filled. Every dim becomes a row once,
however often it is used.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from castiron.compiler.codegen.step import Packed, Step
from castiron.compiler.plan import Place, Plan, Weights
from castiron.compiler.stages import Stage
from castiron.executable import placement, program
from castiron.graph.graph import Check, Extent, Graph
from castiron.tensor import dim as dims
from castiron.tensor.dim import Dim

_ATOM_ROWS = {
    "floordiv": program.FLOORDIV,
    "min": program.MIN,
    "max": program.MAX,
    "wide": program.WIDE,
}
_OPERAND_KINDS = {
    "weights": program.IN_WEIGHTS,
    "buffer": program.IN_BUFFER,
    "slot": program.IN_SLOT,
}


class DimsTable:
    """Rows (operation, a, b) that compute dims from symbols; equal rows exist once."""

    def __init__(self, symbols: Mapping[str, int]) -> None:
        self._symbols = symbols
        self._rows: dict[tuple[int, int, int], int] = {}
        self._known: dict[Extent, int] = {}
        self.used: list[str] = []

    def row(self, value: Extent) -> int:
        """The index of the row that computes this dim."""
        if value not in self._known:
            self._known[value] = self._expand(value)
        return self._known[value]

    def flat(self) -> list[int]:
        """All rows, one behind the other."""
        return [item for row in self._rows for item in row]

    def symbol_ids(self) -> list[int]:
        """The program's symbol index for each symbol used here, in the order rows count them."""
        return [self._symbols[name] for name in self.used]

    def use(self, name: str) -> None:
        """Count a symbol as used, in the order of these calls."""
        if name not in self.used:
            self.used.append(name)

    def _add(self, operation: int, a: int, b: int) -> int:
        return self._rows.setdefault((operation, a, b), len(self._rows))

    def _expand(self, value: Extent) -> int:
        if not isinstance(value, Dim):
            return self._add(program.CONST, int(value), 0)
        total = -1
        for atoms, coefficient in value.terms:
            term = self._term(atoms, coefficient)
            total = term if total < 0 else self._add(program.ADD, total, term)
        return total

    def _term(self, atoms: tuple[dims.Atom, ...], coefficient: int) -> int:
        result = -1
        if coefficient != 1 or not atoms:
            result = self._add(program.CONST, coefficient, 0)
        for atom in atoms:
            factor = self._atom(atom)
            result = factor if result < 0 else self._add(program.MUL, result, factor)
        return result

    def _atom(self, atom: dims.Atom) -> int:
        if atom[0] == "sym":
            self.use(atom[1])
            return self._add(program.SYMBOL, self.used.index(atom[1]), 0)
        return self._add(_ATOM_ROWS[atom[0]], self.row(atom[1]), self.row(atom[2]))


@dataclasses.dataclass(frozen=True, slots=True)
class Tables:
    """Where each symbol, slot and kernel stands in the program's lists."""

    symbols: dict[str, int]
    slots: dict[str, int]
    kernels: dict[str, int]


def encode_slots(graph: Graph, cut: Sequence[Stage]) -> program.Program:
    """A program with symbols, slots, inputs, outputs and metadata, and no stages yet."""
    written = program.Program()
    edges = [*graph.inputs, *graph.outputs]
    edges += [value for stage in cut for value in (*stage.reads, *stage.writes)]
    names = list(dict.fromkeys(edges))
    shapes = {name: graph.types[name].shape for name in names}
    extents = [extent for shape in shapes.values() if shape is not None for extent in shape]
    found = set().union(*(dims.symbols_of(extent) for extent in extents)) if extents else set()
    written.symbols = sorted(found | _step_symbols(graph))
    table = DimsTable({name: position for position, name in enumerate(written.symbols)})
    for name in written.symbols:
        table.use(name)
    written.slots = [_slot(graph, name, table) for name in names]
    written.dims = table.flat()
    written.inputs = [names.index(name) for name in graph.inputs]
    written.outputs = [names.index(name) for name in graph.outputs]
    written.metadata = dict(graph.metadata)
    return written


def _step_symbols(graph: Graph) -> set[str]:
    """Symbols of any shape in the graph: steps inside stages may need them."""
    found: set[str] = set()
    for kind in graph.types.values():
        for extent in (*(kind.shape or ()), *(kind.contents or ())):
            found |= dims.symbols_of(extent)
    return found


def _slot(graph: Graph, name: str, table: DimsTable) -> program.Slot:
    kind = graph.types[name]
    dtype = kind.dtype.name if kind.dtype else ""
    if kind.shape is None:
        return program.Slot(name, dtype, None, ())
    labels = [dims.text(extent) for extent in kind.shape]
    return program.Slot(name, dtype, [table.row(extent) for extent in kind.shape], labels)


def tables_of(written: program.Program) -> Tables:
    """The indices of everything that stages refer to."""
    return Tables(
        {name: position for position, name in enumerate(written.symbols)},
        {slot.name: position for position, slot in enumerate(written.slots)},
        {name: position for position, name in enumerate(written.kernels)},
    )


def encode_interpreted(
    stage: Stage, span: tuple[int, int], tables: Tables
) -> program.InterpretedStage:
    """The interpreted stage whose model lies at ``span`` (offset, length) of the source."""
    ops = dict.fromkeys(str(node.attr("op", node.op)) for node in stage.nodes)
    encoded = program.InterpretedStage(", ".join(ops), span)
    encoded.reads = [tables.slots[value] for value in stage.reads]
    encoded.writes = [tables.slots[value] for value in stage.writes]
    return encoded


def encode_stage(plan: Plan, graph: Graph, tables: Tables, weights: Weights) -> program.NativeStage:
    """The native stage as tables."""
    slots, kernels = tables.slots, tables.kernels
    table = DimsTable(tables.symbols)
    stage = program.NativeStage()
    stage.reads = [slots[value] for value in plan.reads]
    stage.writes = [slots[value] for value in plan.writes]
    stage.write_dims = [[table.row(e) for e in graph.shape(value)] for value in plan.writes]
    stage.buffers = [
        item for size, first, last in plan.buffers for item in (table.row(size), first, last)
    ]
    stage.num_steps = len(plan.steps)
    stage.steps = [
        item
        for step in plan.steps
        for item in _step_words(step, plan.places, (table, kernels), weights)
    ]
    scratch = {table.row(s.scratch_bytes) for s in plan.steps if s.scratch_bytes != 0}
    stage.scratch = sorted(scratch)
    checks = _relevant_checks(graph, _known_symbols(graph, plan.reads) | set(table.used))
    stage.checks = [item for c in checks for item in (table.row(c.left), table.row(c.right))]
    stage.reasons = [check.reason for check in checks]
    stage.dims, stage.symbols = table.flat(), table.symbol_ids()
    if not stage.symbols:
        stage.placed = _placed(stage)
    return stage


def _step_words(
    step: Step,
    places: dict[str, Place],
    tables: tuple[DimsTable, dict[str, int]],
    weights: Weights,
) -> list[int]:
    table, kernels = tables
    words = [
        kernels[step.kernel.symbol],
        table.row(step.units),
        table.row(step.grain),
        len(step.operands),
        len(step.params),
    ]
    for operand in step.operands:
        if isinstance(operand, Packed):
            words += [program.IN_WEIGHTS, weights.add(operand.array), table.row(0)]
            continue
        place = places[operand.value]
        offset = table.row(operand.offset_bytes)
        words += [_OPERAND_KINDS[place.kind], place.reference, offset]
    return words + [table.row(param) for param in step.params]


def _placed(stage: program.NativeStage) -> list[int]:
    values = program.evaluate(stage.dims, ())
    sizes = [values[row] for row in stage.buffers[0::3]]
    offsets, total = placement.place(sizes, stage.buffers[1::3], stage.buffers[2::3])
    return [*offsets, total]


def _known_symbols(graph: Graph, reads: Sequence[str]) -> set[str]:
    """Symbols that have a value when a stage with these reads begins."""
    shapes = [graph.types[value].shape or () for value in (*graph.inputs, *reads)]
    return {name for shape in shapes for extent in shape for name in dims.symbols_of(extent)}


def _relevant_checks(graph: Graph, symbols: set[str]) -> tuple[Check, ...]:
    """The graph's checks that these symbols decide, without those that always hold."""
    kept: dict[tuple[Extent, Extent], Check] = {}
    for check in graph.checks:
        needed = dims.symbols_of(check.left) | dims.symbols_of(check.right)
        if check.left != check.right and needed <= symbols:
            kept.setdefault((check.left, check.right), check)  # the first reason is the source's
    return tuple(kept.values())
