"""Slice, Concat, Split, Expand, Tile, Identity and Transpose move exactly what numpy moves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from castiron.compiler import target as targets
from castiron.compiler.codegen import assemble, families
from castiron.graph.graph import Graph, Node
from castiron.tensor import dim
from castiron.tensor.dim import Dim
from tests.codegen import runner

RUNNABLE = [item for item in targets.ALL if runner.can_run(item)]
Shape = Sequence[int | Dim]
N, H = dim.symbol("n"), dim.symbol("h")


@dataclass
class Case:
    """One node: shapes of inputs and outputs, attributes, symbols."""

    op: str
    inputs: Sequence[Shape]
    outputs: Sequence[Shape]
    attrs: Mapping[str, Any]
    symbols: Mapping[str, int] = field(default_factory=dict)

    def graph(self, dtype: str) -> Graph:
        names = tuple(f"x{n}" for n in range(len(self.inputs)))
        made = tuple(f"y{n}" for n in range(len(self.outputs)))
        pairs = [*zip(names, self.inputs, strict=True), *zip(made, self.outputs, strict=True)]
        types = {name: runner.tensor(shape, dtype) for name, shape in pairs}
        return runner.graph_of(Node(self.op, names, made, self.attrs), types, {})

    def arrays(self, dtype: str) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(3)
        found = {}
        for n, shape in enumerate(self.inputs):
            extents = [dim.evaluate(extent, self.symbols) for extent in shape]
            found[f"x{n}"] = rng.integers(0, 2 if dtype == "bool" else 100, extents).astype(dtype)
        return found

    def expected(self, arrays: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        parts = list(arrays.values())
        x, attrs = parts[0], self.attrs
        shapes = [[dim.evaluate(e, self.symbols) for e in shape] for shape in self.outputs]
        if self.op == "Transpose":
            return [x.transpose(attrs["perm"])]
        if self.op == "Concat":
            return [np.concatenate(parts, attrs["axis"])]
        if self.op == "Split":
            at = np.cumsum([dim.evaluate(e, self.symbols) for e in attrs["split"]])[:-1]
            return list(np.split(x, at, attrs["axis"]))
        if self.op == "Tile":
            return [np.tile(x, [dim.evaluate(e, self.symbols) for e in attrs["repeats"]])]
        if self.op == "Slice":
            for axis, start, by in zip(attrs["axes"], attrs["starts"], attrs["steps"], strict=True):
                first = dim.evaluate(start, self.symbols)
                x = np.take(x, first + by * np.arange(shapes[0][axis]), axis)
            return [x]
        return [np.broadcast_to(x, shapes[0])]


CASES = [
    Case("Identity", [(3, 5, 7)], [(3, 5, 7)], {}),
    Case("Identity", [()], [()], {}),
    Case("Identity", [(40000,)], [(40000,)], {}),
    Case("Identity", [(N, 0)], [(N, 0)], {}, {"n": 2}),
    Case("Identity", [(N, H)], [(N, H)], {}, {"n": 0, "h": 7}),
    Case("Expand", [(3, 1)], [(2, 3, 5)], {"shape": (2, 3, 5)}),
    Case("Expand", [()], [(7, 9)], {"shape": (7, 9)}),
    Case("Expand", [(N, 1, H)], [(N, 4, H)], {"shape": (N, 4, H)}, {"n": 2, "h": 33}),
    Case("Expand", [(N, 3)], [(H, 3)], {"shape": (H, 3)}, {"n": 1, "h": 5}),
    Case("Expand", [(N, 3)], [(H, 3)], {"shape": (H, 3)}, {"n": 5, "h": 5}),
    Case("Tile", [(2, 3)], [(6, 6)], {"repeats": (3, 2)}),
    Case("Tile", [(2, 1, 5)], [(2, 4, 5)], {"repeats": (1, 4, 1)}),
    Case("Tile", [(N, 3)], [(2 * N, 3 * H)], {"repeats": (2, H)}, {"n": 3, "h": 2}),
    Case("Concat", [(2, 3, 4), (2, 5, 4)], [(2, 8, 4)], {"axis": 1}),
    Case("Concat", [(2, 3, 4), (2, 3, 1), (2, 3, 0)], [(2, 3, 5)], {"axis": -1}),
    Case("Concat", [(N, 3), (H, 3)], [(N + H, 3)], {"axis": 0}, {"n": 4, "h": 9000}),
    Case("Concat", [(1, N, H, 16), (1, N, H, 24)], [(1, N, H, 40)], {"axis": 3},
         {"n": 4, "h": 9}),
    Case("Concat", [(3, 5, 7), (3, 5, 1), (3, 5, 160), (3, 5, 0)], [(3, 5, 168)], {"axis": 2}),
    Case("Split", [(3, 5, 168)], [(3, 5, 7), (3, 5, 1), (3, 5, 160)],
         {"axis": 2, "split": (7, 1, 160)}),
    Case("Split", [(2, 9, 4)], [(2, 2, 4), (2, 7, 4)], {"axis": 1, "split": (2, 7)}),
    Case("Split", [(N, 6)], [(N, 3), (N, 3)], {"axis": -1, "split": (3, 3)}, {"n": 7}),
    Case("Slice", [(4, 9)], [(4, 3)],
         {"axes": (1,), "starts": (2,), "steps": (3,), "sizes": (3,)}),
    Case("Slice", [(4, 9)], [(2, 5)],
         {"axes": (0, 1), "starts": (3, 8), "steps": (-2, -2), "sizes": (2, 5)}),
    Case("Slice", [(N, H, 8)], [(N, H - 3, 8)],
         {"axes": (1,), "starts": (3,), "steps": (1,), "sizes": (H - 3,)}, {"n": 2, "h": 8}),
    Case("Slice", [(2, 3, 20, 30)], [(2, 3, 10, 15)],
         {"axes": (2, 3), "starts": (1, 0), "steps": (2, 2), "sizes": (10, 15)}),
    Case("Transpose", [(2, 3, 50, 7)], [(2, 50, 7, 3)], {"perm": (0, 2, 3, 1)}),
    Case("Transpose", [(2, 50, 7, 3)], [(2, 3, 50, 7)], {"perm": (0, 3, 1, 2)}),
    Case("Transpose", [(N, 40, H, 20)], [(N, H, 20, 40)], {"perm": (0, 2, 3, 1)},
         {"n": 2, "h": 9}),
    Case("Transpose", [(N, H, 20, 40)], [(N, 40, H, 20)], {"perm": (0, 3, 1, 2)},
         {"n": 2, "h": 33}),
    Case("Transpose", [(64, 48)], [(48, 64)], {"perm": (1, 0)}),
    Case("Transpose", [(5, 300)], [(300, 5)], {"perm": (1, 0)}),
    Case("Transpose", [(2, 9000)], [(9000, 2)], {"perm": (1, 0)}),
    Case("Transpose", [(9000, 4)], [(4, 9000)], {"perm": (1, 0)}),
    Case("Transpose", [(5, 6, 7, 8)], [(8, 7, 6, 5)], {"perm": (3, 2, 1, 0)}),
    Case("Transpose", [(2, 12, 8, 16)], [(2, 8, 12, 16)], {"perm": (0, 2, 1, 3)}),
    Case("Transpose", [(3, 4, 2, 5)], [(4, 2, 3, 5)], {"perm": (1, 2, 0, 3)}),
    Case("Transpose", [(N, H, 1)], [(H, 1, N)], {"perm": (1, 2, 0)}, {"n": 0, "h": 3}),
    Case("Transpose", [(N, H)], [(H, N)], {"perm": (1, 0)}, {"n": 1, "h": 1}),
]  # fmt: skip


@pytest.mark.parametrize("target", RUNNABLE, ids=lambda item: item.name)
@pytest.mark.parametrize("dtype", ["float32", "int64", "uint8", "float16"])
def test_elements_arrive_where_numpy_puts_them(dtype: str, target: targets.Target) -> None:
    for case in CASES:
        graph, arrays = case.graph(dtype), case.arrays(dtype)
        node = graph.nodes[0]
        assert families.gap(node, graph) is None
        lowered = families.lower(node, graph, target)
        found = runner.run_lowered(lowered, graph, target, arrays, case.symbols)
        for result, expected in zip(found, case.expected(arrays), strict=True):
            assert np.array_equal(result, expected), case


def test_aarch64_code_is_emitted() -> None:
    target = targets.named("aarch64")
    texts = {}
    for case in CASES:
        graph = case.graph("float32")
        for one in families.lower(graph.nodes[0], graph, target).steps:
            texts[one.kernel.symbol] = one.kernel.text
    for text in texts.values():
        assert assemble.compile_kernel(text, target)


def test_equal_symbols_have_equal_texts() -> None:
    texts: dict[str, str] = {}
    for dtype in ("float32", "int64", "uint8", "float16"):
        for case in CASES:
            graph = case.graph(dtype)
            for one in families.lower(graph.nodes[0], graph, targets.host()).steps:
                known = texts.setdefault(one.kernel.symbol, one.kernel.text)
                assert known == one.kernel.text


def test_a_reshape_is_a_view() -> None:
    graph = Case("Reshape", [(2, 6)], [(3, 4)], {"shape": (3, 4)}).graph("float32")
    lowered = families.lower(graph.nodes[0], graph, targets.host())
    assert not lowered.steps
    assert lowered.aliases[0].of == "x0"
