"""How exact exp, log, tanh, erf and the others are: against float64 over a million inputs."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest

from castiron.compiler import target as targets
from castiron.graph import expr
from tests.codegen import printed, runner

TARGETS = [target for target in targets.ALL if runner.can_run(target)]
each_target = pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)

# Largest error in units of the last place of float32, and of float64.
LIMITS = {
    "exp": (1.0, 2.0), "log": (1.0, 2.0), "tanh": (2.6, 3.5), "sigmoid": (2.5, 3.5),
    "softplus": (2.0, 3.0), "sin": (1.7, 2.0), "cos": (1.7, 2.0), "atan": (2.0, 3.0),
    "erf": (2.0, 8.0), "sqrt": (0.501, 0.501), "reciprocal": (0.501, 0.501),
}  # fmt: skip
SPECIALS = [0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0, 1e-45, -1e-45, 88.7, 88.8, -87.4,
            -103.9, -104.0, -150.0, 1e30, 2.0**22 + 0.5, 2.0**23 - 0.5, 0.5, 1.5]  # fmt: skip


@functools.cache
def _inputs() -> np.ndarray:
    """Every exponent and sign at random, ranges where functions bend, and special values."""
    rng = np.random.default_rng(11)
    patterns = rng.integers(0, 1 << 32, 600_000, dtype=np.uint64).astype(np.uint32)
    patterns[(patterns & 0x7FFFFFFF) > 0x7F800000] = 0x7FC00000  # the one NaN that may be cast
    ranges = [rng.uniform(-20, 20, 200_000), rng.normal(0, 1, 150_000), rng.normal(1, 0.01, 50_000)]
    parts = [part.astype(np.float32) for part in (*ranges, np.array(SPECIALS))]
    return np.concatenate([patterns.view(np.float32), *parts])


def _reference(op: str, x: np.ndarray) -> np.ndarray:
    """The function in extended precision where numpy has it."""
    wide = x.astype(np.longdouble)
    with np.errstate(all="ignore"):
        if op == "erf":
            return np.array([math.erf(v) for v in x.astype(np.float64)], np.longdouble)
        if op == "sigmoid":
            e = np.exp(-np.abs(wide))
            return np.asarray(np.where(wide < 0, e, 1) / (1 + e))
        if op == "softplus":
            return np.asarray(np.maximum(wide, 0) + np.log1p(np.exp(-np.abs(wide))))
        if op == "reciprocal":
            return np.asarray(1 / wide)
        function = np.arctan if op == "atan" else getattr(np, op)
        return np.asarray(function(wide))


def _worst(got: np.ndarray, reference: np.ndarray) -> float:
    """The largest error in units of the last place; infinite for a wrong special value."""
    with np.errstate(all="ignore"):
        rounded = reference.astype(got.dtype)
        same = (got == rounded) | (np.isnan(got) & np.isnan(rounded))
        assert np.isfinite(got[~same]).all() and np.isfinite(rounded[~same]).all()
        unit = np.spacing(np.abs(rounded[~same]))
        errors = np.abs(got[~same].astype(np.longdouble) - reference[~same]) / unit
    return float(errors.max(initial=0.0))


def _flushed(op: str, reference: np.ndarray, dtype: type[np.floating]) -> np.ndarray:
    """What is promised: sigmoid and softplus give 0 in place of subnormal results."""
    if op not in ("sigmoid", "softplus"):
        return reference
    lowest = np.finfo(dtype).smallest_normal * 1.002
    return np.where(np.abs(reference) < lowest, 0.0, reference)


def _compute(op: str, x: np.ndarray, target: targets.Target) -> np.ndarray:
    tree = expr.apply(op, expr.input_(0, x.dtype.name))
    return printed.compute(tree, [x], target)


@each_target
@pytest.mark.parametrize("op", LIMITS)
def test_float32_functions_keep_their_limits(op: str, target: targets.Target) -> None:
    x = _inputs()
    if op in ("sin", "cos"):
        x = x[~(np.abs(x) > 1.6e6) | np.isinf(x)]
    if op == "erf":
        x = x[::5]
    reference = _flushed(op, _reference(op, x), np.float32)
    assert _worst(_compute(op, x, target), reference) <= LIMITS[op][0]


@each_target
def test_erf_is_within_a_ten_millionth(target: targets.Target) -> None:
    x = np.linspace(-6, 6, 40_000).astype(np.float32)
    error = np.abs(_compute("erf", x, target) - _reference("erf", x))
    assert error.max() < 1.2e-7


@each_target
@pytest.mark.parametrize("op", LIMITS)
def test_float64_functions_keep_their_limits(op: str, target: targets.Target) -> None:
    rng = np.random.default_rng(12)
    patterns = rng.integers(0, 1 << 64, 20_000, dtype=np.uint64).view(np.float64)
    patterns[np.isnan(patterns)] = np.nan
    specials = np.array([*SPECIALS, 709.7, 709.8, -745.1, -746, 1e300, 5e-324, 1e-310])
    x = np.concatenate([patterns, rng.uniform(-20, 20, 20_000), rng.normal(1, 0.1, 9000), specials])
    if op in ("sin", "cos"):
        x = x[~(np.abs(x) > 1.6e6) | np.isinf(x)]
    reference = _flushed(op, _reference(op, x), np.float64)
    assert _worst(_compute(op, x, target), reference) <= LIMITS[op][1]


@each_target
def test_waves_far_out_stay_between_one_and_minus_one(target: targets.Target) -> None:
    x = _inputs()
    for op in ("sin", "cos"):
        got = _compute(op, x, target)
        assert (np.abs(got[np.isfinite(x)]) <= 1.0000001).all()
