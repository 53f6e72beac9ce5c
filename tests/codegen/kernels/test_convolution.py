"""Conv on the direct, pointwise and depthwise kernels against float64, on every target."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from castiron.compiler import target as targets
from castiron.compiler.codegen import assemble
from castiron.compiler.codegen.kernels import convolution
from castiron.graph import expr
from tests.codegen import runner
from tests.codegen.kernels import windows
from tests.codegen.kernels.windows import HEAVY, LIGHT, Windows

RUNNABLE = [item for item in targets.ALL if runner.can_run(item)]
NONE = (0, 0, 0, 0)
TWO = (2, 2, 2, 2)

DIRECT = [
    Windows((1, 7, 9, 8), 20),
    Windows((2, 7, 9, 8), 20, (1, 1), (2, 2), NONE),
    Windows((2, 8, 9, 5), 20, strides=(2, 2), pads=(0, 1, 1, 0)),
    Windows((1, 17, 19, 3), 20, (7, 7), (2, 2), (3, 3, 3, 3), symbolic=True, epilogue=LIGHT),
    Windows((1, 9, 19, 6), 20, pads=TWO, dilations=(2, 2), epilogue=HEAVY),
    Windows((2, 9, 19, 12), 8, pads=TWO, dilations=(2, 2), group=4, has_bias=False),
    Windows((1, 6, 5, 6), 18, pads=TWO, group=6, epilogue=LIGHT),
    Windows((2, 9, 19, 12), 80, (3, 5), pads=(1, 2, 1, 2), symbolic=True),
    Windows((2, 9, 19, 12), 80, (3, 5), pads=NONE, symbolic=True),
    Windows((1, 1, 1, 3), 5),
    Windows((1, 5, 1, 3), 5, (3, 1), pads=(1, 0, 1, 0)),
    Windows((1, 5, 1, 3), 5, (3, 1), pads=NONE),
    Windows((0, 5, 4, 3), 5),
    Windows((1, 6, 6, 8), 24, (5, 5), (3, 3), (4, 4, 4, 4)),
    Windows((1, 13, 13, 300), 130, strides=(2, 2)),
]
POINTWISE = [
    Windows((1, 7, 9, 8), 20, (1, 1), pads=NONE),
    Windows((3, 2, 40, 40), 40, (1, 1), pads=NONE, symbolic=True, epilogue=LIGHT),
    Windows((1, 17, 13, 33), 70, (1, 1), pads=NONE, epilogue=HEAVY, has_bias=False),
]
_SHAPES = [
    Windows((2, 7, 9, 1), 1),
    Windows((2, 7, 9, 1), 1, strides=(2, 2), pads=(0, 1, 1, 0), symbolic=True),
    Windows((2, 8, 17, 1), 1, (5, 5), pads=TWO, epilogue=LIGHT),
    Windows((2, 7, 9, 1), 1, pads=TWO, dilations=(2, 2), has_bias=False),
    Windows((1, 1, 37, 1), 1, (1, 5), (1, 2), (0, 2, 0, 2), symbolic=True),
    Windows((2, 1, 1, 1), 1, epilogue=HEAVY),
    Windows((2, 3, 2, 1), 1, pads=TWO),
    Windows((0, 3, 2, 1), 1),
]
# Fewer channels than a register holds, exactly as many, and more with some left over.
COUNTS = (5, 16, 40)
DEPTHWISE = [
    dataclasses.replace(shape, image=(*shape.image[:3], count), filters=count, group=count)
    for number, shape in enumerate(_SHAPES)
    for count in (COUNTS if number == 0 else COUNTS[number % 3 :][:1])
]


@pytest.mark.parametrize("target", RUNNABLE, ids=lambda item: item.name)
@pytest.mark.parametrize("case", DIRECT, ids=str)
def test_direct_convolution_agrees_with_float64(case: Windows, target: targets.Target) -> None:
    assert windows.kernels_of(case, target).startswith("conv_")
    assert case.error(target) < 2e-6


@pytest.mark.parametrize("target", RUNNABLE, ids=lambda item: item.name)
@pytest.mark.parametrize("case", POINTWISE, ids=str)
def test_pointwise_convolution_is_a_product(case: Windows, target: targets.Target) -> None:
    assert windows.kernels_of(case, target).startswith("gemm_")
    assert case.error(target) < 1e-6


@pytest.mark.parametrize("target", RUNNABLE, ids=lambda item: item.name)
@pytest.mark.parametrize("case", DEPTHWISE, ids=str)
def test_depthwise_convolution_agrees_with_float64(case: Windows, target: targets.Target) -> None:
    assert windows.kernels_of(case, target).startswith("depthwise_")
    assert case.error(target) < 1e-6


@pytest.mark.parametrize("target", RUNNABLE, ids=lambda item: item.name)
@pytest.mark.parametrize("case", [DIRECT[0], DIRECT[5], DIRECT[7], POINTWISE[2]], ids=str)
def test_weights_of_run_time_give_the_same_result(case: Windows, target: targets.Target) -> None:
    dynamic = dataclasses.replace(case, constants="")
    assert "pack_weights" in windows.kernels_of(dynamic, target)
    assert dynamic.error(target) < 2e-6


@pytest.mark.parametrize(
    "case",
    [
        Windows((1, 7, 9, 8), 20),
        Windows((1, 7, 9, 8), 20, (1, 1), pads=NONE),
        Windows((1, 8, 9, 20), 20, group=20),
        Windows((1, 8, 9, 16), 16),
    ],
    ids=str,
)
def test_layers_that_differ_in_constants_share_a_kernel(case: Windows) -> None:
    symbols = set()
    for scale in (1.7, -0.3):
        scaled = expr.apply("mul", windows.X[0], expr.const(scale, "float32"))
        capped = expr.apply("min", expr.apply("add", scaled, windows.X[1]), windows.X[2])
        own = dataclasses.replace(case, epilogue=capped)
        assert own.error(targets.host()) < 5e-6
        symbols.add(windows.kernels_of(own, targets.host()))
    assert len(symbols) == 1


@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER", "VALID"])
@pytest.mark.parametrize("size", [7, 8])
def test_auto_pad_places_the_windows_as_its_rule_says(mode: str, size: int) -> None:
    total = max((-(-size // 2) - 1) * 2 + 3 - size, 0)
    before = {"SAME_UPPER": total // 2, "SAME_LOWER": total - total // 2, "VALID": 0}[mode]
    after = 0 if mode == "VALID" else total - before
    explicit = Windows((1, size, size, 3), 4, strides=(2, 2), pads=(before,) * 2 + (after,) * 2)
    automatic = dataclasses.replace(explicit, attrs={"auto_pad": mode, "pads": None})
    host = targets.host()
    assert (automatic.result(host) == explicit.result(host)).all()


@pytest.mark.parametrize(
    "case",
    [
        Windows((1, 8, 8, 4), 4, strides=(2, 2)),
        Windows((1, 8, 8, 20), 20, group=20),
        Windows((1, 8, 8, 4), 4, (1, 1), pads=NONE),
    ],
    ids=str,
)
def test_a_nan_reaches_exactly_the_windows_that_hold_it(case: Windows) -> None:
    arrays = case.arrays()
    arrays["x"][0, 3, 4, 1] = np.nan
    result = case.result(targets.host(), arrays)
    marked = dataclasses.replace(case, has_bias=False)
    arrays["w"] = np.ones_like(arrays["w"])
    arrays["x"] = np.isnan(arrays["x"]).astype(np.float32)
    touched = marked.expected({"x": arrays["x"], "w": arrays["w"]}) > 0
    assert (np.isnan(result) == touched).all()


@pytest.mark.parametrize(
    "case", [DIRECT[0], DIRECT[5], POINTWISE[0], DEPTHWISE[4], Windows((1, 9, 9, 16), 16)], ids=str
)
def test_aarch64_code_is_emitted(case: Windows) -> None:
    target = targets.named("aarch64")
    for one in case.lowered(target).steps:
        assert assemble.compile_kernel(one.kernel.text, target)


def test_a_convolution_that_no_kernel_computes_says_what_is_missing() -> None:
    case = Windows((1, 7, 9, 8), 20)
    graph = case.graph(case.arrays())
    node = graph.nodes[0]
    deep = {**graph.types, "w": runner.tensor((20, 8, 3, 3, 3))}
    assert "3 axes" in str(convolution.gap(node, graph.replace(types=deep)))
    types = {**graph.types, "x": runner.tensor((1, 7, 9, 8), "float16")}
    assert "float16" in str(convolution.gap(node, graph.replace(types=types)))
