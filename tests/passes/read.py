"""Reading what a pass did: a graph's nodes as short lines, and proof that the numbers stayed."""

from __future__ import annotations

from typing import Any

import numpy as np

from castiron.compiler.passes.infer_shapes import infer_shapes
from castiron.compiler.passes.simplify import simplify
from castiron.graph import expr
from castiron.graph.graph import Graph
from castiron.graph.verify import verify
from castiron.tensor import dim as dims
from tests.passes import run_graph
from tests.passes.build import Builder

_SHOWN = (
    "axes",
    "axis",
    "epilogue",
    "expr",
    "layout",
    "perm",
    "scales",
    "shape",
    "split",
    "starts",
)


def normal(*shape: int) -> np.ndarray:
    """Seeded float32 numbers."""
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def conv(b: Builder, x: str, channels: tuple[int, int], kernel: int = 1, bias: str = "") -> str:
    """A convolution of stride 1 that keeps the extents, from so many channels to so many."""
    weights = b.constant(normal(channels[1], channels[0], kernel, kernel))
    inputs = (x, weights, bias) if bias else (x, weights)
    attrs: dict[str, Any] = {
        "kernel_shape": (kernel, kernel), "pads": (kernel // 2,) * 4, "strides": (1, 1),
        "dilations": (1, 1), "group": 1,
    }  # fmt: skip
    return b.add("Conv", *inputs, **attrs)


def canonical(b: Builder, *outputs: str) -> Graph:
    """The graph as the later passes get it."""
    return simplify(infer_shapes(b.graph(*outputs)))


def lines(graph: Graph) -> list[str]:
    """Each node as ``out = Op(inputs) {the attributes that these passes change}``."""
    shown = []
    for node in graph.nodes:
        attrs = {key: node.attrs[key] for key in _SHOWN if node.attr(key) is not None}
        said = ", ".join(f"{key}={_text(value)}" for key, value in attrs.items())
        call = f"{', '.join(node.outputs)} = {node.op}({', '.join(node.inputs)})"
        shown.append(call + (f" {{{said}}}" if said else ""))
    return shown


def _text(value: object) -> str:
    if isinstance(value, expr.Expr):
        return expr.text(value)
    if isinstance(value, tuple):
        return "".join(
            (f"[{dims.text(item)}]" if isinstance(item, dims.Dim) else str(item)) + " "
            for item in value
        ).strip()
    return str(value)


def assert_same(before: Graph, after: Graph, **symbols: int) -> None:
    """The graph after a pass is well formed and computes the same under this binding."""
    verify(after, "the pass under test")
    assert (after.inputs, after.outputs) == (before.inputs, before.outputs)
    inputs = {}
    for name in before.inputs:
        shape = tuple(dims.evaluate(extent, symbols) for extent in before.shape(name))
        inputs[name] = (
            np.random.default_rng(3).standard_normal(shape).astype(before.dtype(name).name)
        )
    wanted, found = run_graph.run(before, inputs), run_graph.run(after, inputs)
    for name, array in wanted.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-5)
