"""The plan of one native stage: which memory every value lives in, and for how long.

Views share the memory of what they view; a step that may work in place takes over an operand
that nobody reads later; a stage's outputs are written where they leave. What remains are arena
buffers with a size and a lifetime, placed by ``executable.placement`` per binding of the dims.
Constants gather in ``Weights``. ``encode.py`` turns the plan into the executable's tables.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Sequence

import numpy as np

from castiron.compiler.codegen import families
from castiron.compiler.codegen.step import Lowered, Packed, Read, Step, Write
from castiron.compiler.target import Target
from castiron.graph.graph import Extent, Graph, Node
from castiron.tensor import dim as dims

WEIGHT_ALIGN = 64


class Weights:
    """All constant bytes of an executable, equal contents stored once."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._offsets: dict[tuple[str, int], int] = {}
        self.size_bytes = 0

    def add(self, array: np.ndarray) -> int:
        """Byte offset of the array's row-major bytes, 64-byte aligned."""
        data = np.ascontiguousarray(array).tobytes()
        key = (hashlib.sha256(data).hexdigest(), len(data))
        if key not in self._offsets:
            self._offsets[key] = self.size_bytes
            padding = -len(data) % WEIGHT_ALIGN
            self._parts.append(data + b"\0" * padding)
            self.size_bytes += len(data) + padding
        return self._offsets[key]

    def tobytes(self) -> bytes:
        """Everything added so far."""
        return b"".join(self._parts)


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """Where a value's memory comes from: ``"slot"``, ``"buffer"`` or ``"weights"``.

    ``reference`` is the slot's position among the stage's reads then writes, the buffer's index,
    or the byte offset among the weights.
    """

    kind: str
    reference: int


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """Steps in order, the place of each value they name, and the buffers' sizes and lifetimes."""

    steps: tuple[Step, ...]
    places: dict[str, Place]
    buffers: tuple[tuple[Extent, int, int], ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]


def plan_stage(
    graph: Graph,
    nodes: Sequence[Node],
    edges: tuple[Sequence[str], Sequence[str]],
    target: Target,
    weights: Weights,
) -> Plan:
    """Lower the nodes and give every value its memory.

    ``edges`` are the values that enter and leave the stage.
    """
    reads, writes = edges
    lowered = [families.lower(node, graph, target) for node in nodes]
    return _Planner(graph, reads, weights).plan(lowered, writes, target)


class _Planner:
    """The state of planning one stage: storage roots and sizes."""

    def __init__(self, graph: Graph, reads: Sequence[str], weights: Weights) -> None:
        self._graph = graph
        self._reads = tuple(reads)
        self._weights = weights
        self._parent: dict[str, str] = {}
        self._sizes: dict[str, Extent] = {}

    def plan(self, lowered: list[Lowered], writes: Sequence[str], target: Target) -> Plan:
        for part in lowered:
            self._parent.update((alias.value, alias.of) for alias in part.aliases)
            self._sizes.update((buffer.value, buffer.size_bytes) for buffer in part.buffers)
        steps = [step for part in lowered for step in part.steps]
        outputs, copies = self._own_outputs(steps, writes, target)
        steps += copies
        self._work_in_place(steps, set(outputs))
        places = self._slots_and_weights(steps, outputs)
        buffers = self._buffers(steps, places)
        return Plan(tuple(steps), places, tuple(buffers), self._reads, tuple(writes))

    def root(self, value: str) -> str:
        while value in self._parent:
            value = self._parent[value]
        return value

    def _size_bytes(self, value: str) -> Extent:
        if value in self._sizes:
            return self._sizes[value]
        shape = self._graph.shape(value)
        return dims.mul(dims.product(shape), self._graph.dtype(value).size_bytes)

    def _own_outputs(
        self, steps: list[Step], writes: Sequence[str], target: Target
    ) -> tuple[list[str], list[Step]]:
        """The root that each output is written through; outputs that share memory get a copy."""
        made = {self.root(op.value) for s in steps for op in s.operands if isinstance(op, Write)}
        outputs: list[str] = []
        copies: list[Step] = []
        for value in writes:
            root = self.root(value)
            if root not in made or root in outputs or root in self._reads:
                root = f"{value}:out"
                self._sizes[root] = self._size_bytes(value)
                copies += _copy_steps(self._graph, value, root, target)
            outputs.append(root)
        return outputs, copies

    def _work_in_place(self, steps: list[Step], outputs: set[str]) -> None:
        last, first = self._last_reads(steps), self._first_writes(steps)
        for position, step in enumerate(steps):
            for written, read in step.in_place:
                new = self.root(step.operands[written].value)  # type: ignore[union-attr]
                source = step.operands[read]
                if not isinstance(source, Read) or new in outputs or first[new] != position:
                    continue
                old = self.root(source.value)
                if self._may_take(step, (new, old), outputs) and last[old] == position:
                    self._parent[new] = old
                    last[old] = last.get(new, position)
                    break

    def _may_take(self, step: Step, pair: tuple[str, str], outputs: set[str]) -> bool:
        new, old = pair
        if old == new or old in outputs or old in self._reads or old in self._graph.constants:
            return False
        sources = {index for _, index in step.in_place}
        for index, operand in enumerate(step.operands):
            if isinstance(operand, Packed) or self.root(operand.value) != old:
                continue
            if isinstance(operand, Write) or index not in sources or operand.offset_bytes != 0:
                return False
        return self._size_bytes(old) == self._size_bytes(new)

    def _last_reads(self, steps: Iterable[Step]) -> dict[str, int]:
        last: dict[str, int] = {}
        for position, step in enumerate(steps):
            for operand in step.operands:
                if not isinstance(operand, Packed):
                    last[self.root(operand.value)] = position
        return last

    def _first_writes(self, steps: Iterable[Step]) -> dict[str, int]:
        first: dict[str, int] = {}
        for position, step in enumerate(steps):
            for operand in step.operands:
                if isinstance(operand, Write):
                    first.setdefault(self.root(operand.value), position)
        return first

    def _slots_and_weights(self, steps: Iterable[Step], outputs: list[str]) -> dict[str, Place]:
        places = {value: Place("slot", position) for position, value in enumerate(self._reads)}
        for position, root in enumerate(outputs, len(self._reads)):
            places[root] = Place("slot", position)
        for step in steps:
            for operand in step.operands:
                if isinstance(operand, Packed):
                    continue
                root = self.root(operand.value)
                if root in self._graph.constants and root not in places:
                    offset = self._weights.add(self._graph.constants[root])
                    places[root] = Place("weights", offset)
        return places

    def _buffers(
        self, steps: list[Step], places: dict[str, Place]
    ) -> list[tuple[Extent, int, int]]:
        """Give every remaining root a buffer, then every named value the place of its root."""
        last, first = self._last_reads(steps), self._first_writes(steps)
        buffers: list[tuple[Extent, int, int]] = []
        for root, begin in first.items():
            if root not in places:
                places[root] = Place("buffer", len(buffers))
                buffers.append((self._size_bytes(root), begin, last[root]))
        for step in steps:
            for operand in step.operands:
                if not isinstance(operand, Packed):
                    places[operand.value] = places[self.root(operand.value)]
        return buffers


def _copy_steps(graph: Graph, value: str, copy: str, target: Target) -> list[Step]:
    """Steps that copy a value into memory of its own."""
    kind = graph.types[value]
    types = {**graph.types, copy: kind}
    node = Node("Identity", (value,), (copy,), name=f"copy of {value}")
    return list(families.lower(node, graph.replace(types=types), target).steps)
