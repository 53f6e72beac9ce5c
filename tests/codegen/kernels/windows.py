"""Convolutions for tests: a node with random inputs, its float64 reference, and its run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from castiron.compiler import target as targets
from castiron.compiler.codegen import step
from castiron.compiler.codegen.kernels import convolution
from castiron.graph import expr
from castiron.graph.graph import Extent, Graph, Node
from castiron.tensor import dim
from tests.codegen import runner

X = [expr.input_(index, "float32") for index in range(4)]
LIGHT = expr.apply("relu", expr.apply("add", X[0], expr.apply("mul", X[1], X[2])))
HEAVY = expr.apply("mul", X[0], expr.apply("sigmoid", expr.apply("add", X[1], X[2])))


@dataclass(frozen=True)
class Windows:
    """A Conv in NHWC layout: image is (batch, height, width, channels)."""

    image: tuple[int, int, int, int]
    filters: int
    kernel: tuple[int, int] = (3, 3)
    strides: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (1, 1, 1, 1)
    dilations: tuple[int, int] = (1, 1)
    group: int = 1
    has_bias: bool = True
    symbolic: bool = False
    epilogue: expr.Expr | None = None
    attrs: Mapping[str, Any] = field(default_factory=dict)
    constants: str = "wb"

    def __str__(self) -> str:
        sizes = "x".join(map(str, (*self.image, self.filters)))
        kernel = "x".join(map(str, (*self.kernel, *self.strides, *self.dilations)))
        flags = ("s" if self.symbolic else "") + ("e" if self.epilogue else "")
        return f"{sizes}_{kernel}_p{''.join(map(str, self.pads))}_g{self.group}{flags}"

    def arrays(self) -> dict[str, np.ndarray]:
        """Inputs x, w, perhaps b, and e0 (full) and e1 (vector) for an epilogue."""
        rng = np.random.default_rng(11)
        channels = self.image[3] // self.group
        shapes: dict[str, tuple[int, ...]] = {"x": self.image}
        shapes["w"] = (self.filters, channels, *self.kernel)
        if self.has_bias:
            shapes["b"] = (self.filters,)
        if self.epilogue:
            shapes |= {"e0": self.output(), "e1": (self.filters,)}
        found = {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
        found["w"] /= np.float32(np.sqrt(channels * self.kernel[0] * self.kernel[1]))
        return found

    def output(self) -> tuple[int, ...]:
        """The shape of the result."""
        return tuple(int(str(extent)) for extent in self._output(self.image))

    def _output(self, image: tuple[Extent, ...]) -> tuple[Extent, ...]:
        extents: list[Extent] = [image[0]]
        for n in range(2):
            span = (self.kernel[n] - 1) * self.dilations[n] + 1
            room = dim.add(image[n + 1], self.pads[n] + self.pads[n + 2] - span)
            extents.append(dim.add(dim.floordiv(room, self.strides[n]), 1))
        return (*extents, self.filters)

    def expected(self, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        """The result in float64."""
        x, w = arrays["x"].astype(np.float64), arrays["w"].astype(np.float64)
        top, left, bottom, right = self.pads
        x = np.pad(x, ((0, 0), (top, bottom), (left, right), (0, 0)))
        y = np.zeros(self.output())
        own, each = self.image[3] // self.group, self.filters // self.group
        for i in range(self.kernel[0]):
            for j in range(self.kernel[1]):
                rows = i * self.dilations[0] + np.arange(y.shape[1]) * self.strides[0]
                columns = j * self.dilations[1] + np.arange(y.shape[2]) * self.strides[1]
                seen = x[:, rows][:, :, columns]
                for g in range(self.group):
                    part = slice(g * each, (g + 1) * each)
                    y[..., part] += seen[..., g * own : (g + 1) * own] @ w[part, :, i, j].T
        y = y + arrays["b"] if self.has_bias else y
        if self.epilogue:
            extras = [arrays[name].astype(np.float64) for name in ("e0", "e1")]
            return expr.evaluate(self.epilogue, [y, *extras])
        return y

    def graph(self, arrays: Mapping[str, np.ndarray]) -> Graph:
        """The graph of the one node."""
        names = tuple(arrays)
        image: tuple[Extent, ...] = self.image
        if self.symbolic:
            image = (*(dim.symbol(name) for name in "nhw"), self.image[3])
        output = self._output(image)
        attrs = {
            "strides": self.strides,
            "dilations": self.dilations,
            "pads": self.pads,
            "group": self.group,
            "layout": "NHWC",
            **self.attrs,
        }
        if self.epilogue:
            attrs |= {"epilogue": self.epilogue, "num_own": len(names) - 2}
        types = {name: runner.tensor(array.shape) for name, array in arrays.items()}
        types |= {"x": runner.tensor(image), "y": runner.tensor(output)}
        if self.epilogue:
            types |= {"e0": runner.tensor(output), "e1": runner.tensor((self.filters,))}
        constants = {name: arrays[name] for name in self.constants if name in arrays}
        return runner.graph_of(Node("Conv", names, ("y",), attrs), types, constants)

    def lowered(self, target: targets.Target) -> step.Lowered:
        """The steps of the node."""
        graph = self.graph(self.arrays())
        assert convolution.gap(graph.nodes[0], graph) is None
        return convolution.lower(graph.nodes[0], graph, target)

    def result(
        self, target: targets.Target, arrays: Mapping[str, np.ndarray] | None = None
    ) -> np.ndarray:
        """What the kernels compute."""
        arrays = arrays or self.arrays()
        graph = self.graph(arrays)
        assert convolution.gap(graph.nodes[0], graph) is None
        lowered = convolution.lower(graph.nodes[0], graph, target)
        symbols = dict(zip("nhw", self.image, strict=False)) if self.symbolic else {}
        return runner.run_lowered(lowered, graph, target, arrays, symbols)[0]

    def error(self, target: targets.Target) -> float:
        """Largest difference over the largest expected value."""
        arrays = self.arrays()
        result, expected = self.result(target, arrays), self.expected(arrays)
        assert result.shape == expected.shape
        if not expected.size:
            return 0.0
        return float(abs(result - expected).max() / max(1e-30, abs(expected).max()))


def kernels_of(windows: Windows, target: targets.Target) -> str:
    """The symbols of the kernels that the node becomes."""
    return " ".join(one.kernel.symbol for one in windows.lowered(target).steps)
