"""Pools against a direct float64 computation, window by window."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from castiron.compiler import target as targets
from castiron.compiler.codegen import assemble, families
from castiron.graph.graph import Graph, Node
from castiron.tensor import dim
from tests.codegen import runner

RUNNABLE = [item for item in targets.ALL if runner.can_run(item)]
H = dim.symbol("h")


@dataclass
class Case:
    """A channels-last image, a window, and the number of windows on each axis."""

    op: str
    shape: tuple[int, ...]
    output: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    pads: tuple[int, ...]
    more: dict[str, Any] = field(default_factory=dict)
    dtype: str = "float32"
    is_symbolic: bool = False

    def graph(self) -> Graph:
        attrs = {
            "kernel_shape": self.kernel, "strides": self.strides, "pads": self.pads,
            "layout": "NHWC", **self.more,
        }  # fmt: skip
        shape: list[int | dim.Dim] = list(self.shape)
        if self.is_symbolic:
            shape[1] = H
        types = {"x": runner.tensor(shape, self.dtype), "y": runner.tensor(self.result, self.dtype)}
        return runner.graph_of(Node(self.op, ("x",), ("y",), attrs), types, {})

    @property
    def result(self) -> tuple[int, ...]:
        return (self.shape[0], *self.output, self.shape[-1])

    def expected(self, x: np.ndarray) -> np.ndarray:
        found = np.zeros(self.result)
        for place in np.ndindex(self.shape[0], *self.output):
            found[place] = self._window(x[place[0]].astype(np.float64), place[1:])
        return found

    def _window(self, image: np.ndarray, place: tuple[int, ...]) -> np.ndarray:
        rank = len(self.kernel)
        dilations = self.more.get("dilations", (1,) * rank)
        cells, counted = [], 0
        for tap in itertools.product(*map(range, self.kernel)):
            at = [
                place[n] * self.strides[n] - self.pads[n] + tap[n] * dilations[n]
                for n in range(rank)
            ]
            inside = all(0 <= p < image.shape[n] for n, p in enumerate(at))
            padded = all(p < image.shape[n] + self.pads[n + rank] for n, p in enumerate(at))
            counted += padded if self.more.get("count_include_pad") else inside
            if inside:
                cells.append(image[tuple(at)])
        if self.op == "MaxPool":
            return np.max(cells, axis=0) if cells else np.full(self.shape[-1], -np.inf)
        if self.op == "LpPool":
            p = self.more.get("p", 2)
            return np.asarray(np.sum(np.abs(cells) ** p, axis=0) ** (1 / p))
        return np.asarray(np.sum(cells, axis=0) / max(counted, 1))


CASES = [
    Case("MaxPool", (2, 9, 11, 5), (4, 5), (3, 3), (2, 2), (0, 0, 0, 0)),
    Case("MaxPool", (1, 9, 11, 70), (5, 6), (3, 3), (2, 2), (1, 1, 1, 1)),
    Case("MaxPool", (1, 9, 11, 70), (5, 6), (3, 3), (2, 2), (1, 1, 1, 1), is_symbolic=True),
    Case("MaxPool", (1, 5, 5, 64), (5, 5), (5, 5), (1, 1), (2, 2, 2, 2)),
    Case("MaxPool", (1, 9, 11, 16), (5, 7), (3, 3), (1, 1), (0, 0, 0, 0), {"dilations": (2, 2)}),
    Case("MaxPool", (1, 6, 6, 3), (3, 3), (2, 2), (2, 2), (0, 0, 0, 0), dtype="uint8"),
    Case("MaxPool", (1, 6, 6, 33), (3, 3), (2, 2), (2, 2), (0, 0, 0, 0), dtype="int8"),
    Case("MaxPool", (1, 6, 6, 9), (3, 3), (2, 2), (2, 2), (0, 0, 0, 0), dtype="float64"),
    Case("MaxPool", (2, 20, 9), (10,), (3,), (2,), (1, 0)),
    Case("MaxPool", (1, 2, 2, 4), (4, 4), (1, 1), (1, 1), (1, 1, 1, 1)),
    Case("AveragePool", (2, 9, 11, 70), (5, 6), (3, 3), (2, 2), (1, 1, 1, 1)),
    Case("AveragePool", (2, 9, 11, 7), (5, 6), (3, 3), (2, 2), (1, 1, 1, 1),
         {"count_include_pad": 1}),
    Case("AveragePool", (1, 6, 6, 7), (3, 3), (3, 3), (2, 2), (0, 0, 0, 0),
         {"ceil_mode": 1, "count_include_pad": 1}),
    Case("AveragePool", (1, 6, 6, 7), (3, 3), (3, 3), (2, 2), (0, 0, 0, 0), {"ceil_mode": 1}),
    Case("AveragePool", (3, 7, 20), (1,), (7,), (7,), (0, 0)),
    Case("LpPool", (1, 6, 6, 20), (3, 3), (2, 2), (2, 2), (0, 0, 0, 0)),
    Case("LpPool", (1, 6, 6, 20), (3, 3), (2, 2), (2, 2), (0, 0, 0, 0), {"p": 1}),
    Case("MaxPool", (0, 6, 6, 20), (3, 3), (2, 2), (2, 2), (0, 0, 0, 0)),
]  # fmt: skip


def _image(case: Case) -> np.ndarray:
    drawn = np.random.default_rng(5).standard_normal(case.shape)
    return (
        drawn.astype(case.dtype)
        if "f" in case.dtype
        else (drawn * 90).astype("int64").astype(case.dtype)
    )


@pytest.mark.parametrize("target", RUNNABLE, ids=lambda item: item.name)
def test_pools_agree_with_float64(target: targets.Target) -> None:
    for case in CASES:
        graph, x = case.graph(), _image(case)
        assert families.gap(graph.nodes[0], graph) is None
        lowered = families.lower(graph.nodes[0], graph, target)
        symbols = {"h": case.shape[1]}
        (result,) = runner.run_lowered(lowered, graph, target, {"x": x}, symbols)
        assert np.allclose(result, case.expected(x), rtol=1e-6, atol=1e-6), case


@pytest.mark.parametrize("target", RUNNABLE, ids=lambda item: item.name)
def test_the_largest_of_a_window_with_nan_is_nan(target: targets.Target) -> None:
    case = Case("MaxPool", (1, 4, 4, 20), (2, 2), (2, 2), (2, 2), (0, 0, 0, 0))
    for y, x in itertools.product(range(2), repeat=2):
        graph, image = case.graph(), _image(case)
        image[0, y, x, 3] = np.nan
        lowered = families.lower(graph.nodes[0], graph, target)
        (result,) = runner.run_lowered(lowered, graph, target, {"x": image})
        assert np.isnan(result[0, 0, 0, 3])
        assert np.isnan(result).sum() == 1


def test_aarch64_code_is_emitted() -> None:
    target = targets.named("aarch64")
    for text in {
        one.kernel.text
        for case in CASES
        for one in families.lower(case.graph().nodes[0], case.graph(), target).steps
    }:
        assert assemble.compile_kernel(text, target)
