"""Runs what a lowering gives, without the rest of the pipeline.

`run_node` lowers one node for a target, compiles the kernels, gives every operand memory of its
own between guard bytes, calls the units in random cuts and returns the outputs. Also counts time
for the benchmarks. Kernels of a target that this machine lacks are not run.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import random
import time
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

GUARD = 256
Call = Callable[[int, int, int, int], None]
_PATTERN = 0xA5
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


class Memory:
    """Bytes between two guards, 64-byte aligned plus `shift`."""

    def __init__(self, size_bytes: int, shift: int = 0) -> None:
        self.size_bytes = size_bytes
        self._whole = np.full(size_bytes + 2 * GUARD + 128, _PATTERN, np.uint8)
        start = self._whole.ctypes.data + GUARD
        self._first = GUARD + (-start) % 64 + shift
        self.address = self._whole.ctypes.data + self._first

    def view(self, dtype: str = "uint8") -> np.ndarray:
        """The bytes between the guards."""
        return self._whole[self._first : self._first + self.size_bytes].view(dtype)

    def check(self, name: str) -> None:
        """Fail if somebody wrote outside."""
        before = self._whole[: self._first]
        after = self._whole[self._first + self.size_bytes :]
        assert (before == _PATTERN).all() and (after == _PATTERN).all(), f"{name}: wrote outside"


@dataclass
class Runner:
    """A lowered node with memory: fill `values`, call `run`."""

    lowered: step.Lowered
    graph: Graph
    target: targets.Target
    symbols: Mapping[str, int] = field(default_factory=dict)
    shift: int = 8  # bytes that values lie off their alignment; plans give 0
    memory: dict[str, Memory] = field(default_factory=dict)
    packed: dict[int, Memory] = field(default_factory=dict)

    def size_of(self, value: str) -> int:
        """Bytes of a value of the graph, or of a buffer of the lowering."""
        for buffer in self.lowered.buffers:
            if buffer.value == value:
                return dim.evaluate(buffer.size_bytes, self.symbols)
        count = dim.evaluate(dim.product(self.graph.shape(value)), self.symbols)
        return count * self.graph.dtype(value).size_bytes

    def place(self, value: str) -> Memory:
        """The memory of a value, made when first asked for."""
        for alias in self.lowered.aliases:
            if alias.value == value:
                return self.place(alias.of)
        if value not in self.memory:
            self.memory[value] = Memory(self.size_of(value), self.shift)
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

    def arguments(self, one: step.Step) -> tuple[ctypes.Array[ctypes.c_int64], Memory]:
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
        scratch = Memory(dim.evaluate(one.scratch_bytes, self.symbols))
        return (ctypes.c_int64 * max(len(words), 1))(*words), scratch

    def _packed_address(self, operand: step.Packed) -> int:
        if id(operand) not in self.packed:
            raw = np.ascontiguousarray(operand.array).reshape(-1).view("uint8")
            memory = Memory(raw.size)
            memory.view()[:] = raw
            self.packed[id(operand)] = memory
        return self.packed[id(operand)].address

    def calls(self) -> list[tuple[Call, ctypes.Array[ctypes.c_int64], Memory, int]]:
        """(function, argument block, scratch, units) of every step."""
        found: list[tuple[Call, ctypes.Array[ctypes.c_int64], Memory, int]] = []
        prototype = ctypes.CFUNCTYPE(
            None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p
        )
        for one in self.lowered.steps:
            place = address(one.kernel.text, self.target, one.kernel.symbol)
            words, scratch = self.arguments(one)
            units = dim.evaluate(one.units, self.symbols)
            found.append((prototype(place), words, scratch, units))
        return found

    def run(self, seed: int = 0) -> None:
        """Every step once, its units cut at random and run in a random order."""
        rng = random.Random(seed)
        for one, (function, words, scratch, units) in zip(
            self.lowered.steps, self.calls(), strict=True
        ):
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

    def seconds(self, times: int = 20) -> float:
        """The least process CPU time of one run of all steps, each in one call."""
        calls = self.calls()
        best = float("inf")
        for _ in range(times):
            start = time.process_time_ns()
            for function, words, scratch, units in calls:
                function(ctypes.addressof(words), 0, units, scratch.address)
            best = min(best, (time.process_time_ns() - start) * 1e-9)
        return best


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
    runner = Runner(lowered, graph, target, symbols or {})
    for name, array in {**graph.constants, **feeds}.items():
        runner.give(name, array)
    for seed in range(2):
        runner.run(seed)
    return [runner.take(value) for value in graph.outputs]
