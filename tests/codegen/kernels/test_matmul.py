"""MatMul and Gemm against float64, on every target that this machine runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from castiron.compiler import target as targets
from castiron.compiler.codegen import assemble, step
from castiron.compiler.codegen.kernels import matmul
from castiron.graph import expr
from castiron.graph.graph import Graph, Node
from castiron.tensor import dim
from castiron.tensor.dim import Dim
from tests.codegen import runner

RUNNABLE = [item for item in targets.ALL if runner.can_run(item)]
Shape = Sequence[int | Dim]
S, N = dim.symbol("s"), dim.symbol("n")
X = [expr.input_(index, "float32") for index in range(6)]
RELU = expr.apply(
    "relu", expr.apply("add", expr.apply("mul", expr.apply("add", X[0], X[1]), X[2]), X[3])
)
SILU = expr.apply("mul", X[0], expr.apply("sigmoid", expr.apply("add", X[0], X[1])))


@dataclass
class Case:
    """One node: shapes of its inputs, which of them are constants, attributes, symbols."""

    op: str
    shapes: Sequence[Shape]
    const: str = ""
    attrs: Mapping[str, Any] = field(default_factory=dict)
    dtype: str = "float32"
    symbols: Mapping[str, int] = field(default_factory=dict)
    output: Shape | None = None

    def arrays(self) -> dict[str, np.ndarray]:
        """Random inputs a, b, c..."""
        rng = np.random.default_rng(7)
        found = {}
        for name, shape in zip("abcdef", self.shapes, strict=False):
            extents = [dim.evaluate(extent, self.symbols) for extent in shape]
            drawn = rng.standard_normal(extents)
            found[name] = np.asarray(drawn * (1 if "f" in self.dtype else 9)).astype(self.dtype)
        return found

    def expected(self, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        """The result in float64, or exactly for integers."""
        wide = [a.astype(np.float64) if "f" in self.dtype else a for a in arrays.values()]
        own = self.attrs.get("num_own", len(wide))
        left, right = wide[:2]
        if self.op == "Gemm":
            left = left.T if self.attrs.get("transA") else left
            right = right.T if self.attrs.get("transB") else right
        result = np.matmul(left, right) * self.attrs.get("alpha", 1)
        if own > 2:
            result = result + self.attrs.get("beta", 1) * wide[2]
        if "epilogue" in self.attrs:
            result = expr.evaluate(self.attrs["epilogue"], [result, *wide[own:]])
        return np.asarray(result)

    def graph(self, arrays: Mapping[str, np.ndarray]) -> Graph:
        """The graph of the one node."""
        names = tuple(arrays)
        node = Node(self.op, names, ("y",), self.attrs)
        types = {n: runner.tensor(s, self.dtype) for n, s in zip(names, self.shapes, strict=True)}
        output = self.output or self.expected(arrays).shape
        types["y"] = runner.tensor(output, self.dtype)
        return runner.graph_of(node, types, {name: arrays[name] for name in self.const})

    def lowered(self, target: targets.Target) -> tuple[step.Lowered, Graph]:
        """The steps and the graph."""
        graph = self.graph(self.arrays())
        assert matmul.gap(graph.nodes[0], graph) is None
        return matmul.lower(graph.nodes[0], graph, target), graph

    def error(self, target: targets.Target) -> float:
        """Largest difference over the largest expected value."""
        arrays = self.arrays()
        lowered, graph = self.lowered(target)
        result = runner.run_lowered(lowered, graph, target, arrays, self.symbols)[0]
        expected = self.expected(arrays)
        assert result.shape == expected.shape
        if not expected.size:
            return 0.0
        return float(abs(result - expected).max() / max(1e-30, abs(expected).max()))


CASES = [
    Case("MatMul", [(5, 7), (7, 9)]),
    Case("MatMul", [(1, 1), (1, 1)]),
    Case("MatMul", [(2, 3, 65, 33), (2, 3, 33, 130)]),
    Case("MatMul", [(2, 1, 30, 33), (3, 33, 20)]),
    Case("MatMul", [(1, S, 33), (N, 33, S)], symbols={"s": 37, "n": 3}, output=(N, S, S)),
    Case("MatMul", [(N, S, 33), (N, 33, S)], symbols={"s": 50, "n": 1}, output=(N, S, S)),
    Case("MatMul", [(N, S, 33), (N, 33, S)], symbols={"s": 0, "n": 2}, output=(N, S, S)),
    Case("MatMul", [(33,), (33, 20)]),
    Case("MatMul", [(40, 33), (33,)]),
    Case("MatMul", [(33,), (33,)]),
    Case("MatMul", [(2, 17, 33), (33, 70)], "b"),
    Case("MatMul", [(N, S, 33), (33, 20)], "b", symbols={"s": 13, "n": 2}, output=(N, S, 20)),
    Case("MatMul", [(33, 7), (7,)], "b"),
    Case("MatMul", [(5, 0), (0, 9)]),
    Case("MatMul", [(0, 7), (7, 9)], "b"),
    Case("MatMul", [(4, 7), (7, 0)]),
    Case("Gemm", [(13, 21), (21, 35), (35,)], "bc"),
    Case("Gemm", [(13, 21), (21, 35), (1,)], "bc", {"beta": 2.0}),
    Case("Gemm", [(13, 21), (21, 64)], "b", {"alpha": 2.0}),
    Case(
        "Gemm", [(21, 13), (35, 21), (35,)], "bc",
        {"transA": 1, "transB": 1, "alpha": 0.5, "beta": 0.25},
    ),
    Case(
        "Gemm", [(21, 13), (35, 21), (13, 35)], "",
        {"transA": 1, "transB": 1, "alpha": 0.5, "beta": 0.25},
    ),
    Case("Gemm", [(21, 40), (21, 35), (1, 35)], "", {"transA": 1, "beta": 0.25}),
    Case(
        "Gemm", [(13, 21), (21, 35), (35,), (13, 35), (35,), ()], "bc",
        {"num_own": 3, "epilogue": RELU},
    ),
    Case(
        "Gemm", [(13, 21), (21, 35), (35,), (13, 35), (35,), ()], "",
        {"num_own": 3, "epilogue": RELU},
    ),
    Case("MatMul", [(13, 21), (21, 35), (13, 35)], "b", {"num_own": 2, "epilogue": SILU}),
    Case("MatMul", [(13, 21), (21, 35), (35,)], "", {"num_own": 2, "epilogue": SILU}),
    Case("MatMul", [(70, 21), (21, 2), (70, 2)], "b", {"num_own": 2, "epilogue": SILU}),
    Case("MatMul", [(70, 21), (21, 2), (2,)], "b", {"num_own": 2, "epilogue": SILU}),
]  # fmt: skip


@pytest.mark.parametrize("target", RUNNABLE, ids=lambda item: item.name)
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.op}{case.shapes}{case.const}")
def test_products_agree_with_float64(case: Case, target: targets.Target) -> None:
    assert case.error(target) < 1e-6


@pytest.mark.parametrize("target", RUNNABLE, ids=lambda item: item.name)
@pytest.mark.parametrize("const", ["", "b"])
@pytest.mark.parametrize("dtype", ["float64", "int32", "int64"])
def test_other_dtypes_are_as_exact_as_numpy(dtype: str, const: str, target: targets.Target) -> None:
    shapes = [(30, 33), (33, 37)] if const else [(3, 30, 33), (3, 33, 37)]
    limit = 1e-15 if dtype == "float64" else 0.0
    assert Case("MatMul", shapes, const, dtype=dtype).error(target) <= limit


@pytest.mark.parametrize("const", ["", "b"])
def test_a_nan_or_infinity_in_a_row_stays_in_that_row(const: str) -> None:
    case = Case("MatMul", [(9, 21), (21, 35)], const)
    arrays = case.arrays()
    arrays["a"][4, 3] = np.nan
    arrays["a"][6, 0] = np.inf
    lowered, graph = case.lowered(targets.host())
    result = runner.run_lowered(lowered, graph, targets.host(), arrays)[0]
    assert np.isnan(result[4]).all()
    assert np.isinf(result[6]).all()
    assert np.isfinite(np.delete(result, [4, 6], axis=0)).all()


@pytest.mark.parametrize("const", ["", "b"])
def test_every_row_is_the_same_whatever_other_rows_there_are(const: str) -> None:
    many = Case("MatMul", [(61, 70), (70, 90)], const).arrays()
    results = []
    for rows in (1, 2, 7, 61):
        case = Case("MatMul", [(rows, 70), (70, 90)], const)
        arrays = {"a": many["a"][:rows], "b": many["b"]}
        graph = case.graph(arrays)
        lowered = matmul.lower(graph.nodes[0], graph, targets.host())
        result = runner.run_lowered(lowered, graph, targets.host(), arrays)[0]
        results.append(result[0].tobytes())
    assert len(set(results)) == 1


@pytest.mark.parametrize("const", ["", "b"])
def test_aarch64_code_is_emitted(const: str) -> None:
    lowered, _ = Case("MatMul", [(3, 30, 33), (33, 37)], const).lowered(targets.named("aarch64"))
    for one in lowered.steps:
        assert assemble.compile_kernel(one.kernel.text, targets.named("aarch64"))


def test_a_product_that_no_kernel_computes_says_what_is_missing() -> None:
    case = Case("MatMul", [(3, 4), (4, 5)], dtype="float16")
    graph = case.graph(case.arrays())
    assert "float16" in str(matmul.gap(graph.nodes[0], graph))
    rows = Case("Gemm", [(3, 4), (4, 5), (3, 1)])
    graph = rows.graph(rows.arrays())
    assert "C" in str(matmul.gap(graph.nodes[0], graph))
