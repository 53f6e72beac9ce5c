"""3x3 convolution by tiles: results, accuracy beside the direct kernel, and the choice."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from castiron.compiler import target as targets
from castiron.compiler.codegen.kernels import direct, geometry, transforms, winograd
from tests.codegen import runner
from tests.codegen.kernels import windows
from tests.codegen.kernels.windows import HEAVY, LIGHT, Windows

RUNNABLE = [item for item in targets.ALL if runner.can_run(item)]
SIZES = [(1, 1), (3, 2), (7, 9), (8, 17), (16, 16)]
CASES = [
    Windows((2, *size, 16), 16, pads=pads, has_bias=False, epilogue=LIGHT)
    for size in SIZES
    for pads in ((1, 1, 1, 1), (2, 1, 0, 1))
]
CASES += [Windows((1, *size, 20), 37, symbolic=True, epilogue=HEAVY) for size in SIZES]
CASES += [
    Windows((2, 7, 9, 32), 80, pads=(2, 2, 2, 2)),
    Windows((2, 7, 9, 32), 80, pads=(0, 0, 0, 0), epilogue=LIGHT),
    Windows((1, 5, 5, 64), 209),
    Windows((0, 5, 5, 16), 16),
]


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> int:
    """Makes the lowering choose tiles of this many outputs."""
    outputs = int(request.param)
    monkeypatch.setattr(winograd, "choose", lambda *_, **__: outputs)
    return outputs


@pytest.mark.parametrize("chosen", [2, 4], indirect=True)
@pytest.mark.parametrize("target", RUNNABLE, ids=lambda item: item.name)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_tiles_agree_with_float64(case: Windows, target: targets.Target, chosen: int) -> None:
    assert windows.kernels_of(case, target).startswith(f"winograd{chosen}_")
    assert case.error(target) < {2: 1e-6, 4: 5e-6}[chosen]


def rms_of(case: Windows) -> float:
    """The root mean square of the error on the host."""
    arrays = case.arrays()
    arrays["x"] = np.maximum(arrays["x"], 0)
    difference = case.result(targets.host(), arrays) - case.expected(arrays)
    return float(np.sqrt((difference**2).mean()))


@pytest.mark.parametrize("channels", [16, 64, 256])
def test_small_tiles_are_as_exact_as_the_direct_kernel_and_big_ones_nearly(
    channels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Windows((1, 16, 16, channels), 16, has_bias=False)
    errors = {}
    for outputs in (0, 2, 4):
        monkeypatch.setattr(winograd, "choose", lambda *_, outputs=outputs, **__: outputs)
        errors[outputs] = rms_of(case)
    assert errors[2] <= 1.2 * errors[0]
    assert errors[4] <= 3.5 * errors[0]


def test_the_transforms_of_weights_and_points_fit_each_other() -> None:
    rng = np.random.default_rng(0)
    filters = rng.standard_normal((1, 1, 3, 3))
    for outputs in (2, 4):
        assert transforms.weights_2d(filters, outputs).shape == ((outputs + 2) ** 2, 1, 1)


def test_many_channels_choose_big_tiles_and_strict_nodes_never_do() -> None:
    case = Windows((1, 28, 28, 64), 64)
    host = targets.host()
    assert windows.kernels_of(case, host).startswith("winograd4_")
    strict = dataclasses.replace(case, attrs={"precision": "strict"})
    assert windows.kernels_of(strict, host).startswith("winograd2_")
    symbolic = dataclasses.replace(case, symbolic=True)
    assert windows.kernels_of(symbolic, host).startswith("winograd4_")
    few = Windows((1, 28, 28, 8), 64)
    assert windows.kernels_of(few, host).startswith("conv_")


def test_the_direct_kernel_is_chosen_where_tiles_would_be_mostly_empty() -> None:
    one = geometry.Axis(1, 1, 3, before=1)
    shape = geometry.Geometry(1, one, one, 64, 64, 1)
    assert winograd.fits(shape)
    assert winograd.choose(shape, strict=False) == 0
    assert direct.dense_strides(shape) == (256, 256, 256)
