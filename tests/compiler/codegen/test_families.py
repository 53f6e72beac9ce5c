"""Each op of the tables has a gap and a lowering, and each elementwise op has its loop."""

from __future__ import annotations

import pathlib

import numpy as np

from castiron.compiler.codegen import families
from castiron.compiler.codegen.kernels import fused
from castiron.graph.graph import Graph, Node, TensorType
from castiron.graph.ops import elementwise, table
from castiron.tensor import dim as dims
from castiron.tensor import dtype as dtypes
from tests import built
from tests.loader import models


def test_every_family_says_what_it_lacks_and_lowers_the_rest() -> None:
    assert set(families.GAPS) == set(families.LOWERINGS)


def test_every_elementwise_op_has_a_kernel_family() -> None:
    known = [op for op in table.RULES if elementwise.is_elementwise(Node(op, (), ()))]
    assert sorted(known) == sorted(fused.OPS)


def test_an_op_without_a_family_is_named() -> None:
    graph = Graph("g", (), (), (), {}, {})
    assert families.gap(Node("Compress", (), ()), graph) == "no kernel for op Compress"


def test_a_result_whose_extent_only_the_data_know_has_no_kernel() -> None:
    kind = TensorType(dtypes.FLOAT32, (dims.symbol("y_0"),))
    graph = Graph("g", (), ("x",), ("y",), {"x": kind, "y": kind}, {})
    reason = families.gap(Node("Abs", ("x",), ("y",)), graph)
    assert reason == "the data decide the shape of its output"


def test_prelu_runs_native(tmp_path: pathlib.Path) -> None:
    slope = np.arange(4, dtype=np.float32).reshape(4, 1, 1)
    node = models.node("PRelu", ["x", "s"], ["y"])
    model = models.model([node], [models.value("x", ["n", 4, "h", "w"])], ["y"], {"s": slope})
    instance = built.loaded(model, tmp_path)
    assert instance.is_native
    x = np.random.default_rng(0).standard_normal((2, 4, 3, 5)).astype(np.float32)
    np.testing.assert_array_equal(instance.run({"x": x})["y"], np.where(x < 0, x * slope, x))
