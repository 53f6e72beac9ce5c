"""ONNX's own node cases: every inferred type is what the evaluator makes, before and after passes."""

from __future__ import annotations

import numpy as np
import pytest
from onnx.backend.test.case import node as node_cases
from onnx.backend.test.case.test_case import TestCase

from castiron import errors
from castiron.compiler.passes.fold_constants import fold_constants
from castiron.compiler.passes.infer_shapes import infer_shapes
from castiron.compiler.passes.simplify import simplify
from castiron.graph.verify import verify
from castiron.loader import evaluator, onnx
from tests.passes import run_graph

_LEFT_OUT = ("bernoulli", "optional_has")  # random; inputs without a name
_NUMERIC = "biufSUO"
_PARTS = 8


def _feeds(case: TestCase) -> list[np.ndarray] | None:
    """The arrays of a case's first data set; None for sequences and dtypes that numpy lacks."""
    if not case.data_sets or any(word in case.name for word in _LEFT_OUT):
        return None
    inputs, outputs = case.data_sets[0]
    if not all(isinstance(item, np.ndarray | np.generic) for item in (*inputs, *outputs)):
        return None
    arrays = [np.asarray(item) for item in inputs]
    return arrays if all(array.dtype.kind in _NUMERIC for array in arrays) else None


def _survives_passes(case: TestCase, arrays: list[np.ndarray]) -> None:
    assert case.model is not None
    graph = infer_shapes(onnx.load(case.model))
    inputs = dict(zip(graph.inputs, arrays, strict=False))
    wanted = run_graph.run(graph, inputs)
    after = simplify(infer_shapes(fold_constants(graph, evaluator.evaluate_node)))
    verify(after, "simplify")
    for name, array in run_graph.run(after, inputs).items():
        if array.dtype.kind == "f":
            np.testing.assert_allclose(array, wanted[name], rtol=1e-3, atol=1e-5)
        else:
            np.testing.assert_array_equal(array, wanted[name])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("part", range(_PARTS))
def test_node_cases_survive_the_first_passes(part: int) -> None:
    cases = node_cases.collect_testcases("")[part::_PARTS]
    tried, failures = 0, []
    for case in cases:
        arrays = _feeds(case)
        if arrays is None:
            continue
        try:
            _survives_passes(case, arrays)
            tried += 1
        except errors.LoadError:
            continue
        except AssertionError as error:
            failures.append(f"{case.name}: {str(error).strip().splitlines()[0]}")
    assert not failures, "\n".join(failures)
    assert tried > 180
