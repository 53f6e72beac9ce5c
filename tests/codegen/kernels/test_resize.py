"""Resize against the reference evaluator, mode by mode."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from castiron.compiler import target as targets
from castiron.compiler.codegen import assemble, families
from castiron.graph.graph import Graph, Node
from castiron.tensor import dim
from tests.codegen import runner

RUNNABLE = [item for item in targets.ALL if runner.can_run(item)]
COORDINATES = (
    "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric",
)  # fmt: skip
W = dim.symbol("w")


@dataclass
class Case:
    """Shapes are channels-first here, as the reference wants them."""

    shape: tuple[int, ...]
    sizes: tuple[int, ...]
    mode: str
    coordinates: str
    scales: tuple[float, ...] | None = None
    more: dict[str, Any] = field(default_factory=dict)
    roi: tuple[float, ...] | None = None
    dtype: str = "float32"

    def array(self) -> np.ndarray:
        return (np.random.default_rng(2).standard_normal(self.shape) * 50).astype(self.dtype)

    def expected(self, x: np.ndarray) -> np.ndarray:
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(self.dtype))
        attrs: dict[str, Any] = {
            "mode": self.mode,
            "coordinate_transformation_mode": self.coordinates,
        }
        node = helper.make_node("Resize", ["x", "r", "s", "n"], ["y"], **attrs, **self.more)
        rank = len(self.shape)
        feeds: dict[str, np.ndarray] = {
            "x": x,
            "r": np.array(self.roi or (0,) * rank + (1,) * rank, np.float32),
        }
        if self.scales:
            node.input[3] = ""
            feeds["s"] = np.array(self.scales, np.float32)
        else:
            node.input[2] = ""
            feeds["n"] = np.array(self.sizes, np.int64)
        kinds: dict[str, Any] = {"x": kind, "r": onnx.TensorProto.FLOAT, "s": onnx.TensorProto.FLOAT,
                 "n": onnx.TensorProto.INT64}  # fmt: skip
        graph = helper.make_graph(
            [node], "g",
            [helper.make_tensor_value_info(k, kinds[k], None) for k in feeds],
            [helper.make_tensor_value_info("y", kind, None)],
        )  # fmt: skip
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)])
        answer: Any = ReferenceEvaluator(model).run(None, feeds)
        return np.asarray(answer[0])

    def graph(self) -> Graph:
        rank = len(self.shape)
        last = (0, *range(2, rank), 1)
        shape: list[int | dim.Dim] = [self.shape[axis] for axis in last]
        sizes: list[int | dim.Dim] = [self.sizes[axis] for axis in last]
        if self.sizes[-1] == 2 * self.shape[-1]:
            shape[-2], sizes[-2] = W, 2 * W
        attrs = {
            "mode": self.mode, "coordinate_transformation_mode": self.coordinates,
            "sizes": tuple(sizes), "layout": "NHWC", **self.more,
        }  # fmt: skip
        if self.scales:
            attrs["scales"] = tuple(float(np.float32(self.scales[axis])) for axis in last)
        if self.roi:
            attrs["roi"] = tuple(self.roi[axis] for axis in (*last, *(a + rank for a in last)))
        types = {"x": runner.tensor(shape, self.dtype), "y": runner.tensor(sizes, self.dtype)}
        return runner.graph_of(Node("Resize", ("x",), ("y",), attrs), types, {})


def _cases() -> list[Case]:
    found = []
    for coordinates, mode in itertools.product(COORDINATES, ("nearest", "linear", "cubic")):
        found.append(Case((1, 5, 4, 6), (1, 5, 7, 5), mode, coordinates))
        found.append(Case((2, 3, 5, 6), (2, 3, 10, 12), mode, coordinates, (1, 1, 2, 2)))
        found.append(Case((1, 3, 5, 6), (1, 3, 3, 4), mode, coordinates, (1, 1, 0.6, 0.7)))
        found.append(Case((1, 20, 5, 6), (1, 20, 1, 9), mode, coordinates))
    rounding = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
    for nearest, coordinates in itertools.product(rounding, COORDINATES):
        more = {"nearest_mode": nearest}
        scales = (1, 1, 1.5, 2.5)
        found.append(Case((1, 3, 4, 6), (1, 3, 6, 15), "nearest", coordinates, scales, more))
    found += [
        Case((2, 3, 7), (2, 3, 14), "nearest", "asymmetric"),
        Case((2, 3, 7), (2, 3, 10), "linear", "half_pixel"),
        Case((2, 1, 9, 37), (2, 1, 23, 50), "linear", "align_corners"),
        Case((1, 2, 4, 5), (1, 2, 8, 10), "nearest", "asymmetric", dtype="uint8"),
        Case((1, 2, 4, 5), (1, 2, 8, 10), "nearest", "asymmetric", dtype="int64"),
        Case((1, 3, 4, 6), (1, 3, 7, 9), "cubic", "half_pixel", None, {"exclude_outside": 1}),
        Case((1, 3, 4, 6), (1, 3, 7, 9), "cubic", "half_pixel", None, {"cubic_coeff_a": -0.5}),
        Case((1, 3, 4, 6), (1, 3, 3, 3), "linear", "tf_crop_and_resize", None,
             {"extrapolation_value": 10.0}, (0, 0, 0.4, 0.6, 1, 1, 1.2, 1.7)),
        Case((1, 3, 4, 6), (1, 3, 3, 3), "nearest", "tf_crop_and_resize", None,
             {"extrapolation_value": 10.0}, (0, 0, 0.25, 0.5, 1, 1, 0.625, 0.875)),
    ]  # fmt: skip
    return found


CASES = _cases()
EXPECTED = {id(case): case.expected(case.array()) for case in CASES}


@pytest.mark.parametrize("target", RUNNABLE, ids=lambda item: item.name)
def test_resize_agrees_with_the_reference(target: targets.Target) -> None:
    for case in CASES:
        graph, x = case.graph(), case.array()
        assert families.gap(graph.nodes[0], graph) is None
        lowered = families.lower(graph.nodes[0], graph, target)
        feeds = {"x": np.moveaxis(x, 1, -1)}
        (result,) = runner.run_lowered(lowered, graph, target, feeds, {"w": case.shape[-1]})
        found = np.moveaxis(result, -1, 1)
        limit = 0 if case.mode == "nearest" else 2e-4
        assert np.allclose(found, EXPECTED[id(case)], rtol=0, atol=limit), case


def test_aarch64_code_is_emitted() -> None:
    target = targets.named("aarch64")
    for text in {
        one.kernel.text
        for case in CASES
        for one in families.lower(case.graph().nodes[0], case.graph(), target).steps
    }:
        assert assemble.compile_kernel(text, target)


def test_antialiasing_and_changed_channels_are_gaps() -> None:
    smooth = Case((1, 3, 4, 6), (1, 3, 2, 3), "linear", "half_pixel", None, {"antialias": 1})
    graph = smooth.graph()
    assert "antialias" in str(families.gap(graph.nodes[0], graph))
    wide = Case((1, 3, 4, 6), (1, 6, 4, 6), "linear", "half_pixel").graph()
    assert "channel" in str(families.gap(wide.nodes[0], wide))
