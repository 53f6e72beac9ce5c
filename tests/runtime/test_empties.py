"""Models run with extents of 0, windows beyond their input and indices beyond their axis.

Every answer is the one of ONNX's reference evaluator, never what lay in memory: poisoned.py runs
each model beside fences and over different patterns. What ONNX leaves open is refused.
"""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import reference

import castiron
from tests import built, poisoned
from tests.loader import models

Shapes = Sequence[tuple[int, ...]]
Declared = Sequence[Sequence[int | str]]
EDGE = [np.iinfo(np.int64).min, -4, -1, 0, 2, 3, 1 << 33, np.iinfo(np.int64).max]
RANDOM = np.random.default_rng(8)


def drawn(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def model(
    op: str, declared: Declared, constants: Sequence[np.ndarray], **attrs: Any
) -> onnx.ModelProto:
    """One node: float32 inputs x0..., then constants c0...; `kinds` names other dtypes."""
    count, opset = attrs.pop("outputs", 1), attrs.pop("opset", 18)
    kinds = attrs.pop("kinds", ["float32"] * len(declared))
    values = [
        models.value(f"x{n}", shape, onnx.helper.np_dtype_to_tensor_dtype(np.dtype(kind)))
        for n, (shape, kind) in enumerate(zip(declared, kinds, strict=True))
    ]
    known = {f"c{n}": array for n, array in enumerate(constants)}
    outputs = [f"y{n}" for n in range(count)]
    inputs = [value.name for value in values]
    node = models.node(op, [*inputs, *known], outputs, **attrs)
    return models.model([node], values, outputs, known, opset=opset)


def feeds_of(shapes: Shapes) -> dict[str, np.ndarray]:
    return {f"x{n}": drawn(*shape) for n, shape in enumerate(shapes)}


def answers(source: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    evaluator = reference.ReferenceEvaluator(source)
    with np.errstate(all="ignore"):
        return dict(zip(evaluator.output_names, evaluator.run(None, dict(feeds)), strict=True))


def check(instance: castiron.Instance, source: onnx.ModelProto, shapes: Shapes) -> None:
    feeds = feeds_of(shapes)
    found, expected = poisoned.run(instance, feeds), answers(source, feeds)
    assert not isinstance(found, str), found
    for name, array in expected.items():
        assert found[name].shape == np.shape(array)
        np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-5)


NONE = np.zeros(0, np.float32)
ANSWERED: dict[str, tuple[onnx.ModelProto, Sequence[Shapes]]] = {
    "pad_constant": (
        model("Pad", [["n", "m"]], [ints(1, 0, 1, 2)]),
        [[(0, 0)], [(0, 3)], [(3, 0)]],
    ),
    "slice_across": (
        model("Slice", [["n", "m"]], [ints(-1), ints(1 << 40), ints(1)]),
        [[(0, 3)], [(2, 1)]],
    ),
    "slice_back": (
        model("Slice", [["n", "m"]], [ints(-1), ints(-(1 << 40)), ints(0), ints(-2)]),
        [[(0, 3)], [(1, 2)], [(4, 2)]],
    ),
    "resize_scaled": (
        model("Resize", [["n", 2, "h", "w"]], [NONE, np.array([1, 1, 2, 2], np.float32)],
              mode="linear"),
        [[(0, 2, 3, 3)], [(1, 2, 1, 1)]],
    ),
    "matmul": (
        model("MatMul", [["n", "k"], ["k", "m"]], []),
        [[(2, 0), (0, 3)], [(0, 2), (2, 3)], [(33, 0), (0, 17)], [(2, 3), (3, 0)]],
    ),
    "gemm": (
        model("Gemm", [["n", "k"], ["k", "m"], ["m"]], []),
        [[(2, 0), (0, 3), (3,)], [(0, 2), (2, 3), (3,)]],
    ),
    "conv_of_padding": (
        model("Conv", [["n", 3, "h", "w"]], [drawn(4, 3, 3, 3), drawn(4)], pads=[2] * 4),
        [[(1, 3, 0, 0)], [(1, 3, 0, 5)], [(2, 3, 5, 0)], [(0, 3, 5, 5)], [(1, 3, 1, 1)]],
    ),
    "depthwise_of_padding": (
        model("Conv", [["n", 16, "h", "w"]], [drawn(16, 1, 3, 3)], pads=[2] * 4, group=16),
        [[(1, 16, 0, 0)], [(1, 16, 0, 5)], [(2, 16, 5, 0)], [(0, 16, 5, 5)]],
    ),
    "conv_of_whole_tiles": (
        model("Conv", [["n", 32, "h", "w"]], [drawn(32, 32, 3, 3)], pads=[1] * 4),
        [[(1, 32, 0, 0)], [(1, 32, 3, 0)], [(0, 32, 9, 9)], [(1, 32, 1, 1)]],
    ),
    "max_pool": (
        model("MaxPool", [[1, "c", "h", "w"]], [], kernel_shape=[3, 3], pads=[1] * 4),
        [[(1, 0, 3, 3)], [(1, 2, 1, 1)], [(1, 17, 2, 1)]],
    ),
    "reduce_sum": (
        model("ReduceSum", [["n", "m", "k"]], [ints(1)]),
        [[(2, 0, 3)], [(0, 2, 3)], [(2, 0, 40)], [(2, 3, 0)]],
    ),
    "reduce_inner": (
        model("ReduceProd", [["n", "m"]], [ints(-1)]),
        [[(3, 0)], [(0, 3)]],
    ),
    "reduce_all": (model("ReduceSum", [["n", "m"]], []), [[(0, 0)], [(3, 0)]]),
    "softmax": (
        model("Softmax", [["n", "m", "k"]], [], axis=1),
        [[(2, 0, 3)], [(0, 2, 3)], [(2, 3, 0)]],
    ),
    "concat": (
        model("Concat", [["n", "m"], ["n", "k"]], [], axis=1),
        [[(3, 0), (3, 2)], [(3, 2), (3, 0)], [(0, 2), (0, 1)], [(3, 0), (3, 0)]],
    ),
    "split": (
        model("Split", [["n", "m"]], [], axis=1, num_outputs=2, outputs=2),
        [[(0, 3)], [(3, 0)], [(3, 1)]],
    ),
    "tile": (model("Tile", [["n", "m"]], [ints(2, 3)]), [[(0, 2)], [(2, 0)]]),
    "cumsum": (model("CumSum", [["n", "m"]], [np.array(1)]), [[(0, 2)], [(2, 0)]]),
    "transpose": (model("Transpose", [["n", "m", "k"]], [], perm=[2, 0, 1]), [[(9, 0, 9)]]),
    "lstm": (
        model("LSTM", [["t", "b", 4]], [drawn(2, 20, 4), drawn(2, 20, 5)], outputs=3,
              hidden_size=5, direction="bidirectional", opset=14),
        [[(3, 0, 4)]],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", ANSWERED)
def test_nothing_is_answered_as_the_reference_does(case: str, folder: pathlib.Path) -> None:
    source, runs = ANSWERED[case]
    instance = built.loaded(source, folder, name=case)
    for shapes in runs:
        check(instance, source, shapes)


def resized(*sizes: int, **attrs: Any) -> onnx.ModelProto:
    return model("Resize", [[1, 2, "h", "w"]], [NONE, NONE, ints(*sizes)], **attrs)


REFUSED: dict[str, tuple[onnx.ModelProto, Sequence[Shapes], str]] = {
    "pad_edge": (
        model("Pad", [["n", "m"]], [ints(0, 1, 0, 0)], mode="edge"),
        [[(1, 0)]], "an empty axis has nothing to pad with",
    ),
    "pad_reflect": (
        model("Pad", [["n", "m"]], [ints(1, 0, 0, 0)], mode="reflect"),
        [[(0, 2)]], "an empty axis has nothing to pad with",
    ),
    "pad_crop": (
        model("Pad", [["n", "m"]], [ints(0, 1, 0, -2)]),
        [[(3, 0)]], "no more may be cropped than there is",
    ),
    "slice_first": (
        model("Slice", [["n", "m"]], [ints(0), ints(1), ints(0)]),
        [[(0, 3)]], "too few elements to take from 0 on",
    ),
    "slice_last": (
        model("Slice", [["n", "m"]], [ints(-1), ints(1 << 40), ints(1)]),
        [[(3, 0)]], "too few elements to take from m - 1 on",
    ),
    "slice_all_but": (
        model("Slice", [["n", "m"]], [ints(0), ints(-1), ints(1)]),
        [[(3, 0)]], "no extent may be negative",
    ),
    "gather_constant": (
        model("Gather", [["n", "m"]], [np.array(0)], axis=1),
        [[(3, 0)]], "each index must lie inside the axis",
    ),
    "resize_nearest": (
        resized(1, 2, 6, 6, mode="nearest"),
        [[(1, 2, 0, 4)], [(1, 2, 4, 0)]], "an empty axis cannot be resized to more",
    ),
    "resize_linear": (
        resized(1, 2, 6, 6, mode="linear"),
        [[(1, 2, 0, 4)]], "an empty axis cannot be resized to more",
    ),
    "topk": (
        model("TopK", [["n", "m"]], [ints(1)], outputs=2),
        [[(3, 0)]], "k must not be larger than the axis",
    ),
    "argmax": (
        model("ArgMax", [["n", "m"]], [], axis=1),
        [[(3, 0)]], "no position can be named on an empty axis",
    ),
    "expand": (
        model("Expand", [["n", "m"]], [ints(4, 3)]),
        [[(2, 3)], [(4, 0)]], "an axis expands only from 1",
    ),
    "pool": (
        model("AveragePool", [[1, "c", "h", "w"]], [], kernel_shape=[2, 2]),
        [[(1, 2, 0, 3)]], "the input must be as large as the window",
    ),
    "depth_to_space": (
        model("DepthToSpace", [["n", "c", "h", "w"]], [], blocksize=2),
        [[(1, 5, 2, 2)]], "channels must be whole blocks",
    ),
    "space_to_depth": (
        model("SpaceToDepth", [["n", 2, "h", "w"]], [], blocksize=2),
        [[(1, 2, 3, 2)]], "rows and columns must be whole blocks",
    ),
    "group_norm": (
        model("GroupNormalization", [["n", "c", "w"], ["c"], ["c"]], [], num_groups=2, opset=21),
        [[(1, 3, 4), (3,), (3,)]], "channels must be whole groups",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_has_no_answer_is_refused_in_words(case: str, folder: pathlib.Path) -> None:
    source, runs, reason = REFUSED[case]
    instance = built.loaded(source, folder, name=case)
    for shapes in runs:
        found = poisoned.run(instance, feeds_of(shapes))
        assert isinstance(found, str)
        assert reason in found


def refused(source: onnx.ModelProto, feeds: Mapping[str, np.ndarray], folder: pathlib.Path) -> str:
    name = f"refused_{source.graph.node[-1].op_type}"
    found = poisoned.run(built.loaded(source, folder, name=name), feeds)
    assert isinstance(found, str), found
    return found


def test_indices_for_more_than_the_data_are_refused(folder: pathlib.Path) -> None:
    kinds = ["float32", "int64", "float32"]
    x, few, many = drawn(2, 3), np.zeros((1, 3), np.int64), np.zeros((5, 3), np.int64)
    gather = model("GatherElements", [["n", "m"], ["k", "l"]], [], axis=1, kinds=kinds[:2])
    assert "more indices than data" in refused(gather, {"x0": x, "x1": many}, folder)
    scatter = model(
        "ScatterElements", [["n", "m"], ["k", "l"], ["k", "l"]], [], axis=1, kinds=kinds
    )
    feeds = {"x0": x, "x1": many, "x2": drawn(5, 3)}
    assert "more indices than data" in refused(scatter, feeds, folder)
    scatter = model("ScatterElements", [["n", "m"], ["k", "l"], ["u", "v"]], [], kinds=kinds)
    assert "float32[k, l]" in refused(scatter, {"x0": x, "x1": few, "x2": drawn(1, 1)}, folder)
    rows = model("ScatterND", [["n", "m"], ["k", 1], ["u", "v"]], [], kinds=kinds)
    feeds = {"x0": x, "x1": np.zeros((2, 1), np.int64), "x2": drawn(1, 3)}
    assert "float32[k, m]" in refused(rows, feeds, folder)
    batched = model("GatherND", [["n", "m"], ["k", 1]], [], batch_dims=1, kinds=kinds[:2])
    assert "int64[n, 1]" in refused(batched, {"x0": x, "x1": np.zeros((3, 1), np.int64)}, folder)


def test_a_first_state_of_another_batch_is_refused(folder: pathlib.Path) -> None:
    for op, gates in (("LSTM", 4), ("GRU", 3), ("RNN", 1)):
        weights = {"w": drawn(1, gates * 5, 4), "r": drawn(1, gates * 5, 5)}
        values = [models.value("x", ["t", "b", 4]), models.value("h", [1, "s", 5])]
        node = models.node(op, ["x", "w", "r", "", "", "h"], ["y"], hidden_size=5)
        source = models.model([node], values, ["y"], weights, opset=14)
        assert "float32[1, b, 5]" in refused(
            source, {"x": drawn(2, 3, 4), "h": drawn(1, 1, 5)}, folder
        )


def test_axes_that_the_data_decide_are_compared_when_they_are_known(folder: pathlib.Path) -> None:
    nodes = [
        models.node("NonZero", ["a"], ["p"]),
        models.node("NonZero", ["b"], ["q"]),
        models.node("Add", ["p", "q"], ["y"]),
    ]
    values = [models.value("a", ["n"]), models.value("b", ["m"])]
    instance = built.loaded(models.model(nodes, values, ["y"]), folder, name="decided")
    ones = np.ones(5, np.float32)
    for left, right in ((3, 3), (1, 4), (4, 1), (0, 0)):
        found = poisoned.run(instance, {"a": ones[:left], "b": ones[:right]})
        assert not isinstance(found, str)
        np.testing.assert_array_equal(found["y"][0], np.arange(left) + np.arange(right))
    for left, right in ((2, 5), (5, 2), (0, 4)):
        found = poisoned.run(instance, {"a": ones[:left], "b": ones[:right]})
        assert isinstance(found, str)
        assert "axes that broadcast must agree or be 1" in found


def test_a_shape_of_another_input_expands_only_from_1(folder: pathlib.Path) -> None:
    nodes = [models.node("Shape", ["z"], ["s"]), models.node("Expand", ["x", "s"], ["y"])]
    values = [models.value("z", ["a", "b"]), models.value("x", ["n", "m"])]
    instance = built.loaded(models.model(nodes, values, ["y"]), folder, name="expanded")
    for shape, asked in (((1, 3), (4, 3)), ((2, 1), (1, 6)), ((0, 2), (0, 2))):
        x = drawn(*shape)
        found = poisoned.run(instance, {"z": np.zeros(asked, np.float32), "x": x})
        assert not isinstance(found, str)
        np.testing.assert_array_equal(found["y"], x + np.zeros(asked, np.float32))
    found = poisoned.run(instance, {"z": np.zeros((4, 5), np.float32), "x": drawn(2, 5)})
    assert isinstance(found, str)


INDEXED: dict[str, tuple[str, Declared, dict[str, Any]]] = {
    "rows": ("Gather", [["n", "m"], ["k"]], {"axis": 0}),
    "columns": ("Gather", [["n", "m"], ["k"]], {"axis": 1}),
    "elements": ("GatherElements", [["n", "m"], ["k", "l"]], {"axis": 0}),
    "tuples": ("GatherND", [["n", "m"], ["k", 2]], {}),
    "scattered": ("ScatterElements", [["n", "m"], ["k", "l"], ["k", "l"]], {"axis": 0}),
    "scattered_rows": ("ScatterND", [["n", "m"], ["k", 1], ["k", "m"]], {}),
}
INDICES = {"k": 8, "l": 3, "n": 3, "m": 3}


@pytest.mark.parametrize("rows", [0, 1, 3])
@pytest.mark.parametrize("case", INDEXED)
def test_any_index_stays_inside(case: str, rows: int, folder: pathlib.Path) -> None:
    op, declared, attrs = INDEXED[case]
    kinds = ["float32", "int64", "float32"][: len(declared)]
    instance = built.loaded(model(op, declared, [], kinds=kinds, **attrs), folder, name=case)
    extents = {**INDICES, "n": rows}
    shapes = [tuple(extents.get(str(extent), extent) for extent in one) for one in declared]
    feeds = feeds_of([tuple(map(int, shape)) for shape in shapes])
    feeds["x1"] = np.resize(np.array(EDGE), feeds["x1"].shape)
    assert not isinstance(poisoned.run(instance, feeds), str)


def test_an_interpreted_step_makes_what_native_ones_will_read(folder: pathlib.Path) -> None:
    nodes = [
        models.node("Slice", ["x", "one", "end", "one"], ["cut"]),
        models.node("LayerNormalization", ["cut", "scale"], ["normed"]),
        models.node("Mul", ["normed", "two"], ["y"]),
    ]
    constants = {"one": ints(1), "end": ints(1 << 40), "two": np.array(2, np.float32)}
    values = [models.value("x", ["n", "m"]), models.value("scale", ["k"])]
    instance = built.loaded(models.model(nodes, values, ["y"], constants), folder, name="grown")
    feeds = {"x": drawn(3, 6), "scale": np.ones(5, np.float32)}
    assert not isinstance(poisoned.run(instance, feeds), str)
    found = poisoned.run(instance, {"x": drawn(3, 2), "scale": np.ones(5, np.float32)})
    assert isinstance(found, str)
    assert "found shape [3, 5]" in found


def test_a_given_output_shape_leaves_pads_that_only_the_input_decides(folder: pathlib.Path) -> None:
    source = model("ConvTranspose", [[1, 3, "h", "w"]], [drawn(3, 4, 3, 3)], output_shape=[5, 6])
    instance = built.loaded(source, folder, name="spread")
    found = poisoned.run(instance, {"x0": drawn(1, 3, 4, 5)})
    assert not isinstance(found, str)
    assert found["y0"].shape == (1, 4, 5, 6)
