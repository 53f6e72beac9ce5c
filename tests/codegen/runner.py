"""Runs what a lowering gives, without the rest of the pipeline.

`run_lowered` compiles the kernels of one lowered node, gives every operand fenced memory of its
own, calls the units in random cuts and returns the outputs. It does so twice, with the fences on
either side and different bytes where nothing was written yet: the outputs must be the same.
Kernels of a target that this machine lacks are not run.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import llvmlite.binding as llvm
import numpy as np

from castiron.compiler import target as targets
from castiron.compiler.codegen import assemble, step
from castiron.graph import graph as graphs
from castiron.graph.graph import Graph, Node, TensorType
from castiron.tensor import dim
from castiron.tensor import dtype as dtypes
from tests import fenced

KernelCall = tuple[
    Callable[[int, int, int, int], None], ctypes.Array[ctypes.c_int64], fenced.Memory, int
]
_ALIGN_BYTES = 64  # of scratch and packed weights, as plans give it
_KERNEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)
_ENGINES: list[object] = []


@functools.cache
def address(text: str, target: targets.Target, symbol: str) -> int:
    """The address of a compiled kernel in this process."""
    content = assemble.compile_kernel(text, target)
    machine = llvm.Target.from_default_triple().create_target_machine(reloc="pic")
    empty = llvm.parse_assembly("")
    engine = llvm.create_mcjit_compiler(empty, machine)
    engine.add_object_file(llvm.ObjectFileRef.from_data(content))
    engine.finalize_object()
    _ENGINES.append(engine)
    return int(engine.get_function_address(symbol))


@dataclass
class Runner:
    """A lowered node with memory: fill `values`, call `run`."""

    lowered: step.Lowered
    graph: Graph
    target: targets.Target
    symbols: Mapping[str, int] = field(default_factory=dict)
    side: fenced.Side = "behind"
    memory: dict[str, fenced.Memory] = field(default_factory=dict)
    packed: dict[int, fenced.Memory] = field(default_factory=dict)

    def size_of(self, value: str) -> int:
        """Bytes of a value of the graph, or of a buffer of the lowering."""
        for buffer in self.lowered.buffers:
            if buffer.value == value:
                return dim.evaluate(buffer.size_bytes, self.symbols)
        count = dim.evaluate(dim.product(self.graph.shape(value)), self.symbols)
        return count * self.graph.dtype(value).size_bytes

    def place(self, value: str) -> fenced.Memory:
        """The memory of a value, made when first asked for."""
        for alias in self.lowered.aliases:
            if alias.value == value:
                return self.place(alias.of)
        if value not in self.memory:
            self.memory[value] = fenced.Memory(self.size_of(value), self.side)
        return self.memory[value]

    def give(self, value: str, array: np.ndarray) -> None:
        """Set an input."""
        raw = np.ascontiguousarray(array).reshape(-1).view("uint8")
        self.place(value).view()[:] = raw

    def take(self, value: str) -> np.ndarray:
        """A copy of an output."""
        shape = [dim.evaluate(extent, self.symbols) for extent in self.graph.shape(value)]
        name = self.graph.dtype(value).name
        return self.place(value).view(name).reshape(shape).copy()

    def arguments(self, one: step.Step) -> tuple[ctypes.Array[ctypes.c_int64], fenced.Memory]:
        """The argument block and scratch of one step."""
        words = []
        for operand in one.operands:
            if isinstance(operand, step.Packed):
                words.append(self._packed_address(operand))
            else:
                start = dim.evaluate(operand.offset_bytes, self.symbols)
                words.append(self.place(operand.value).address + start)
        words += [dim.evaluate(param, self.symbols) for param in one.params]
        assert len(words) <= 96
        size_bytes = dim.evaluate(one.scratch_bytes, self.symbols)
        scratch = fenced.Memory(size_bytes, self.side, align=_ALIGN_BYTES)
        return (ctypes.c_int64 * max(len(words), 1))(*words), scratch

    def _packed_address(self, operand: step.Packed) -> int:
        if id(operand) not in self.packed:
            raw = np.ascontiguousarray(operand.array).reshape(-1).view("uint8")
            memory = fenced.Memory(raw.size, self.side, align=_ALIGN_BYTES)
            memory.view()[:] = raw
            self.packed[id(operand)] = memory
        return self.packed[id(operand)].address

    def calls(self) -> list[KernelCall]:
        """(function, argument block, scratch, units) of every step."""
        found: list[KernelCall] = []
        for one in self.lowered.steps:
            place = address(one.kernel.text, self.target, one.kernel.symbol)
            words, scratch = self.arguments(one)
            units = dim.evaluate(one.units, self.symbols)
            found.append((_KERNEL(place), words, scratch, units))
        return found

    def run(self, calls: Sequence[KernelCall], seed: int = 0) -> None:
        """Every step once, its units cut at random and run in a random order."""
        rng = random.Random(seed)
        for one, (function, words, scratch, units) in zip(self.lowered.steps, calls, strict=True):
            if one.grain == 0:
                function(ctypes.addressof(words), 0, units, scratch.address)
                continue
            cuts = sorted({0, units, *(rng.randint(0, units) for _ in range(min(units, 3)))})
            ranges = list(itertools.pairwise(cuts))
            rng.shuffle(ranges)
            for begin, end in ranges:
                function(ctypes.addressof(words), begin, end, scratch.address)
            scratch.check("scratch")
        for name, memory in self.memory.items():
            memory.check(name)


def can_run(target: targets.Target) -> bool:
    """Whether this machine has what the target needs."""
    host = targets.host()
    order = [item.name for item in targets.ALL]
    return target.architecture == host.architecture and order.index(host.name) <= order.index(
        target.name
    )


def graph_of(
    node: Node, types: Mapping[str, TensorType], constants: Mapping[str, np.ndarray]
) -> Graph:
    """A graph of one node; inputs are the typed values it reads that are not constant."""
    every = {**{name: graphs.constant_type(array) for name, array in constants.items()}, **types}
    inputs = tuple(dict.fromkeys(v for v in node.inputs if v and v not in constants))
    outputs = tuple(value for value in node.outputs if value)
    return Graph("test", (node,), inputs, outputs, every, constants)


def tensor(shape: Sequence[int | dim.Dim], dtype: str = "float32") -> TensorType:
    """The type of a float32 value, or of another dtype."""
    return TensorType(dtypes.named(dtype), tuple(shape))


def run_lowered(
    lowered: step.Lowered,
    graph: Graph,
    target: targets.Target,
    feeds: Mapping[str, np.ndarray],
    symbols: Mapping[str, int] | None = None,
) -> list[np.ndarray]:
    """The node's outputs for these inputs; constants that are read unpacked are given too."""
    sides = [Runner(lowered, graph, target, symbols or {}, side) for side in fenced.SIDES]
    for runner in sides:
        for name, array in {**graph.constants, **feeds}.items():
            runner.give(name, array)
    # Compiled here, where kernels are kept for the next run.
    calls = [runner.calls() for runner in sides]

    def run_all() -> list[list[np.ndarray]]:
        for runner, each in zip(sides, calls, strict=True):
            for seed in range(2):
                runner.run(each, seed)
        return [[runner.take(value) for value in graph.outputs] for runner in sides]

    what = ", ".join(f"{node.op} {dict(node.attrs)}" for node in graph.nodes)
    first, second = fenced.survives(run_all, f"{what} on {target.name}")
    for value, one, other in zip(graph.outputs, first, second, strict=True):
        assert one.tobytes() == other.tobytes(), f"{what}: {value} shows what was there before"
    return first
