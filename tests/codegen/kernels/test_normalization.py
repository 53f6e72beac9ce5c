"""Kernels of the normalisations against numpy in float64, on every target that runs here."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from castiron.compiler import target as targets
from castiron.compiler.codegen import assemble, families
from castiron.graph.graph import Node
from castiron.tensor import dim
from tests.codegen import runner

TARGETS = [target for target in targets.ALL if runner.can_run(target)]
each_target = pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)


def _run(
    op: str,
    feeds: Mapping[str, np.ndarray],
    attrs: Mapping[str, object],
    target: targets.Target,
    *,
    outputs: Mapping[str, tuple[int, ...]] | None = None,
    is_symbolic: bool = False,
) -> list[np.ndarray]:
    symbols = {f"d{extent}": extent for array in feeds.values() for extent in array.shape}
    shaped = dict(feeds)

    def shape_of(shape: tuple[int, ...]) -> tuple[int | dim.Dim, ...]:
        return tuple(dim.symbol(f"d{e}") if is_symbolic and e != 1 else e for e in shape)

    first = next(iter(feeds.values()))
    results = outputs or {"y": first.shape}
    types = {
        name: runner.tensor(shape_of(array.shape), array.dtype.name)
        for name, array in shaped.items()
    }
    types |= {name: runner.tensor(shape_of(s), first.dtype.name) for name, s in results.items()}
    node = Node(op, tuple(feeds), tuple(results), attrs)
    graph = runner.graph_of(node, types, {})
    assert families.gap(node, graph) is None
    lowered = families.lower(node, graph, target)
    return runner.run_lowered(lowered, graph, target, feeds, symbols)


def _normal(*shape: int, dtype: str = "float32", seed: int = 0) -> np.ndarray:
    return (np.random.default_rng(seed).normal(size=shape) * 3 + 1).astype(dtype)


def _close(got: np.ndarray, expected: np.ndarray) -> None:
    tolerance = 1e-5 if got.dtype == np.float32 else 1e-12
    np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance)


def _normalised(x: np.ndarray, axes: tuple[int, ...], epsilon: float) -> np.ndarray:
    wide = x.astype(np.float64)
    mean = wide.mean(axis=axes, keepdims=True)
    return np.asarray((wide - mean) / np.sqrt(wide.var(axis=axes, keepdims=True) + epsilon))


@each_target
@pytest.mark.parametrize("is_symbolic", [False, True])
def test_layer_norm_gives_output_and_statistics(target: targets.Target, is_symbolic: bool) -> None:
    for shape, axis in (
        ((3, 768), -1),
        ((2, 5, 33), 2),
        ((4, 3, 7), 1),
        ((5, 1), 1),
        ((2, 100), 1),
    ):
        x = _normal(*shape)
        axes = tuple(range(axis % len(shape), len(shape)))
        width = shape[axes[0] :]
        feeds = {"x": x, "s": _normal(*width, seed=1), "b": _normal(*width, seed=2)}
        statistics = (*shape[: axes[0]], *(1 for _ in axes))
        outputs = {"y": shape, "m": statistics, "i": statistics}
        attrs = {"axis": axis, "epsilon": 1e-4}
        y, mean, inverse = _run(
            "LayerNormalization", feeds, attrs, target, outputs=outputs, is_symbolic=is_symbolic
        )
        _close(y, _normalised(x, axes, 1e-4) * feeds["s"] + feeds["b"])
        wide = x.astype(np.float64)
        _close(mean, wide.mean(axis=axes, keepdims=True))
        _close(inverse, 1 / np.sqrt(wide.var(axis=axes, keepdims=True) + 1e-4))


@each_target
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rms_norm_divides_by_the_root_of_the_mean_square(
    target: targets.Target, dtype: str
) -> None:
    x, scale = _normal(7, 50, dtype=dtype), _normal(50, dtype=dtype, seed=3)
    (y,) = _run("RMSNormalization", {"x": x, "s": scale}, {"axis": -1}, target)
    wide = x.astype(np.float64)
    _close(y, wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-5) * scale)


@each_target
@pytest.mark.parametrize("p", [1, 2])
def test_lp_norm_works_along_any_axis_and_leaves_zeros(target: targets.Target, p: int) -> None:
    for axis in (0, 1, 2):
        x = _normal(3, 17, 21)
        x[0, 0] = x[:, 0, 0] = 0.0
        x[1, :, 0] = 0.0
        (y,) = _run("LpNormalization", {"x": x}, {"axis": axis, "p": p}, target)
        norm = np.linalg.norm(x.astype(np.float64), ord=p, axis=axis, keepdims=True)
        _close(y, x / np.where(norm == 0, 1, norm))


@each_target
@pytest.mark.parametrize("is_symbolic", [False, True])
def test_instance_and_group_norms_scale_each_channel(
    target: targets.Target, is_symbolic: bool
) -> None:
    for shape in ((2, 6, 5, 7), (1, 12, 40), (3, 6, 1, 1)):
        channels = shape[1]
        x = _normal(*shape)
        feeds = {"x": x, "s": _normal(channels, seed=1), "b": _normal(channels, seed=2)}
        spread = (1, channels, *(1 for _ in shape[2:]))
        scale, bias = feeds["s"].reshape(spread), feeds["b"].reshape(spread)
        axes = tuple(range(2, len(shape)))
        (y,) = _run("InstanceNormalization", feeds, {}, target, is_symbolic=is_symbolic)
        _close(y, _normalised(x, axes, 1e-5) * scale + bias)
        attrs = {"num_groups": 3, "epsilon": 1e-3}
        (y,) = _run("GroupNormalization", feeds, attrs, target, is_symbolic=is_symbolic)
        grouped = _normalised(x.reshape(shape[0], 3, -1), (2,), 1e-3).reshape(shape)
        _close(y, grouped * scale + bias)


@each_target
def test_instance_norm_with_channels_last(target: targets.Target) -> None:
    x = _normal(2, 5, 7, 19)
    feeds = {"x": x, "s": _normal(19, seed=1), "b": _normal(19, seed=2)}
    (y,) = _run("InstanceNormalization", feeds, {"layout": "NHWC"}, target)
    _close(y, _normalised(x, (1, 2), 1e-5) * feeds["s"] + feeds["b"])


@each_target
def test_batch_norm_uses_the_given_statistics(target: targets.Target) -> None:
    for shape in ((2, 5, 4, 9), (6, 5)):
        x = _normal(*shape)
        feeds = {name: _normal(5, seed=n) for n, name in enumerate("sbm")}
        feeds = {"x": x, **feeds, "v": _normal(5, seed=9) ** 2}
        (y,) = _run("BatchNormalization", feeds, {"epsilon": 1e-3}, target)
        s, b, m, v = (feeds[k].astype(np.float64).reshape(5, *[1] * (x.ndim - 2)) for k in "sbmv")
        _close(y, (x - m) / np.sqrt(v + 1e-3) * s + b)


@each_target
@pytest.mark.parametrize("layout", ["NHWC", None])
@pytest.mark.parametrize("beta", [0.75, 0.6])
def test_lrn_sums_squares_over_a_window_of_channels(
    target: targets.Target, layout: str | None, beta: float
) -> None:
    for channels, size in ((7, 5), (40, 5), (3, 4), (1, 3), (20, 1)):
        x = _normal(2, 3, 5, channels)
        padded = np.pad(x.astype(np.float64) ** 2, [(0, 0)] * 3 + [(size, size)])
        first = size - (size - 1) // 2
        total = sum(padded[..., first + k : first + k + channels] for k in range(size))
        expected = x / (2.0 + 0.5 / size * np.asarray(total)) ** beta
        attrs = {"size": size, "alpha": 0.5, "beta": beta, "bias": 2.0, "layout": layout}
        if layout is None:
            x, expected = np.moveaxis(x, 3, 1).copy(), np.moveaxis(expected, 3, 1)
        (y,) = _run("LRN", {"x": x}, attrs, target)
        _close(y, expected)


def test_the_cross_target_gets_objects() -> None:
    target = targets.named("aarch64")
    kind = runner.tensor((2, 6, 5))
    for op, num_inputs in (("LayerNormalization", 1), ("LRN", 1), ("LpNormalization", 1)):
        node = Node(op, ("x",) * num_inputs, ("y",), {"size": 3})
        graph = runner.graph_of(node, {"x": kind, "y": kind}, {})
        text = families.lower(node, graph, target).steps[0].kernel.text
        assert assemble.compile_kernel(text, target)[:4] == b"\x7fELF"
