"""Softmax kernels against numpy in float64, on every target that this machine runs."""

from __future__ import annotations

import numpy as np
import pytest

from castiron.compiler import target as targets
from castiron.compiler.codegen import assemble
from castiron.compiler.codegen.kernels import softmax
from castiron.graph.graph import Node
from castiron.tensor import dim
from tests.codegen import runner

TARGETS = [target for target in targets.ALL if runner.can_run(target)]
SHAPES = [((5, 1), 1), ((3, 7), -1), ((2, 64), 1), ((4, 131), 1), ((3, 1000), 1), ((2, 5, 33), 1),
          ((7, 300), 0), ((2, 0), 1), ((0, 4), 1), ((3, 9, 2, 5), 2)]  # fmt: skip


def _reference(op: str, x: np.ndarray, axis: int) -> np.ndarray:
    wide = x.astype(np.float64)
    with np.errstate(all="ignore"):
        shifted = wide - wide.max(axis=axis, keepdims=True, initial=-np.inf)
        total = np.exp(shifted).sum(axis=axis, keepdims=True)
        result = np.exp(shifted) / total if op == "Softmax" else shifted - np.log(total)
        return np.asarray(result)


def _run(
    op: str, x: np.ndarray, axis: int, target: targets.Target, *, is_symbolic: bool = False
) -> np.ndarray:
    symbols = {f"d{n}": extent for n, extent in enumerate(x.shape)}
    shape = tuple(dim.symbol(name) for name in symbols) if is_symbolic else x.shape
    kind = runner.tensor(shape, x.dtype.name)
    node = Node(op, ("x",), ("y",), {"axis": axis})
    graph = runner.graph_of(node, {"x": kind, "y": kind}, {})
    assert softmax.gap(node, graph) is None
    lowered = softmax.lower(node, graph, target)
    return runner.run_lowered(lowered, graph, target, {"x": x}, symbols)[0]


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
@pytest.mark.parametrize("op", softmax.OPS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("is_symbolic", [False, True])
def test_lines_of_every_length_match_numpy(
    op: str, dtype: str, target: targets.Target, is_symbolic: bool
) -> None:
    rng = np.random.default_rng(1)
    for shape, axis in SHAPES:
        x = (rng.normal(size=shape) * 5).astype(dtype)
        got = _run(op, x, axis, target, is_symbolic=is_symbolic)
        tolerance = 4e-7 if dtype == "float32" else 1e-14
        expected = _reference(op, x, axis)
        np.testing.assert_allclose(got, expected, rtol=4 * tolerance, atol=4 * tolerance)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_masked_lines_and_nan_follow_the_formula(target: targets.Target) -> None:
    x = np.full((4, 40), -np.inf, np.float32)
    x[1, 3] = 2.0
    x[2] = np.arange(40) * 1000.0
    x[3] = 1.0
    x[3, 39] = np.nan
    got = _run("Softmax", x, 1, target)
    assert np.isnan(got[0]).all()
    assert got[1, 3] == 1.0 and got[1].sum() == 1.0
    assert got[2, 39] == 1.0 and got[2].sum() == 1.0
    assert np.isnan(got[3]).all()


def test_the_cross_target_gets_an_object() -> None:
    kind = runner.tensor((3, 7))
    node = Node("Softmax", ("x",), ("y",), {"axis": 1})
    graph = runner.graph_of(node, {"x": kind, "y": kind}, {})
    target = targets.named("aarch64")
    text = softmax.lower(node, graph, target).steps[0].kernel.text
    assert assemble.compile_kernel(text, target)[:4] == b"\x7fELF"
