"""Follow a plan step by step at one binding, watching who owns which bytes.

Every read must find its value whole: written before, by nobody else since. A step may write over
what it reads only where it says that it may work in place.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from castiron.compiler import plan as plans
from castiron.compiler.codegen import families
from castiron.compiler.codegen.step import Read, Step, Write
from castiron.compiler.target import Target
from castiron.executable import placement
from castiron.graph.graph import Graph, Node
from castiron.tensor import dim as dims


@dataclasses.dataclass(frozen=True, slots=True)
class Span:
    """Bytes ``[start, stop)`` of a region: "weights", "arena" or a slot."""

    region: str
    start: int
    stop: int

    def meets(self, other: Span) -> bool:
        return (
            self.region == other.region
            and max(self.start, other.start) < min(self.stop, other.stop)
        )  # fmt: skip


class Follower:
    """The state of following: what content lies whole in memory, by the value it belongs to."""

    def __init__(
        self,
        graph: Graph,
        stage: tuple[Sequence[Node], plans.Plan, Target],
        symbols: Mapping[str, int],
    ) -> None:
        nodes, self._plan, target = stage
        self._graph = graph
        self._symbols = symbols
        self._views: dict[str, str] = {}
        self._sizes: dict[str, int] = {}
        for node in nodes:
            lowered = families.lower(node, graph, target)
            self._views.update((alias.value, alias.of) for alias in lowered.aliases)
            for buffer in lowered.buffers:
                self._sizes[buffer.value] = self._number(buffer.size_bytes)
        buffers = self._plan.buffers
        self._offsets, self.arena_bytes = placement.place(
            [self._number(size) for size, _, _ in buffers],
            [first for _, first, _ in buffers],
            [last for _, _, last in buffers],
        )
        self.whole: dict[str, Span] = {}

    def _number(self, extent: dims.Dim | int) -> int:
        return dims.evaluate(extent, self._symbols)

    def _content(self, value: str) -> str:
        while value in self._views:
            value = self._views[value]
        return value

    def span(self, value: str) -> Span:
        """Where all of the value lies."""
        place = self._plan.places[value]
        size = self._size(value)
        if place.kind == "buffer":
            start = self._offsets[place.reference]
            assert size <= self._number(self._plan.buffers[place.reference][0]), value
            return Span("arena", start, start + size)
        if place.kind == "weights":
            return Span("weights", place.reference, place.reference + size)
        return Span(f"slot {place.reference}", 0, size)

    def _size(self, value: str) -> int:
        if value in self._sizes:
            return self._sizes[value]
        known = value.removesuffix(":out") if value not in self._graph.types else value
        shape = dims.product(self._graph.shape(known))
        return self._number(shape) * self._graph.dtype(known).size_bytes

    def follow(self) -> None:
        """All steps, then that every output lies whole in a slot of its own."""
        for value in self._plan.reads:
            self.whole[self._content(value)] = Span(*self._slot(value))
        for step in self._plan.steps:
            self._examine(step)
            for operand in step.operands:
                if isinstance(operand, Read):
                    self._check_read(step, operand.value)
            for operand in step.operands:
                if isinstance(operand, Write):
                    self._write(operand.value)
        spans = [self._output(value) for value in self._plan.writes]
        assert len({span.region for span in spans}) == len(spans)

    def _slot(self, value: str) -> tuple[str, int, int]:
        return f"slot {self._plan.reads.index(value)}", 0, self._size(value)

    def _check_read(self, step: Step, value: str) -> None:
        content, span = self._content(value), self.span(value)
        if content in self._graph.constants:
            assert span.region == "weights", (step.name, value)
            return
        found = self.whole.get(content)
        assert found is not None, f"{step.name} reads {value}, which is not there any more"
        assert (found.region, found.start) == (span.region, span.start), (step.name, value)
        assert span.stop <= found.stop, f"{step.name} reads past the end of {value}"

    def _write(self, value: str) -> None:
        content, span = self._content(value), self.span(value)
        position = len(self._plan.reads)
        inputs = {f"slot {number}" for number in range(position)}
        assert span.region not in {"weights", *inputs}, f"{value} is written into what is read"
        for name, other in list(self.whole.items()):
            if name != content and other.meets(span):
                del self.whole[name]
        self.whole[content] = span

    def _examine(self, step: Step) -> None:
        """A write meets a read of the same step only where the step allows it."""
        allowed = set(step.in_place)
        for at, written in enumerate(step.operands):
            for other, read in enumerate(step.operands):
                if isinstance(written, Write) and isinstance(read, Read):
                    meets = self.span(written.value).meets(self.span(read.value))
                    assert not meets or (at, other) in allowed, (step.name, written, read)

    def _output(self, value: str) -> Span:
        copy = f"{value}:out"
        content = copy if copy in self._plan.places else self._content(value)
        span = self.whole[content]
        number = len(self._plan.reads) + self._plan.writes.index(value)
        assert span == Span(f"slot {number}", 0, self._size(value)), value
        return span
