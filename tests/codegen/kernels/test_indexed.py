"""Pad, Gather*, Scatter*, OneHot, Trilu, EyeLike, Range and fills against plain numpy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from castiron.compiler import target as targets
from castiron.compiler.codegen import assemble, families
from castiron.graph.graph import Graph, Node
from castiron.tensor import dim
from tests.codegen import runner

RUNNABLE = [item for item in targets.ALL if runner.can_run(item)]
N = dim.symbol("n")
Feeds = Sequence[np.ndarray]


def make(op: str, feeds: Feeds, out: np.ndarray, attrs: Mapping[str, Any]) -> Graph:
    """The graph of one node with inputs x0, x1... of these arrays' types."""
    names = tuple(f"x{n}" for n in range(len(feeds)))
    types = {n: runner.tensor(a.shape, a.dtype.name) for n, a in zip(names, feeds, strict=True)}
    types["y"] = runner.tensor(out.shape, out.dtype.name)
    return runner.graph_of(Node(op, names, ("y",), attrs), types, {})


def check(op: str, feeds: Feeds, expected: np.ndarray, attrs: Mapping[str, Any]) -> None:
    """The node gives exactly the expected array on every target that runs here."""
    graph = make(op, feeds, expected, attrs)
    assert families.gap(graph.nodes[0], graph) is None
    for target in RUNNABLE:
        lowered = families.lower(graph.nodes[0], graph, target)
        given = {f"x{n}": array for n, array in enumerate(feeds)}
        (result,) = runner.run_lowered(lowered, graph, target, given)
        assert np.array_equal(result, expected), (op, attrs, target.name)
    for one in families.lower(graph.nodes[0], graph, targets.named("aarch64")).steps:
        assert assemble.compile_kernel(one.kernel.text, targets.named("aarch64"))


def drawn(shape: Sequence[int], dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(4).integers(-50, 50, shape).astype(dtype)


PADS = [
    ((3, 5), (1, 2, 0, 3)), ((2, 4, 6, 3), (0, 1, 1, 0, 0, 1, 1, 0)), ((7,), (2, 40)),
    ((2, 5, 3), (0, 2, 0, 0, 1, 0)), ((3, 5), (0, 0, 0, 0)), ((1, 6, 20), (0, 3, 0, 0, 3, 0)),
]  # fmt: skip


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
def test_borders_are_those_of_numpy(mode: str) -> None:
    for shape, pads in PADS:
        x = drawn(shape)
        if mode == "reflect" and any(max(p) >= n for n, p in zip(shape, _pairs(pads), strict=True)):
            continue
        more: dict[str, Any] = {"constant_values": 7} if mode == "constant" else {}
        way: Any = mode
        expected = np.pad(x, _pairs(pads), way, **more)
        check("Pad", [x], expected, {"pads": pads, "mode": mode, "value": 7.0})


def _pairs(pads: Sequence[int]) -> list[tuple[int, int]]:
    rank = len(pads) // 2
    return [(pads[n], pads[n + rank]) for n in range(rank)]


def test_negative_pads_crop() -> None:
    x = drawn((4, 9))
    expected = np.pad(x[1:, :-2], ((0, 2), (3, 0)), constant_values=-1)
    check("Pad", [x], expected, {"pads": (-1, 3, 2, -2), "mode": "constant", "value": -1.0})


@pytest.mark.parametrize("dtype", ["uint8", "float16", "int64", "float64"])
def test_every_dtype_is_padded_with_a_value_from_memory(dtype: str) -> None:
    x, value = drawn((3, 5), dtype), np.array(3, dtype)
    expected = np.pad(x, ((1, 0), (2, 1)), constant_values=3)
    check("Pad", [x, value], expected, {"pads": (1, 2, 0, 1), "mode": "constant"})


@pytest.mark.parametrize("index_dtype", ["int32", "int64"])
def test_gather_takes_rows_and_elements(index_dtype: str) -> None:
    for shape, axis, dtype in (
        ((7, 5), 0, "float32"), ((7, 5), 1, "int64"), ((3, 7, 4), 1, "uint8"), ((9,), 0, "int64"),
        ((2, 3, 70), 2, "float32"), ((50, 300), 0, "float32"), ((4, 6, 0), 1, "float32"),
    ):  # fmt: skip
        data = drawn(shape, dtype)
        last = shape[axis]
        for indices in (np.array([[0, -1, last - 1], [-last, 1, 0]]), np.array(1), np.zeros((0,))):
            picked = indices.astype(index_dtype)
            expected = np.take(data, picked.astype("int64"), axis)
            check("Gather", [data, picked], expected, {"axis": axis})


def test_an_index_outside_reads_the_nearest_row() -> None:
    data = drawn((5, 3))
    indices = np.array([7, -9, 1 << 40, -(1 << 40)])
    check("Gather", [data, indices], data[[4, 0, 4, 0]], {"axis": 0})


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_gather_elements_takes_along_an_axis(axis: int) -> None:
    data = drawn((3, 6, 5))
    indices = np.random.default_rng(1).integers(-3, 3, (2, 4, 5))
    wide = [slice(0, n) for n in indices.shape]
    wide[axis] = slice(None)
    expected = np.take_along_axis(data[tuple(wide)], indices, axis)
    check("GatherElements", [data, indices], expected, {"axis": axis})


@pytest.mark.parametrize("dtype", ["bool", "float32", "float64"])
def test_where_there_is_nothing_to_gather_the_result_is_0(dtype: str) -> None:
    # Memory left as it was would hold what another run computed.
    indices = np.array([[0, 2], [-1, 5]])
    for row in ((), (1,), (4,), (3, 37)):
        x = drawn((0, *row), dtype)
        check("Gather", [x, indices], np.zeros((2, 2, *row), dtype), {"axis": 0})
        check("GatherND", [x, indices.reshape(4, 1)], np.zeros((4, *row), dtype), {})
    for axis, shape in ((0, (0, 2)), (1, (2, 0))):
        x = drawn(shape, dtype)
        check("GatherElements", [x, indices], np.zeros((2, 2), dtype), {"axis": axis})


def test_gather_nd_takes_slices_at_tuples() -> None:
    data = drawn((3, 4, 5))
    tuples = np.array([[[0, 1], [2, -1]], [[-3, 3], [1, 0]]])
    check("GatherND", [data, tuples], data[tuples[..., 0], tuples[..., 1]], {"batch_dims": 0})
    own = np.array([[1], [3], [-1]])
    expected = np.stack([data[n, own[n, 0]] for n in range(3)])
    check("GatherND", [data, own], expected, {"batch_dims": 1})
    every = np.array([[0, 1, 2], [2, 3, 4]])
    check("GatherND", [data, every], data[tuple(every.T)], {"batch_dims": 0})


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_one_hot_sets_one_element_of_each_line(axis: int) -> None:
    indices = np.array([[0, -1, 3], [2, 9, -9]])
    values = np.array([0.5, 2.0], "float32")
    wide = np.where(indices < 0, indices + 4, indices)
    hot = np.expand_dims(wide, -1) == np.arange(4)
    expected = np.moveaxis(np.where(hot, values[1], values[0]), -1, axis)
    check("OneHot", [indices, values], expected, {"axis": axis, "depth": 4})


_FOLDS = {
    "add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum,
}  # fmt: skip


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "min", "max"])
@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_scatter_changes_elements_in_order(reduction: str, dtype: str) -> None:
    data, updates = drawn((3, 6, 4), dtype), drawn((2, 5, 4), dtype) + 1
    indices = np.random.default_rng(1).integers(-6, 6, (2, 5, 4))
    expected = data.copy()
    for place in np.ndindex(indices.shape):
        at = (place[0], indices[place], place[2])
        new = updates[place]
        expected[at] = new if reduction == "none" else _FOLDS[reduction](expected[at], new)
    attrs = {"axis": 1, "reduction": reduction}
    check("ScatterElements", [data, indices, updates], expected, attrs)


