"""Fused loops against numpy: every way of broadcasting, mixed dtypes, tails, guards."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from castiron.compiler import target as targets
from castiron.compiler.codegen import assemble, spills
from castiron.compiler.codegen.kernels import fused
from castiron.graph import expr
from castiron.graph.graph import Node, TensorType
from castiron.tensor import dim
from tests.codegen import runner

TARGETS = [target for target in targets.ALL if runner.can_run(target)]
each_target = pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
X, Y, Z = (expr.input_(number, "float32") for number in range(3))
PRODUCT_SUM = expr.apply("add", expr.apply("mul", X, Y), Z)

Shape = tuple[int, ...]
# How much the types know: every extent, equal extents by one symbol, or nothing at all.
KNOWLEDGE = ("static", "equal", "nothing")


def _typed(name: str, shape: Shape, knowledge: str, symbols: dict[str, int]) -> TensorType:
    extents: list[int | dim.Dim] = []
    for axis, extent in enumerate(shape):
        is_known = knowledge == "static" or (knowledge == "equal" and extent == 1)
        symbol = f"d{extent}" if knowledge == "equal" else f"{name}{axis}"
        if not is_known:
            symbols[symbol] = extent
        extents.append(extent if is_known else dim.symbol(symbol))
    return runner.tensor(extents)


def _check(shapes: tuple[Shape, Shape, Shape], knowledge: str, target: targets.Target) -> None:
    rng = np.random.default_rng(len(shapes[0]))
    arrays = [rng.normal(size=shape).astype(np.float32) for shape in shapes]
    expected = arrays[0] * arrays[1] + arrays[2]
    symbols: dict[str, int] = {}
    types = {
        name: _typed(name, shape, knowledge, symbols)
        for name, shape in zip("abcy", (*shapes, expected.shape), strict=True)
    }
    node = Node("Fused", ("a", "b", "c"), ("y",), {"expr": PRODUCT_SUM})
    graph = runner.graph_of(node, types, {})
    assert fused.gap(node, graph) is None
    lowered = fused.lower(node, graph, target)
    feeds = dict(zip("abc", arrays, strict=True))
    (got,) = runner.run_lowered(lowered, graph, target, feeds, symbols)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


CASES = [((7,), (7,), ()), ((2, 3, 5, 7), (3, 1, 1), (2, 3, 5, 7)), ((3, 100), (100,), (3, 1)),
         ((9, 33), (9, 1), (33,)), ((4, 1, 6), (1, 5, 6), (4, 5, 1)), ((1000,), (1,), (1000,)),
         ((20000,), (20000,), (1,)), ((3, 20000), (3, 1), (20000,)), ((0, 5), (5,), (1,)),
         ((2, 3, 4, 5, 6), (3, 1, 5, 1), (2, 1, 4, 1, 6)), ((1,), (1,), (1,)), ((), (), ()),
         ((600, 16), (16,), (600, 16)), ((50, 2), (50, 1), (2,)), ((7, 70, 3), (3,), (7, 70, 3)),
         ((3, 40, 4), (40, 1), (3, 1, 1)), ((5, 33, 6), (33, 1), (6,)), ((100, 5), (100, 1), (100, 5))]  # fmt: skip


@each_target
@pytest.mark.parametrize("knowledge", KNOWLEDGE)
def test_operands_broadcast_whatever_the_types_know(knowledge: str, target: targets.Target) -> None:
    for shapes in CASES:
        _check(shapes, knowledge, target)


@st.composite
def _broadcastable(draw: st.DrawFn) -> tuple[Shape, Shape, Shape]:
    output = draw(st.lists(st.integers(0, 9), max_size=5))
    shapes = []
    for _ in range(3):
        kept = [1 if draw(st.booleans()) else extent for extent in output]
        shapes.append(tuple(kept[draw(st.integers(0, len(kept))) :]))
    return shapes[0], shapes[1], shapes[2]


@given(_broadcastable(), st.sampled_from(KNOWLEDGE))
def test_any_shapes_that_broadcast_do(shapes: tuple[Shape, Shape, Shape], knowledge: str) -> None:
    _check(shapes, knowledge, targets.host())


@each_target
def test_dtypes_mix_within_one_loop(target: targets.Target) -> None:
    rng = np.random.default_rng(2)
    n = 77
    a, b = rng.normal(size=(3, n)).astype(np.float32), rng.integers(-5, 5, (n,))
    truth = rng.integers(0, 2, (3, 1)).astype(bool)
    leaf, whole = expr.input_(0, "float32"), expr.input_(1, "int64")
    choice = expr.input_(2, "bool")
    is_less = expr.apply("less", leaf, expr.cast(whole, "float32"), dtype="bool")
    trees = {
        "bool": expr.apply("and", is_less, choice),
        "int64": expr.apply("add", expr.cast(leaf, "int64"), whole),
        "uint8": expr.cast(expr.apply("where", choice, leaf, expr.const(7.0, "float32")), "uint8"),
        "float64": expr.apply("exp", expr.cast(leaf, "float64")),
    }
    expected = {
        "bool": (a < b) & truth,
        "int64": a.astype(np.int64) + b,
        "uint8": np.where(truth, np.maximum(a, 0), 7).astype(np.uint8),
        "float64": np.exp(a.astype(np.float64)),
    }
    for dtype, tree in trees.items():
        node = Node("Fused", ("a", "b", "t"), ("y",), {"expr": tree})
        types = {"a": runner.tensor((3, n)), "b": runner.tensor((n,), "int64")}
        types |= {"t": runner.tensor((3, 1), "bool"), "y": runner.tensor((3, n), dtype)}
        graph = runner.graph_of(node, types, {})
        feeds: dict[str, np.ndarray] = {"a": a, "b": b, "t": truth}
        assert fused.gap(node, graph) is None
        lowered = fused.lower(node, graph, target)
        (got,) = runner.run_lowered(lowered, graph, target, feeds)
        np.testing.assert_allclose(got, expected[dtype], rtol=1e-14 if dtype == "float64" else 0)


def test_only_inputs_of_the_output_s_own_size_may_give_it_their_memory() -> None:
    node = Node("Fused", ("a", "b", "c"), ("y",), {"expr": PRODUCT_SUM})
    shapes = {"a": (4, 9), "b": (9,), "c": (4, 9), "y": (4, 9)}
    types = {name: runner.tensor(shape) for name, shape in shapes.items()}
    graph = runner.graph_of(node, types, {})
    (one,) = fused.lower(node, graph, targets.host()).steps
    assert one.in_place == ((3, 0), (3, 2))
    assert one.bytes_moved == 4 * (36 * 3 + 9)


def test_one_text_serves_all_sizes() -> None:
    texts = set()
    for n, m in itertools.product((300, 5000), (7, 9000)):
        node = Node("Fused", ("a", "b", "c"), ("y",), {"expr": PRODUCT_SUM})
        shapes = {"a": (m, n), "b": (n,), "c": (m, 1), "y": (m, n)}
        types = {name: runner.tensor(shape) for name, shape in shapes.items()}
        graph = runner.graph_of(node, types, {})
        kernel = fused.lower(node, graph, targets.host()).steps[0].kernel
        texts.add((kernel.symbol, kernel.text))
    assert len(texts) == 1


def test_gaps_are_said_in_words() -> None:
    tree = expr.apply("fmod", expr.input_(0, "float64"), expr.input_(0, "float64"))
    node = Node("Fused", ("a",), ("y",), {"expr": tree})
    kind = runner.tensor((3,), "float64")
    graph = runner.graph_of(node, {"a": kind, "y": kind}, {})
    assert fused.gap(node, graph) == "no code for the remainder of float64"


@pytest.mark.parametrize("target", targets.ALL, ids=lambda target: target.name)
def test_every_target_gets_an_object_and_wide_registers_do_not_spill(
    target: targets.Target,
) -> None:
    half = expr.apply("mul", X, expr.const(0.5, "float32"))
    inner = expr.apply("erf", expr.apply("mul", X, expr.const(0.7071067811865476, "float32")))
    tree = expr.apply("mul", half, expr.apply("add", inner, expr.const(1.0, "float32")))
    node = Node("Fused", ("a",), ("y",), {"expr": tree})
    graph = runner.graph_of(node, {"a": runner.tensor((64,)), "y": runner.tensor((64,))}, {})
    kernel = fused.lower(node, graph, target).steps[0].kernel
    assert assemble.compile_kernel(kernel.text, target)[:4] == b"\x7fELF"
    if target.name == "avx512":
        assert spills.count_vector_spills(kernel.text, target, kernel.symbol) == 0
