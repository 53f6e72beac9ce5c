"""TopK, CumSum, ArgMax and ArgMin against numpy, on every target that this machine runs."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import numpy as np
import pytest

from castiron.compiler import target as targets
from castiron.compiler.codegen import assemble, families
from castiron.graph.graph import Node
from castiron.tensor import dim
from tests.codegen import runner

TARGETS = [target for target in targets.ALL if runner.can_run(target)]
each_target = pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
DTYPES = ("float32", "float64", "int32", "int64", "int8", "uint8")


def _run(
    node: Node,
    x: np.ndarray,
    outputs: Mapping[str, tuple[tuple[int, ...], str]],
    target: targets.Target,
    *,
    is_symbolic: bool = False,
) -> list[np.ndarray]:
    symbols = {f"d{n}": extent for n, extent in enumerate(x.shape)}
    shape = [dim.symbol(name) if is_symbolic else symbols[name] for name in symbols]
    types = {"x": runner.tensor(shape, x.dtype.name)}
    for name, (result, dtype) in outputs.items():
        types[name] = runner.tensor(result, dtype)
    graph = runner.graph_of(node, types, {})
    assert families.gap(node, graph) is None
    lowered = families.lower(node, graph, target)
    return runner.run_lowered(lowered, graph, target, {"x": x}, symbols)


def _values(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    # Few distinct values, so that ties happen.
    x = rng.integers(-20, 20, size=shape)
    return (x / 4).astype(dtype) if dtype.startswith("float") else x.astype(dtype)


@each_target
@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize("dtype", DTYPES)
def test_top_k_sorts_with_ties_by_position(
    dtype: str, largest: int, target: targets.Target
) -> None:
    rng = np.random.default_rng(7)
    cases = [((3, 50), 1, 5), ((2, 300), 1, 64), ((2, 300), 1, 65), ((300,), 0, 300), ((4, 7, 5), 1, 7),
             ((2, 5, 3), 0, 2), ((3000,), 0, 70), ((3, 9), 1, 0), ((3, 1), 1, 1), ((129,), 0, 129)]  # fmt: skip
    for (shape, axis, k), is_symbolic in itertools.product(cases, (False, True)):
        x = _values(rng, shape, dtype)
        node = Node("TopK", ("x",), ("v", "i"), {"axis": axis, "largest": largest, "k": k})
        result = tuple(k if n == axis else e for n, e in enumerate(shape))
        outputs = {"v": (result, dtype), "i": (result, "int64")}
        values, positions = _run(node, x, outputs, target, is_symbolic=is_symbolic)
        key = x.astype(np.float64)
        order = np.argsort(-key if largest else key, axis=axis, kind="stable")
        order = np.take(order, np.arange(k), axis=axis)
        np.testing.assert_array_equal(positions, order)
        np.testing.assert_array_equal(values, np.take_along_axis(x, order, axis=axis))


@each_target
def test_top_k_has_nan_largest_and_handles_extremes(target: targets.Target) -> None:
    x = np.array([0.0, np.nan, -np.inf, np.inf, -0.0, 1e-45, -np.nan], np.float32)
    for dtype, largest in itertools.product(("float32", "float64"), (0, 1)):
        node = Node("TopK", ("x",), ("v", "i"), {"largest": largest, "k": 7})
        outputs = {"v": ((7,), dtype), "i": ((7,), "int64")}
        _, positions = _run(node, x.astype(dtype), outputs, target)
        expected = [1, 6, 3, 5, 0, 4, 2] if largest else [2, 0, 4, 5, 3, 1, 6]
        assert positions.tolist() == expected
    lowest = np.full(5, np.iinfo(np.int64).min)
    node = Node("TopK", ("x",), ("v", "i"), {"k": 3})
    outputs = {"v": ((3,), "int64"), "i": ((3,), "int64")}
    assert _run(node, lowest, outputs, target)[1].tolist() == [0, 1, 2]


@each_target
@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
def test_cumsum_runs_both_ways_along_any_axis(
    exclusive: int, reverse: int, target: targets.Target
) -> None:
    rng = np.random.default_rng(8)
    cases = itertools.product(
        [((5, 13), 1), ((5, 13), 0), ((2, 3, 40), 1), ((7,), 0), ((3, 0), 1), ((2, 200), 0)],
        ("float32", "int64", "int32", "float64"),
    )
    for (shape, axis), dtype in cases:
        x = _values(rng, shape, dtype)
        attrs = {"axis": axis, "exclusive": exclusive, "reverse": reverse}
        node = Node("CumSum", ("x",), ("y",), attrs)
        (got,) = _run(node, x, {"y": (shape, dtype)}, target)
        turned = np.flip(x, axis) if reverse else x
        total = np.cumsum(turned, axis=axis, dtype=x.dtype)
        if exclusive:
            total = total - turned
        np.testing.assert_array_equal(got, np.flip(total, axis) if reverse else total)


@each_target
@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("last", [0, 1])
def test_arg_extremes_prefer_the_first_or_the_last(
    op: str, last: int, target: targets.Target
) -> None:
    rng = np.random.default_rng(9)
    cases = [((3, 50), 1), ((50, 3), 0), ((2, 70, 40), 1), ((2, 70, 40), 2), ((9,), 0), ((4, 1), 1)]
    for (shape, axis), dtype in itertools.product(cases, DTYPES):
        x = _values(rng, shape, dtype)
        result = tuple(1 if n == axis else e for n, e in enumerate(shape))
        attrs = {"axis": axis, "keepdims": 1, "select_last_index": last}
        node = Node(op, ("x",), ("y",), attrs)
        (got,) = _run(node, x, {"y": (result, "int64")}, target)
        find = np.argmax if op == "ArgMax" else np.argmin
        if last:
            expected = shape[axis] - 1 - find(np.flip(x, axis), axis=axis)
        else:
            expected = find(x, axis=axis)
        np.testing.assert_array_equal(got, np.expand_dims(expected, axis))


@each_target
@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
def test_arg_extremes_find_nan_and_lines_of_infinities(op: str, target: targets.Target) -> None:
    x = np.ones((4, 75), np.float32)
    x[0, [33, 60]] = np.nan
    x[1] = -np.inf if op == "ArgMax" else np.inf
    x[2, 74] = np.nan
    x[3, 5] = np.inf if op == "ArgMax" else -np.inf
    for last, expected in ((0, [33, 0, 74, 5]), (1, [60, 74, 74, 5])):
        node = Node(op, ("x",), ("y",), {"axis": 1, "select_last_index": last})
        (got,) = _run(node, x, {"y": ((4, 1), "int64")}, target)
        assert got.reshape(-1).tolist() == expected
        node = Node(op, ("x",), ("y",), {"axis": 0, "select_last_index": last})
        (got,) = _run(node, np.ascontiguousarray(x.T), {"y": ((1, 4), "int64")}, target)
        assert got.reshape(-1).tolist() == expected


def test_the_cross_target_gets_objects() -> None:
    target = targets.named("aarch64")
    for op, attrs in (("TopK", {"k": 2}), ("CumSum", {"axis": 1}), ("ArgMax", {"axis": 1})):
        outputs = ("v", "i") if op == "TopK" else ("v",)
        types = {"x": runner.tensor((3, 5)), "v": runner.tensor((3, 5)), "i": runner.tensor((3, 5))}
        node = Node(op, ("x",), outputs, attrs)
        text = families.lower(node, runner.graph_of(node, types, {}), target).steps[0].kernel.text
        assert assemble.compile_kernel(text, target)[:4] == b"\x7fELF"
