"""Shapes of whole graphs: shape arithmetic, checks, symbols of what data decide, refusals."""

from __future__ import annotations

from typing import Any

import pytest

from castiron import errors
from castiron.compiler.passes.infer_shapes import infer_shapes
from castiron.graph.graph import Graph
from castiron.graph.text import type_text
from castiron.tensor import dim as dims
from tests.passes.build import Builder


def _text(graph: Graph, value: str) -> str:
    return type_text(infer_shapes(graph).types[value])


def test_a_reshape_by_computed_sizes_is_known() -> None:
    b = Builder()
    x = b.input("x", ("n", 6, "w"))
    shape = b.add("Shape", x)
    first = b.add("Unsqueeze", b.add("Gather", shape, b.constant(0, "int64"), axis=0), b.ints(0))
    last = b.add("Slice", shape, b.ints(2), b.ints(3))
    double = b.add("Mul", last, b.ints(2))
    target = b.add("Concat", first, b.ints(-1), double, axis=0)
    y = b.add("Reshape", x, target)
    assert _text(b.graph(y), y) == "float32[n, 3, 2*w]"


def test_sizes_that_pass_through_floats_stay_exact() -> None:
    b = Builder()
    x = b.input("x", (1, 3, "h", 8))
    sizes = b.add("Cast", b.add("Slice", b.add("Shape", x), b.ints(2), b.ints(4)), to=1)
    doubled = b.add("Floor", b.add("Mul", sizes, b.constant([2.5, 2.0])))
    whole = b.add("Concat", b.ints(1, 3), b.add("Cast", doubled, to=7), axis=0)
    y = b.add("Resize", x, "", "", whole, mode="nearest")
    assert _text(b.graph(y), y) == "float32[1, 3, (5*h)//2, 16]"


def test_extents_of_inputs_that_must_agree_share_a_symbol() -> None:
    b = Builder()
    y = b.add("Add", b.input("x", ("n", 4)), b.add("Relu", b.input("z", ("m", 4))))
    graph = infer_shapes(b.graph(y))
    assert graph.shape("x") == graph.shape("z") == graph.shape(y)
    assert graph.checks == ()


def test_sizes_that_must_agree_become_a_check() -> None:
    b = Builder()
    x, weights = b.input("x", (1, 1, "h")), b.constant([[[1.0, 1.0]]])
    y = b.add("Add", x, b.add("Conv", x, weights, strides=(2,), pads=(1, 1), out="half"))
    (check,) = infer_shapes(b.graph(y)).checks
    assert {str(check.left), str(check.right)} == {"h", "h//2 + 1"}
    assert "n1" in check.reason


def test_sizes_that_must_be_equal_are_written_alike() -> None:
    b = Builder()
    x = b.input("x", (1, 1, "h"))
    weights = b.constant([[[1.0, 1.0, 1.0]]])
    half = b.add("Conv", x, weights, strides=(2,), pads=(1, 1))
    quarter = b.add("Conv", half, weights, strides=(2,), pads=(1, 1))
    up = b.add("Resize", quarter, "", b.constant([1.0, 1.0, 2.0]), mode="nearest")
    y = b.add("Add", half, up)
    graph = infer_shapes(b.graph(y))
    assert graph.types[half].shape == graph.types[up].shape == graph.types[y].shape


def test_extents_that_data_decide_are_named_after_the_value() -> None:
    b = Builder()
    found = b.add("NonZero", b.input("x", ("n",)))
    y = b.add("Transpose", found, perm=(1, 0))
    assert _text(b.graph(y), y) == f"int64[{found}_1, 1]"


def test_an_unknown_target_shape_keeps_its_rank() -> None:
    b = Builder()
    y = b.add("Reshape", b.input("x", ("n", 4)), b.input("s", (3,), "int64"))
    assert _text(b.graph(y), y) == f"float32[{y}_0, {y}_1, {y}_2]"


def test_an_unknown_op_has_an_unknown_type() -> None:
    b = Builder()
    y = b.add("Relu", b.add("custom::Thing", b.input("x", ("n",))))
    assert _text(b.graph(y), y) == "None[?]"


@pytest.mark.parametrize(
    "op, shapes, attrs, words",
    [
        ("Add", [(2, 3), (2, 4)], {}, "expected equal extents, found 3 and 4"),
        ("MatMul", [(2, 3), (4, 5)], {}, "inner extents"),
        ("Softmax", [(2, 3)], {"axis": 5}, "axis: expected -2 <= axis < 2, found 5"),
        ("Conv", [(1, 3, 8, 8), (4, 2, 3, 3)], {}, "channels must be those of the weights"),
        ("Conv", [(1, 3, 8), (4, 3, 3)], {"strides": (0,)}, "strides: expected positive"),
        ("Concat", [(2, 3), (2,)], {"axis": 0}, "one rank"),
        ("Transpose", [(2, 3)], {"perm": (0, 0)}, "perm"),
        ("MaxPool", [(1, 1, 4)], {"kernel_shape": (9,)}, "the window covers 9"),
        ("Gather", [(2, 3), (1,)], {"axis": "one"}, "cannot use this node's attributes"),
    ],
)
def test_a_malformed_node_is_refused_by_name(
    op: str, shapes: list[tuple[int, ...]], attrs: dict[str, Any], words: str
) -> None:
    b = Builder()
    y = b.add(op, *(b.input(f"x{i}", shape) for i, shape in enumerate(shapes)), **attrs)
    with pytest.raises(errors.BuildError, match=rf"node 'n0' \({op}\)") as raised:
        infer_shapes(b.graph(y))
    assert words in str(raised.value)
    assert "x0: float32[" in str(raised.value)


def test_ceil_mode_drops_windows_that_start_in_the_padding() -> None:
    b = Builder()
    x = b.input("x", (1, 1, "w"))
    y = b.add("MaxPool", x, kernel_shape=(1,), strides=(2,), ceil_mode=1)
    z = b.add("MaxPool", x, kernel_shape=(3,), strides=(2,), ceil_mode=1)
    graph = infer_shapes(b.graph(y, z))
    assert dims.evaluate(graph.shape(y)[2], {"w": 4}) == 2
    assert dims.evaluate(graph.shape(z)[2], {"w": 6}) == 3


@pytest.mark.parametrize(
    "op, constants, attrs, too_small, enough",
    [
        ("MaxPool", [], {"kernel_shape": (4,)}, 2, 4),
        ("Gather", [[-3, 2]], {"axis": 2}, 2, 3),
        ("TopK", [[5]], {}, 4, 5),
        ("Pad", [[0, 0, -2, 0, 0, -1]], {}, 2, 3),
    ],
)
def test_an_input_too_small_for_the_op_breaks_a_check(
    op: str, constants: list[Any], attrs: dict[str, Any], too_small: int, enough: int
) -> None:
    b = Builder()
    x = b.input("x", (1, 2, "w"))
    y = b.add(op, x, *(b.constant(value, "int64") for value in constants), **attrs)

    def holds(width: int) -> bool:
        return all(
            dims.evaluate(check.left, {"w": width}) == dims.evaluate(check.right, {"w": width})
            for check in infer_shapes(b.graph(y)).checks
        )

    assert holds(enough)
    assert not holds(too_small)
