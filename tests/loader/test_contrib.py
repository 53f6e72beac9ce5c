"""Contributed ops as standard ones: the same numbers as onnxruntime, which defines them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from castiron import errors
from castiron.loader import evaluator_quantized, load
from tests.loader import models
from tests.loader.test_evaluator import judged, noise

MICROSOFT = "com.microsoft"

# op, attributes, shapes of the inputs, ops of the result
FLOAT_OPS = [
    ("FastGelu", {}, [(2, 6), (6,)], {"Add", "Gelu"}),
    ("FastGelu", {}, [(2, 6)], {"Gelu"}),
    ("BiasGelu", {}, [(2, 6), (6,)], {"Add", "Gelu"}),
    ("Gelu", {}, [(2, 6)], {"Gelu"}),
    ("QuickGelu", {"alpha": 1.5}, [(2, 6)], {"Mul", "Sigmoid"}),
    ("FusedMatMul", {"transB": 1, "alpha": 0.5}, [(2, 3, 4), (2, 5, 4)],
     {"Transpose", "MatMul", "Mul"}),
    ("FusedMatMul", {"transA": 1}, [(4, 3), (4, 5)], {"Transpose", "MatMul"}),
    ("FusedGemm", {"activation": "LeakyRelu", "activation_alpha": 0.3}, [(2, 3), (3, 4), (4,)],
     {"Gemm", "LeakyRelu"}),
    ("FusedConv", {"activation": "Relu"}, [(1, 2, 5, 5), (3, 2, 2, 2), (3,), (1, 3, 4, 4)],
     {"Conv", "Add", "Relu"}),
    ("FusedConv", {"activation": "Clip", "activation_params": [-0.5, 0.5]},
     [(1, 2, 5, 5), (3, 2, 2, 2)], {"Conv", "Clip"}),
    ("SkipLayerNormalization", {"epsilon": 1e-3}, [(2, 3, 8), (2, 3, 8), (8,), (8,), (8,)],
     {"Add", "LayerNormalization"}),
    ("SkipLayerNormalization", {}, [(2, 3, 8), (2, 3, 8), (8,)], {"Add", "LayerNormalization"}),
    ("SkipSimplifiedLayerNormalization", {"epsilon": 1e-3}, [(2, 3, 8), (2, 3, 8), (8,)],
     {"Add", "RMSNormalization"}),
]  # fmt: skip


@pytest.mark.parametrize("op, attrs, shapes, ops", FLOAT_OPS)
def test_a_contributed_op_is_made_of_standard_ones(
    op: str, attrs: dict[str, object], shapes: list[tuple[int, ...]], ops: set[str]
) -> None:
    feeds = {f"x{index}": noise(*shape) for index, shape in enumerate(shapes)}
    node = models.node(op, list(feeds), ["y"], domain=MICROSOFT, **attrs)
    inputs = [models.value(name, array.shape) for name, array in feeds.items()]
    proto = models.model([node], inputs, ["y"])
    loaded = load(proto)
    assert {node.op for node in loaded.nodes} == ops
    (found,) = models.answers(loaded, feeds)
    np.testing.assert_allclose(found, judged(proto, feeds)[0], rtol=2e-4, atol=2e-5)


def test_the_sum_before_a_skip_normalization_is_an_output_too() -> None:
    feeds = {"x": noise(1, 2, 8), "s": noise(1, 2, 8), "g": noise(8)}
    node = models.node(
        "SkipLayerNormalization", list(feeds), ["y", "", "", "sum"], domain=MICROSOFT
    )
    inputs = [models.value(name, array.shape) for name, array in feeds.items()]
    proto = models.model([node], inputs, ["y", "sum"])
    for left, right in zip(models.answers(load(proto), feeds), judged(proto, feeds), strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-4, atol=1e-5)


def _weights(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).integers(-127, 128, shape).astype(np.int8)


def test_integer_products_become_float_again() -> None:
    x, b = noise(3, 8), _weights(8, 5)
    constants = {"b": b, "bs": np.float32(0.01), "bz": np.int8(3), "bias": noise(5)}
    dynamic = models.node("DynamicQuantizeMatMul", ["x", *constants], ["y"], domain=MICROSOFT)
    arrays = {name: np.asarray(array) for name, array in constants.items()}
    proto = models.model([dynamic], [models.value("x", x.shape)], ["y"], arrays)
    (found,) = models.answers(load(proto), {"x": x})
    np.testing.assert_allclose(found, judged(proto, {"x": x})[0], rtol=1e-4, atol=1e-5)


def test_an_integer_product_with_scales_becomes_float() -> None:
    a = np.random.default_rng(2).integers(0, 256, (3, 8)).astype(np.uint8)
    constants = {"b": _weights(8, 5), "as": np.float32(0.02), "bs": np.float32(0.01),
                 "az": np.uint8(100)}  # fmt: skip
    node = models.node("MatMulIntegerToFloat", ["a", *constants], ["y"], domain=MICROSOFT)
    arrays = {name: np.asarray(array) for name, array in constants.items()}
    kind = onnx.TensorProto.UINT8
    proto = models.model([node], [models.value("a", a.shape, kind)], ["y"], arrays)
    (found,) = models.answers(load(proto), {"a": a})
    np.testing.assert_allclose(found, judged(proto, {"a": a})[0], rtol=1e-5)


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("has_lengths", [False, True])
def test_a_quantised_lstm_agrees_with_onnxruntime(direction: str, has_lengths: bool) -> None:
    count, hidden = (2 if direction == "bidirectional" else 1), 6
    constants = {
        "w": _weights(count, 5, 4 * hidden), "r": _weights(count, hidden, 4 * hidden),
        "b": noise(count, 8 * hidden), "h": noise(count, 2, hidden), "c": noise(count, 2, hidden),
        "ws": np.full(count, 0.01, np.float32), "wz": np.zeros(count, np.int8),
        "rs": np.full(count, 0.02, np.float32), "rz": np.zeros(count, np.int8),
    }  # fmt: skip
    if has_lengths:
        constants["n"] = np.asarray([4, 2], np.int32)
    names = ["x", "w", "r", "b", "n" if has_lengths else "", "h", "c", "", "ws", "wz", "rs", "rz"]
    node = models.node(
        "DynamicQuantizeLSTM", names, ["y", "yh", "yc"], domain=MICROSOFT,
        hidden_size=hidden, direction=direction,
    )  # fmt: skip
    proto = models.model([node], [models.value("x", [4, 2, 5])], ["y", "yh", "yc"], constants)
    x = noise(4, 2, 5)
    found = models.answers(load(proto), {"x": x})
    for left, right in zip(found, judged(proto, {"x": x}), strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-3, atol=1e-4)


def test_zeros_are_quantised_without_dividing_by_zero() -> None:
    integers, scale, zero = evaluator_quantized.quantise(np.zeros((2, 3), np.float32))
    assert integers.tolist() == [[0, 0, 0]] * 2
    assert (float(scale), int(zero)) == (1.0, 0)


def test_an_unknown_contributed_op_is_refused() -> None:
    node = models.node("FastGelo", ["x"], ["y"], domain=MICROSOFT)
    with pytest.raises(errors.LoadError, match=r"did you mean FastGelu\?"):
        load(models.model([node], [models.value("x", [1])], ["y"]))


def test_a_batch_transposing_product_is_refused() -> None:
    node = models.node("FusedMatMul", ["x", "x"], ["y"], domain=MICROSOFT, transBatchA=1)
    with pytest.raises(errors.LoadError, match="transBatch is not supported"):
        load(models.model([node], [models.value("x", [2, 2, 2])], ["y"]))


def test_mean_variance_normalization_is_made_of_reductions() -> None:
    x = noise(2, 3, 4, 4)
    node = models.node("MeanVarianceNormalization", ["x"], ["y"])
    proto = models.model([node], [models.value("x", x.shape)], ["y"])
    loaded = load(proto)
    assert "ReduceMean" in {node.op for node in loaded.nodes}
    (found,) = models.answers(loaded, {"x": x})
    np.testing.assert_allclose(found, judged(proto, {"x": x})[0], rtol=1e-4, atol=1e-5)
