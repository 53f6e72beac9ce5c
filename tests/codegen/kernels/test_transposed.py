"""ConvTranspose against a float64 scatter, on every target that this machine runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from castiron.compiler import target as targets
from castiron.compiler.codegen import assemble, step
from castiron.compiler.codegen.kernels import transposed
from castiron.graph import expr
from castiron.graph.graph import Extent, Graph, Node
from castiron.tensor import dim
from tests.codegen import runner
from tests.codegen.kernels.windows import HEAVY, LIGHT

RUNNABLE = [item for item in targets.ALL if runner.can_run(item)]


@dataclass(frozen=True)
class Case:
    """A ConvTranspose in NHWC layout; ``spatial`` extents, one or two of them."""

    spatial: tuple[int, ...]
    channels: int
    filters: int
    kernel: tuple[int, ...]
    strides: tuple[int, ...] = (1, 1)
    pads: tuple[int, ...] = (0, 0, 0, 0)
    dilations: tuple[int, ...] = (1, 1)
    extra: tuple[int, ...] = (0, 0)
    group: int = 1
    batch: int = 2
    has_bias: bool = True
    symbolic: bool = False
    epilogue: expr.Expr | None = None
    attrs: Mapping[str, Any] = field(default_factory=dict)
    output: tuple[int, ...] | None = None

    def __str__(self) -> str:
        sizes = "x".join(map(str, (*self.spatial, self.channels, self.filters)))
        more = "x".join(map(str, (*self.kernel, *self.strides, *self.dilations)))
        flags = ("s" if self.symbolic else "") + ("e" if self.epilogue else "")
        return f"{sizes}_{more}_p{''.join(map(str, self.pads))}_g{self.group}{flags}"

    def out(self, spatial: tuple[Extent, ...]) -> tuple[Extent, ...]:
        """The spatial extents of the result."""
        if self.output:
            return self.output
        rank, found = len(spatial), []
        for n, size in enumerate(spatial):
            span = (self.kernel[n] - 1) * self.dilations[n] + 1 + self.extra[n]
            cut = self.pads[n] + self.pads[n + rank]
            found.append(dim.add(dim.mul(dim.add(size, -1), self.strides[n]), span - cut))
        return tuple(found)

    def arrays(self) -> dict[str, np.ndarray]:
        """Inputs x, w, perhaps b, and e0 (full) and e1 (vector) for an epilogue."""
        rng = np.random.default_rng(5)
        shapes: dict[str, tuple[Any, ...]] = {"x": (self.batch, *self.spatial, self.channels)}
        shapes["w"] = (self.channels, self.filters // self.group, *self.kernel)
        if self.has_bias:
            shapes["b"] = (self.filters,)
        if self.epilogue:
            full = (self.batch, *self.out(self.spatial), self.filters)
            shapes |= {"e0": full, "e1": (self.filters,)}
        return {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}

    def expected(self, arrays: Mapping[str, np.ndarray], before: tuple[int, ...]) -> np.ndarray:
        """The result in float64; ``before`` is what is cut off in front."""
        x, w = arrays["x"].astype(np.float64), arrays["w"].astype(np.float64)
        rank = len(self.spatial)
        room = [s * self.strides[n] + w.shape[2 + n] * self.dilations[n] + 64
                for n, s in enumerate(self.spatial)]  # fmt: skip
        wide = np.zeros((self.batch, *room, self.filters))
        own, each = self.channels // self.group, self.filters // self.group
        for tap in np.ndindex(*self.kernel):
            where = tuple(
                slice(tap[n] * self.dilations[n],
                      tap[n] * self.dilations[n] + (self.spatial[n] - 1) * self.strides[n] + 1,
                      self.strides[n])
                for n in range(rank)
            )  # fmt: skip
            for g in range(self.group):
                part = slice(g * own, (g + 1) * own)
                place = (slice(None), *where, slice(g * each, (g + 1) * each))
                wide[place] += x[..., part] @ w[(part, slice(None), *tap)]
        out = self.out(self.spatial)
        cut = tuple(slice(before[n], before[n] + int(str(out[n]))) for n in range(rank))
        y = wide[(slice(None), *cut)]
        y = y + arrays["b"] if self.has_bias else y
        if self.epilogue:
            extras = [arrays[name].astype(np.float64) for name in ("e0", "e1")]
            return expr.evaluate(self.epilogue, [y, *extras])
        return y

    def graph(self, arrays: Mapping[str, np.ndarray]) -> Graph:
        """The graph of the one node."""
        rank, names = len(self.spatial), tuple(arrays)
        spatial: tuple[Extent, ...] = self.spatial
        batch: Extent = self.batch
        if self.symbolic:
            batch, spatial = dim.symbol("n"), tuple(dim.symbol(c) for c in "hw"[:rank])
        output = (batch, *self.out(spatial), self.filters)
        attrs: dict[str, Any] = {
            "strides": self.strides[:rank],
            "dilations": self.dilations[:rank],
            "output_padding": self.extra[:rank],
            "pads": self.pads,
            "group": self.group,
            "layout": "NHWC",
            **self.attrs,
        }
        types = {"x": runner.tensor((batch, *spatial, self.channels)), "y": runner.tensor(output)}
        if self.epilogue:
            attrs |= {"epilogue": self.epilogue, "num_own": len(names) - 2}
            types |= {"e0": runner.tensor(output), "e1": runner.tensor((self.filters,))}
        constants = {name: arrays[name] for name in ("w", "b") if name in arrays}
        return runner.graph_of(Node("ConvTranspose", names, ("y",), attrs), types, constants)

    def lowered(self, target: targets.Target) -> tuple[step.Lowered, Graph]:
        """The steps and the graph."""
        graph = self.graph(self.arrays())
        assert transposed.gap(graph.nodes[0], graph) is None
        return transposed.lower(graph.nodes[0], graph, target), graph

    def check(self, target: targets.Target, before: tuple[int, ...] | None = None) -> None:
        """Compare with the reference."""
        arrays = self.arrays()
        lowered, graph = self.lowered(target)
        symbols = {"n": self.batch, **dict(zip("hw", self.spatial, strict=False))}
        result = runner.run_lowered(lowered, graph, target, arrays, symbols)[0]
        expected = self.expected(arrays, before or self.pads[: len(self.spatial)])
        assert result.shape == expected.shape
        if expected.size:
            assert abs(result - expected).max() < 1e-6 * abs(expected).max()


CASES = [
    Case((5, 7), 6, 20, (3, 3)),
    Case((5, 7), 6, 20, (3, 3), (2, 2), (1, 1, 1, 1), extra=(1, 1), epilogue=LIGHT),
    Case((5, 7), 24, 24, (2, 2), (2, 2), epilogue=HEAVY),
    Case((5, 7), 24, 24, (2, 2), (2, 2), symbolic=True),
    Case((5, 7), 24, 1, (2, 2), (2, 2), has_bias=False),
    Case((5, 7), 12, 8, (4, 4), (2, 2), (1, 1, 1, 1), group=4),
    Case((5, 7), 20, 20, (4, 4), (2, 2), (1, 1, 1, 1), group=20, symbolic=True, epilogue=LIGHT),
    Case((5, 7), 3, 5, (2, 1), (3, 2), extra=(1, 0)),
    Case((4, 3), 3, 5, (3, 3), (2, 3), (1, 0, 0, 1), (2, 2)),
    Case((1, 1), 3, 5, (3, 3), (2, 2)),
    Case((7,), 6, 20, (5,), (2,), (2, 1)),
    Case((7,), 16, 16, (3,), (2,), (1, 1), group=16, symbolic=True),
    Case((3, 3), 4, 4, (3, 3), batch=0),
]


@pytest.mark.parametrize("target", RUNNABLE, ids=lambda item: item.name)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_transposed_convolution_agrees_with_float64(case: Case, target: targets.Target) -> None:
    case.check(target)


@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER"])
def test_auto_pad_cuts_the_output_to_input_times_stride(mode: str) -> None:
    case = Case((5, 7), 3, 4, (4, 4), (3, 2), attrs={"auto_pad": mode}, output=(15, 14))
    total = (16 - 15, 16 - 14)
    before = tuple(t // 2 if mode == "SAME_UPPER" else t - t // 2 for t in total)
    case.check(targets.host(), before)


def test_output_shape_decides_what_is_cut_off() -> None:
    shape = {"output_shape": (10, 8), "pads": None}
    case = Case((3, 3), 3, 4, (3, 3), (3, 2), attrs=shape, output=(10, 8), extra=(1, 1))
    case.check(targets.host(), (0, 0))


def test_aarch64_code_is_emitted() -> None:
    target = targets.named("aarch64")
    for case in (CASES[1], CASES[6]):
        for one in case.lowered(target)[0].steps:
            assert assemble.compile_kernel(one.kernel.text, target)


def test_weights_that_are_not_constant_have_no_kernel() -> None:
    graph = CASES[0].graph(CASES[0].arrays()).replace(constants={})
    assert "run time" in str(transposed.gap(graph.nodes[0], graph))
