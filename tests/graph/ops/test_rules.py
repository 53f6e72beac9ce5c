"""Type rules on random nodes: symbolic extents, bound to numbers, must be ONNX's own answer."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from castiron.compiler.passes.infer_shapes import infer_shapes
from castiron.compiler.passes.simplify import simplify
from castiron.graph.graph import Extent, Graph, Node, TensorType
from castiron.graph.ops import table
from castiron.graph.verify import verify
from castiron.tensor import dim as dims
from castiron.tensor import dtype as dtypes
from tests.graph.ops.problems import PROBLEMS, Operand, Problem
from tests.passes import run_graph

_OPSET = 22
# The evaluator is slow, or wrong, or differs by rule for these; other tests compare their numbers.
_LEFT_TO_OTHERS = frozenset({"LSTM", "GRU", "RNN", "LpPool"})


def _symbolic(problem: Problem, is_symbol: list[bool]) -> tuple[Graph, dict[str, int]]:
    """The graph of the node alone; extents picked by ``is_symbol`` are symbols, equal ones shared."""
    names = tuple(f"x{i}" if operand else "" for i, operand in enumerate(problem.operands))
    picks = iter(is_symbol * 40)
    types, constants, bound = {}, {}, {}
    for name, operand in zip(names, problem.operands, strict=True):
        if operand is None:
            continue
        if operand.data is not None:
            constants[name] = operand.data
        shape: list[Extent] = []
        for extent in operand.shape:
            if extent > 1 and next(picks) and operand.data is None:
                bound[f"s{extent}"] = extent
                shape.append(dims.symbol(f"s{extent}"))
            else:
                shape.append(extent)
        types[name] = TensorType(dtypes.named(operand.dtype), tuple(shape))
    outputs = tuple(f"y{i}" for i in range(problem.num_outputs))
    node = Node(problem.op, names, outputs, problem.attrs, "node")
    inputs = tuple(name for name in names if name and name not in constants)
    return Graph("g", (node,), inputs, outputs, types, constants), bound


def _expected(problem: Problem) -> list[tuple[str, tuple[int, ...]]]:
    """dtype and shape of each output by ONNX's shape inference on the concrete node."""
    names = [f"x{i}" if operand else "" for i, operand in enumerate(problem.operands)]
    pairs = [(n, o) for n, o in zip(names, problem.operands, strict=True) if o is not None]
    inputs = [_value(name, operand) for name, operand in pairs if operand.data is None]
    constants = [numpy_helper.from_array(o.data, n) for n, o in pairs if o.data is not None]
    outputs = [f"y{i}" for i in range(problem.num_outputs)]
    node = helper.make_node(problem.op, names, outputs, **problem.attrs)
    values = [onnx.ValueInfoProto(name=name) for name in outputs]
    graph = helper.make_graph([node], "g", inputs, values, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)])
    found = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
    return [_described(value) for value in found.graph.output]


def _value(name: str, operand: Operand) -> onnx.ValueInfoProto:
    code = helper.np_dtype_to_tensor_dtype(np.dtype(operand.dtype))
    return helper.make_tensor_value_info(name, code, operand.shape)


def _described(value: onnx.ValueInfoProto) -> tuple[str, tuple[int, ...]]:
    kind = value.type.tensor_type
    dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type).name
    return dtype, tuple(item.dim_value for item in kind.shape.dim)


def _bound_types(graph: Graph, bound: dict[str, int]) -> list[tuple[str, tuple[int, ...]]]:
    found = []
    for name in graph.outputs:
        shape = tuple(dims.evaluate(extent, bound) for extent in graph.shape(name))
        found.append((graph.dtype(name).name, shape))
    return found


@pytest.mark.parametrize("op", sorted(PROBLEMS))
@settings(max_examples=12)
@given(data=st.data())
def test_bound_symbolic_types_are_those_of_onnx(op: str, data: st.DataObject) -> None:
    problem = data.draw(PROBLEMS[op])
    graph, bound = _symbolic(problem, data.draw(st.lists(st.booleans(), min_size=1, max_size=6)))
    expected = _expected(problem)
    inferred = infer_shapes(graph)
    assert _bound_types(inferred, bound) == expected
    for check in inferred.checks:
        assert dims.evaluate(check.left, bound) == dims.evaluate(check.right, bound)


@pytest.mark.parametrize("op", sorted(PROBLEMS))
@settings(max_examples=12)
@given(data=st.data())
def test_the_simple_form_has_the_same_types_and_results(op: str, data: st.DataObject) -> None:
    problem = data.draw(PROBLEMS[op])
    graph, bound = _symbolic(problem, data.draw(st.lists(st.booleans(), min_size=1, max_size=6)))
    before = infer_shapes(graph)
    after = simplify(graph)
    verify(after, "simplify")
    assert _bound_types(after, bound) == _expected(problem)
    if op in _LEFT_TO_OTHERS:
        return
    inputs = {
        f"x{i}": _numbers(operand)
        for i, operand in enumerate(problem.operands)
        if operand is not None and operand.data is None
    }
    wanted, found = run_graph.run(before, inputs), run_graph.run(after, inputs)
    for name, array in wanted.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-5)


def _numbers(operand: Operand) -> np.ndarray:
    values = np.random.default_rng(len(operand.shape)).standard_normal(operand.shape)
    if operand.dtype == "int64":
        return np.zeros(operand.shape, np.int64)
    return np.asarray(np.abs(values) + 0.5).astype(operand.dtype)


def test_every_problem_has_a_rule() -> None:
    assert set(PROBLEMS) <= set(table.RULES)


def test_an_op_without_a_rule_keeps_what_the_loader_knows() -> None:
    kind = TensorType(dtypes.FLOAT32, (3,))
    node = Node("If", ("c",), ("y",))
    types = {"c": TensorType(dtypes.BOOL, ()), "y": kind}
    graph = infer_shapes(Graph("g", (node,), ("c",), ("y",), types, {}))
    assert graph.types["y"] == kind