@pytest.mark.parametrize("reduction", ["none", "add", "max"])
def test_scatter_nd_changes_rows_in_order(reduction: str) -> None:
    data, tuples = drawn((4, 5, 6)), np.array([[0, 1], [3, -1], [0, 1]])
    updates = drawn((3, 6)) * 2
    expected = data.copy()
    for n, (a, b) in enumerate(tuples):
        new = updates[n]
        expected[a, b] = new if reduction == "none" else _FOLDS[reduction](expected[a, b], new)
    check("ScatterND", [data, tuples, updates], expected, {"reduction": reduction})


def test_scatter_works_where_the_data_lie() -> None:
    data, tuples, updates = drawn((4, 6)), np.array([[1], [3], [1]]), drawn((3, 6))
    expected = data.copy()
    expected[[1, 3, 1]] = updates
    graph = make("ScatterND", [data, tuples, updates], expected, {})
    for target in RUNNABLE:
        lowered = families.lower(graph.nodes[0], graph, target)
        assert lowered.steps[0].in_place == ((0, 1),)
        shared = runner.Runner(lowered, graph, target)
        for name, array in (("x0", data), ("x1", tuples), ("x2", updates)):
            shared.give(name, array)
        shared.memory["y"] = shared.memory["x0"]
        shared.run(shared.calls())
        assert np.array_equal(shared.take("y"), expected)


@pytest.mark.parametrize("k", [-7, -1, 0, 2, 9])
def test_triangles_are_those_of_numpy(k: int) -> None:
    for dtype in ("float32", "bool"):
        x = drawn((2, 5, 7), dtype)
        check("Trilu", [x], np.triu(x, k), {"k": k, "upper": 1})
        check("Trilu", [x], np.tril(x, k), {"k": k, "upper": 0})
    check("EyeLike", [drawn((5, 7))], np.eye(5, 7, k, dtype="float32"), {"k": k})


def test_ranges_and_fills() -> None:
    for dtype in ("int64", "int32", "float32"):
        attrs = {"start": 3, "limit": 50, "delta": 4, "dtype": dtype}
        check("Range", [], np.arange(3, 50, 4, dtype=dtype), attrs)
        attrs = {"start": 3, "limit": -5, "delta": -2, "dtype": dtype}
        check("Range", [], np.arange(3, -5, -2, dtype=dtype), attrs)
        value = np.array([-3], dtype)
        expected = np.full((5, 7000), value[0])
        check("ConstantOfShape", [], expected, {"shape": (5, 7000), "value": value})


def test_sizes_become_data() -> None:
    node = Node("DimsToTensor", (), ("y",), {"dims": (3, 2 * N, -1), "dtype": "int64"})
    for dtype in ("int64", "int32", "float32", "bool"):
        graph = runner.graph_of(node, {"y": runner.tensor((3,), dtype)}, {})
        for target in RUNNABLE:
            lowered = families.lower(node, graph, target)
            (result,) = runner.run_lowered(lowered, graph, target, {}, {"n": 5})
            assert result.tolist() == np.array([3, 10, -1]).astype(dtype).tolist()
