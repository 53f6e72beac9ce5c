"""Reductions against numpy, over all kinds of axes, on every target that this machine runs."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from castiron.compiler import target as targets
from castiron.compiler.codegen import assemble
from castiron.compiler.codegen.kernels import reduction
from castiron.graph import expr
from castiron.graph.graph import Node
from castiron.tensor import dim
from tests.codegen import runner

TARGETS = [target for target in targets.ALL if runner.can_run(target)]
each_target = pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)

CASES = [((7,), (0,)), ((3, 100), (1,)), ((100, 3), (0,)), ((2, 9, 70), (1,)), ((70, 5), (0, 1)),
         ((2, 3, 4, 5), (0, 2)), ((2, 3, 4, 5), (1, 3)), ((1, 49, 150), (1,)), ((5, 1), (1,)),
         ((4, 0, 3), (1,)), ((0, 3), (1,)), ((600, 70), (0,)), ((2, 9000), (1,)),
         ((2, 3, 2, 3, 2, 20), (1, 3)), ((50, 2), (1,)), ((9, 8), (1,))]  # fmt: skip


def _numpy(op: str, x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    w = x.astype(np.float64) if x.dtype.kind == "f" else x
    with np.errstate(all="ignore"):
        if op in ("ReduceMax", "ReduceMin"):
            limits = np.finfo(x.dtype) if x.dtype.kind == "f" else None
            low, high = (-np.inf, np.inf) if limits else _limits(x.dtype)
            if op == "ReduceMax":
                return np.asarray(w.max(axes, keepdims=True, initial=low))
            return np.asarray(w.min(axes, keepdims=True, initial=high))
        if op == "ReduceMean" and x.dtype.kind == "i":
            count = max(int(np.prod([x.shape[axis] for axis in axes])), 1)
            total = w.sum(axes, keepdims=True)
            return np.asarray(np.trunc(total / count)).astype(x.dtype)
        powers = {"ReduceL1": np.abs(w), "ReduceSumSquare": w * w, "ReduceL2": w * w}
        if op == "ReduceLogSumExp":
            powers[op] = np.exp(w)
        if op == "ReduceProd":
            return np.asarray(w.prod(axes, keepdims=True, dtype=w.dtype))
        total = powers.get(op, w).sum(axes, keepdims=True, dtype=w.dtype)
        if op == "ReduceMean":
            count = int(np.prod([x.shape[axis] for axis in axes]))
            return np.asarray(total / np.float64(count))
        if op == "ReduceL2":
            return np.asarray(np.sqrt(total))
        return np.asarray(np.log(total)) if "Log" in op else np.asarray(total)


def _limits(dtype: np.dtype) -> tuple[int, int]:
    if dtype.kind == "b":
        return 0, 1
    return int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)


def _run(
    op: str,
    x: np.ndarray,
    axes: tuple[int, ...],
    target: targets.Target,
    *,
    is_symbolic: bool = False,
) -> np.ndarray:
    symbols = {f"d{n}": extent for n, extent in enumerate(x.shape)}
    shape = [dim.symbol(f"d{n}") if is_symbolic else extent for n, extent in enumerate(x.shape)]
    reduced = [1 if axis in axes else extent for axis, extent in enumerate(shape)]
    node = Node(op, ("x",), ("y",), {"axes": axes, "keepdims": 1})
    types = {"x": runner.tensor(shape, x.dtype.name), "y": runner.tensor(reduced, x.dtype.name)}
    graph = runner.graph_of(node, types, {})
    assert reduction.gap(node, graph) is None
    lowered = reduction.lower(node, graph, target)
    return runner.run_lowered(lowered, graph, target, {"x": x}, symbols)[0]


@each_target
@pytest.mark.parametrize("op", reduction.OPS)
@pytest.mark.parametrize("is_symbolic", [False, True])
def test_floats_match_numpy_over_any_axes(
    op: str, target: targets.Target, is_symbolic: bool
) -> None:
    rng = np.random.default_rng(3)
    for (shape, axes), dtype in itertools.product(CASES, ("float32", "float64")):
        if dtype == "float64" and (is_symbolic or len(shape) < 3):
            continue
        x = rng.uniform(0.5, 1.5, size=shape).astype(dtype)
        expected = _numpy(op, x, axes)
        got = _run(op, x, axes, target, is_symbolic=is_symbolic)
        tolerance = 2e-6 if dtype == "float32" else 1e-13
        if op == "ReduceProd":
            tolerance *= 100
        np.testing.assert_allclose(got, expected.astype(dtype), rtol=tolerance, atol=tolerance)


@each_target
@pytest.mark.parametrize("dtype", ["int32", "int64", "int8", "uint8", "bool"])
def test_integers_wrap_and_compare_in_their_own_order(target: targets.Target, dtype: str) -> None:
    rng = np.random.default_rng(4)
    ops = ["ReduceMax", "ReduceMin"]
    if dtype in ("int32", "int64"):
        ops += ["ReduceSum", "ReduceProd", "ReduceMean", "ReduceL1", "ReduceSumSquare"]
    for op, (shape, axes) in itertools.product(ops, CASES):
        x = rng.integers(-100, 200, size=shape).astype(dtype)
        np.testing.assert_array_equal(_run(op, x, axes, target), _numpy(op, x, axes))


@each_target
@pytest.mark.parametrize("op", ["ReduceMax", "ReduceMin"])
def test_nan_survives_wherever_it_stands(op: str, target: targets.Target) -> None:
    for place in range(0, 90, 7):
        x = np.arange(90, dtype=np.float32).reshape(1, 90)
        x[0, place] = np.nan
        assert np.isnan(_run(op, x, (1,), target)).all()
        column = _run(op, np.ascontiguousarray(x.T.repeat(20, 1)), (0,), target)
        assert np.isnan(column).all()


@each_target
def test_log_sum_exp_neither_overflows_nor_loses_infinities(target: targets.Target) -> None:
    x = np.array([[1000, 1000], [-1000, -1000], [-np.inf, -np.inf], [np.inf, 0], [np.nan, 0]])
    got = _run("ReduceLogSumExp", x.astype(np.float32), (1,), target).reshape(-1)
    expected = [1000 + np.log(2), -1000 + np.log(2), -np.inf, np.inf, np.nan]
    np.testing.assert_allclose(got, np.array(expected, np.float32), rtol=1e-6)


@each_target
def test_a_million_terms_keep_their_digits(target: targets.Target) -> None:
    x = np.random.default_rng(5).uniform(0, 1, (1 << 20, 1)).astype(np.float32)
    total = x.astype(np.float64).sum()
    assert abs(float(_run("ReduceSum", x, (0,), target)[0, 0]) / total - 1) < 1e-6
    wide = x.reshape(-1, 8)
    columns = _run("ReduceSum", wide, (0,), target).reshape(-1)
    np.testing.assert_allclose(columns, wide.astype(np.float64).sum(0), rtol=2e-6)


@each_target
def test_an_epilogue_reads_tensors_beside_the_result(target: targets.Target) -> None:
    rng = np.random.default_rng(6)
    x = rng.normal(size=(3, 10, 37)).astype(np.float32)
    full, vector = rng.normal(size=(3, 37)).astype(np.float32), rng.normal(size=37)
    vector = vector.astype(np.float32)
    leaves = [expr.input_(n, "float32") for n in range(3)]
    tree = expr.apply("add", expr.apply("mul", leaves[0], leaves[1]), leaves[2])
    attrs = {"axes": (1,), "keepdims": 0, "num_own": 1, "epilogue": tree}
    node = Node("ReduceMean", ("x", "f", "v"), ("y",), attrs)
    types = {"x": runner.tensor((3, 10, 37)), "f": runner.tensor((3, 37))}
    types |= {"v": runner.tensor((37,)), "y": runner.tensor((3, 37))}
    graph = runner.graph_of(node, types, {})
    assert reduction.gap(node, graph) is None
    feeds: dict[str, np.ndarray] = {"x": x, "f": full, "v": vector}
    (got,) = runner.run_lowered(reduction.lower(node, graph, target), graph, target, feeds)
    np.testing.assert_allclose(got, x.mean(1) * full + vector, rtol=1e-5, atol=1e-5)


def test_the_cross_target_gets_objects() -> None:
    target = targets.named("aarch64")
    for op in reduction.OPS:
        node = Node(op, ("x",), ("y",), {"axes": (1,), "keepdims": 0})
        types = {"x": runner.tensor((3, 5, 7)), "y": runner.tensor((3, 7))}
        graph = runner.graph_of(node, types, {})
        text = reduction.lower(node, graph, target).steps[0].kernel.text
        assert assemble.compile_kernel(text, target)[:4] == b"\x7fELF"
