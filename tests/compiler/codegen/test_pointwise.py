"""Every operation of expressions, for every dtype it takes, against numpy and C's rules."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from castiron.compiler import target as targets
from castiron.compiler.codegen import assemble, elf_objects, link, pointwise
from castiron.graph import expr
from tests.codegen import printed, runner

TARGETS = [target for target in targets.ALL if runner.can_run(target)]
each_target = pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)

FLOATS = ("float32", "float64")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
COMPARISONS = ("equal", "less", "less_equal", "greater", "greater_equal")
TRUTHS = ("not", "isnan", "isinf", "and", "or", "xor", *COMPARISONS)
EXACT_UNARY = ("abs", "neg", "floor", "ceil", "round", "sign", "relu", "not", "isnan", "isinf")
EXACT_BINARY = ("add", "sub", "mul", "min", "max", *COMPARISONS)


def _tree(op: str, *dtypes: str) -> expr.Expr:
    leaves = [expr.input_(number, dtype) for number, dtype in enumerate(dtypes)]
    return expr.apply(op, *leaves, dtype="bool" if op in TRUTHS else dtypes[0])


def _samples(dtype: str, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if dtype == "bool":
        return rng.integers(0, 2, 500).astype(bool)
    if dtype in FLOATS:
        info = np.finfo(dtype)
        specials = [0.0, -0.0, 0.5, 1.5, 2.5, -0.5, -2.5, np.inf, -np.inf, np.nan, 4194305.5,
                    8388607.5, 2.0**52 - 0.5, info.max, -info.max, info.tiny, 1.0, -1.0]  # fmt: skip
        x = np.concatenate(
            [rng.normal(size=200) * 10, np.round(rng.normal(size=100) * 5), specials]
        )
        return rng.permutation(x).astype(dtype)
    integers = np.iinfo(dtype)
    x = rng.integers(integers.min, integers.max, 200, dtype=dtype, endpoint=True)
    small = rng.integers(0, 8, 100).astype(dtype)
    ends = np.array([integers.min, integers.max, 0, 1], dtype)
    return rng.permutation(np.concatenate([x, small, ends, ends]))


def _pair(dtype: str) -> tuple[np.ndarray, np.ndarray]:
    left, right = _samples(dtype, 1), _samples(dtype, 2)
    edges = _samples(dtype, 1)[:40] if dtype == "bool" else np.unique(left)[:40]
    grid = np.array(list(itertools.product(edges, edges)), left.dtype)
    return np.concatenate([left, grid[:, 0]]), np.concatenate([right, grid[:, 1]])


@each_target
@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS])
def test_exact_operations_equal_numpy(dtype: str, target: targets.Target) -> None:
    left, right = _pair(dtype)
    with np.errstate(all="ignore"):
        for op in EXACT_UNARY:
            if op == "round" and dtype in INTEGERS:
                continue  # numpy would round integers through float64
            tree = _tree(op, dtype)
            got = printed.compute(tree, [left], target)
            np.testing.assert_array_equal(got, expr.evaluate(tree, [left]), err_msg=op)
        for op in EXACT_BINARY:
            tree = _tree(op, dtype, dtype)
            got = printed.compute(tree, [left, right], target)
            np.testing.assert_array_equal(got, expr.evaluate(tree, [left, right]), err_msg=op)


@each_target
def test_logic_and_choice_take_truth_values(target: targets.Target) -> None:
    left, right = _samples("bool", 1), _samples("bool", 2)
    for op in ("and", "or", "xor", "equal", "min", "max"):
        tree = expr.apply(op, expr.input_(0, "bool"), expr.input_(1, "bool"))
        got = printed.compute(tree, [left, right], target)
        np.testing.assert_array_equal(got, expr.evaluate(tree, [left, right]), err_msg=op)
    for dtype in ("float32", "int64", "uint8", "bool"):
        a, b = _samples(dtype, 3), _samples(dtype, 4)
        truth = np.resize(left, a.size)
        leaves = expr.input_(0, "bool"), expr.input_(1, dtype), expr.input_(2, dtype)
        got = printed.compute(expr.apply("where", *leaves), [truth, a, b], target)
        np.testing.assert_array_equal(got, np.where(truth, a, b))


@each_target
def test_limits_keep_nan_on_either_side(target: targets.Target) -> None:
    x = np.array([np.nan, 1.0, 7.0, -3.0], np.float32)
    leaf, six = expr.input_(0, "float32"), expr.const(6.0, "float32")
    for args in ((leaf, six), (six, leaf)):
        low = printed.compute(expr.apply("min", *args), [x], target)
        np.testing.assert_array_equal(low, np.minimum(x, 6))
        high = printed.compute(expr.apply("max", *args), [x], target)
        np.testing.assert_array_equal(high, np.maximum(x, 6))


@each_target
@pytest.mark.parametrize("dtype", INTEGERS)
def test_integer_division_never_traps(dtype: str, target: targets.Target) -> None:
    left, right = _pair(dtype)
    wide, divisor = left.astype(object), right.astype(object)
    zero = divisor == 0
    safe = np.where(zero, 1, divisor)
    quotient = np.array([abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
                         for a, b in zip(wide, safe, strict=True)], object)  # fmt: skip
    whole = {
        "div": np.where(zero, 0, quotient),
        "fmod": np.where(zero, 0, wide - quotient * safe),
        "mod": np.where(zero, 0, wide % safe),
    }
    for op, expected in whole.items():
        got = printed.compute(_tree(op, dtype, dtype), [left, right], target)
        bits = 8 * left.dtype.itemsize
        wrapped = np.array([int(v) & ((1 << bits) - 1) for v in expected], np.uint64)
        np.testing.assert_array_equal(got, wrapped.astype(f"uint{bits}").view(dtype), err_msg=op)


@each_target
@pytest.mark.parametrize("op", ["div", "mod", "fmod"])
def test_division_by_a_known_number(op: str, target: targets.Target) -> None:
    for dtype, number in itertools.product(("int32", "int64", "uint8"), (1, 3, 7, 8, -1, -5)):
        if number < 0 and dtype == "uint8":
            continue
        x = _samples(dtype, 5)
        x = x[x != np.iinfo(dtype).min]
        tree = expr.apply(op, expr.input_(0, dtype), expr.const(number, dtype))
        got = printed.compute(tree, [x], target)
        wide = x.astype(object)
        expected = {
            "div": [
                int(math.copysign(abs(v) // abs(number), v * number)) if v else 0 for v in wide
            ],
            "mod": [v % number for v in wide],
            "fmod": [int(math.copysign(abs(v) % abs(number), v)) for v in wide],
        }
        if dtype == "int64" and op == "div":
            expected["div"] = [
                (abs(v) // abs(number)) * (1 if v * number >= 0 else -1) for v in wide
            ]
        if dtype == "int64" and op == "fmod":
            expected["fmod"] = [(abs(v) % abs(number)) * (1 if v >= 0 else -1) for v in wide]
        np.testing.assert_array_equal(got, np.array(expected[op], dtype))


@each_target
def test_float_remainders_are_exact(target: targets.Target) -> None:
    left, right = _pair("float32")
    rng = np.random.default_rng(6)
    wide = np.exp2(rng.uniform(-140, 127, (2, 3000))) * rng.choice([-1, 1], (2, 3000))
    left = np.concatenate([left, wide[0].astype(np.float32)])
    right = np.concatenate([right, wide[1].astype(np.float32)])
    with np.errstate(all="ignore"):
        for op, reference in (("fmod", np.fmod), ("mod", np.mod)):
            got = printed.compute(_tree(op, "float32", "float32"), [left, right], target)
            expected = reference(left, right)
            if op == "mod":  # where a remainder is far below the divisor, numpy rounds the same
                infinite = np.isinf(right) & np.isfinite(left)
                got, expected = got[~infinite], expected[~infinite]
            np.testing.assert_array_equal(got, expected, err_msg=op)


@each_target
@pytest.mark.parametrize("dtype", FLOATS)
def test_powers_follow_c(dtype: str, target: targets.Target) -> None:
    bases, exponents = _pair(dtype)
    rng = np.random.default_rng(7)
    bases = np.concatenate([bases, rng.uniform(0, 10, 3000).astype(dtype)])
    exponents = np.concatenate([exponents, rng.uniform(-30, 30, 3000).astype(dtype)])
    with np.errstate(all="ignore"):
        expected = np.power(bases.astype(np.longdouble), exponents.astype(np.longdouble))
        expected = expected.astype(dtype)
    got = printed.compute(_tree("pow", dtype, dtype), [bases, exponents], target)
    with np.errstate(all="ignore"):
        tolerance = 1.3e-7 if dtype == "float32" else 3e-13
        np.testing.assert_allclose(got, expected, rtol=tolerance, atol=float(np.finfo(dtype).tiny))
    zeros = expected == 0
    np.testing.assert_array_equal(np.signbit(got[zeros]), np.signbit(expected[zeros]))


@each_target
def test_constant_exponents_are_multiplications(target: targets.Target) -> None:
    x = np.concatenate([_samples("float32", 8), [np.float32(-0.0)]])
    with np.errstate(all="ignore"):
        for exponent in (0, 1, 2, 3, -1, -2, 0.5):
            tree = expr.apply("pow", expr.input_(0, "float32"), expr.const(exponent, "float32"))
            got = printed.compute(tree, [x], target)
            expected = np.power(x.astype(np.float64), np.full(x.shape, float(exponent)))
            limit = 0 if exponent in (0, 1, 2, -1) else 3e-7
            rounded = expected.astype(np.float32)
            np.testing.assert_allclose(got, rounded, rtol=limit, atol=1e-37 if limit else 0)


@each_target
@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8"])
def test_integer_powers_wrap(dtype: str, target: targets.Target) -> None:
    signs = [-3, -2, -1, 0, 1, 2, 3, 7] if dtype != "uint8" else [0, 1, 2, 3, 7]
    pairs = np.array(list(itertools.product(signs, [0, 1, 2, 3, 5, 10, 40])), dtype)
    got = printed.compute(_tree("pow", dtype, dtype), [pairs[:, 0], pairs[:, 1]], target)
    bits = 8 * pairs.itemsize
    exact = [(int(a) ** int(b)) & ((1 << bits) - 1) for a, b in pairs]
    expected = np.array(exact, np.uint64).astype(f"uint{bits}").view(dtype)
    np.testing.assert_array_equal(got, expected)
    if dtype != "uint8":
        bases = np.array([-3, -1, -1, 0, 1, 5], dtype)
        exponents = np.array([-1, -1, -2, -1, -7, -2], dtype)
        got = printed.compute(_tree("pow", dtype, dtype), [bases, exponents], target)
        assert got.tolist() == [0, -1, 1, 0, 1, 0]


@each_target
def test_casts_saturate_and_never_depend_on_chance(target: targets.Target) -> None:
    everything = (*FLOATS, *INTEGERS, "bool")
    for source, result in itertools.product(everything, everything):
        if source == result:
            continue
        x = _samples(source, 9)
        got = printed.compute(expr.cast(expr.input_(0, source), result), [x], target)
        with np.errstate(all="ignore"):
            if source in FLOATS and result in INTEGERS:
                info = np.iinfo(result)
                exact = [0 if np.isnan(v) else v for v in x]
                limited = [min(max(v, info.min), info.max) for v in map(float, exact)]
                expected = np.array([int(v) for v in limited], result)
            else:
                expected = x.astype(result)
        np.testing.assert_array_equal(got, expected, err_msg=f"{source} to {result}")


@each_target
def test_shared_subtrees_are_printed_once(target: targets.Target) -> None:
    leaf = expr.input_(0, "float32")
    x = np.ones(5, np.float32)
    twice = expr.apply("add", expr.apply("exp", leaf), expr.apply("exp", expr.input_(0, "float32")))
    _, text = printed.text_of(twice, ("float32",), target)
    _, single = printed.text_of(expr.apply("exp", leaf), ("float32",), target)
    assert text.count("\n") == single.count("\n") + 1
    np.testing.assert_allclose(printed.compute(twice, [x], target), 2 * np.e, rtol=1e-6)


def test_gaps_are_said_in_words() -> None:
    leaf = expr.input_(0, "float32")
    assert pointwise.supported(expr.apply("tanh", leaf)) is None
    assert pointwise.supported(expr.input_(0, "float16")) == "elementwise code for float16"
    assert pointwise.supported(expr.Expr("gamma", "float32", (leaf,))) == "elementwise gamma"
    whole = expr.input_(0, "int64")
    assert pointwise.supported(expr.apply("exp", whole)) == "elementwise exp of int64"
    double = expr.input_(0, "float64")
    assert pointwise.supported(expr.apply("fmod", double, double)) == "the remainder of float64"


@pytest.mark.parametrize("target", targets.ALL, ids=lambda target: target.name)
def test_nothing_is_called_on_any_target(target: targets.Target) -> None:
    for op, arity in expr.ARITY.items():
        for dtype in ("float32", "float64", "int64", "int32", "uint8", "bool"):
            leaves = ["bool", dtype, dtype] if op == "where" else [dtype] * arity
            tree = _tree(op, *leaves)
            if op == "where":
                tree = expr.apply(op, *tree.args)
            if pointwise.supported(tree) is not None:
                continue
            _, text = printed.text_of(tree, tuple(leaves), target)
            parsed = elf_objects.parse(assemble.compile_kernel(text, target))
            assert link.link([parsed], target).symbols
