"""A sentence encoder of the shape of MiniLM-6, written as exporters write it.

LayerNormalization and GELU come apart into simple ops, as most exported files have them, and
batch and length are symbolic. The weights are seeded noise: it measures speed and checks sums,
it does not understand sentences.
"""

from __future__ import annotations

import math

import onnx
from onnx import TensorProto, helper

from zoo import writer

LAYERS, WIDTH, HEADS, INNER_WIDTH, VOCABULARY, MAX_LENGTH = 6, 384, 12, 1536, 4096, 512


def model() -> onnx.ModelProto:
    """Inputs `input_ids`, `attention_mask`: int64 [batch, length]; output: the last states."""
    w = writer.Writer("minilm_6", seed=6)
    x = _embedding(w)
    bias = _mask_bias(w)
    for _ in range(LAYERS):
        x = _norm(w, w.node("Add", x, _attention(w, x, bias)))
        x = _norm(w, w.node("Add", x, _feed_forward(w, x)))
    states = w.node("Identity", x)
    ids = ["input_ids", "attention_mask"]
    return w.model(
        [helper.make_tensor_value_info(i, TensorProto.INT64, ["batch", "length"]) for i in ids],
        [helper.make_tensor_value_info(states, TensorProto.FLOAT, ["batch", "length", WIDTH])],
    )


def _embedding(w: writer.Writer) -> str:
    words = w.node("Gather", w.normal((VOCABULARY, WIDTH), 1.0), "input_ids")
    length = w.node("Gather", w.node("Shape", "input_ids"), w.constant(1, "int64"), axis=0)
    end = w.node("Unsqueeze", length, w.constant([0], "int64"))
    places = w.normal((1, MAX_LENGTH, WIDTH), 0.5)
    places = w.node("Slice", places, w.constant([0], "int64"), end, w.constant([1], "int64"))
    return _norm(w, w.node("Add", words, places))


def _mask_bias(w: writer.Writer) -> str:
    """Zero where a token counts, far below zero where it is padding: [batch, 1, 1, length]."""
    mask = w.node("Unsqueeze", "attention_mask", w.constant([1, 2], "int64"))
    mask = w.node("Cast", mask, to=TensorProto.FLOAT)
    padding = w.node("Sub", w.constant(1.0), mask)
    return w.node("Mul", padding, w.constant(-10000.0))


def _linear(w: writer.Writer, x: str, num_in: int, num_out: int) -> str:
    product = w.node("MatMul", x, w.normal((num_in, num_out), 1 / math.sqrt(num_in)))
    return w.node("Add", w.normal((num_out,), 0.02), product)


def _attention(w: writer.Writer, x: str, bias: str) -> str:
    per_head = WIDTH // HEADS
    split = w.constant([0, 0, HEADS, per_head], "int64")
    q, k, v = (w.node("Reshape", _linear(w, x, WIDTH, WIDTH), split) for _ in range(3))
    q = w.node("Transpose", q, perm=[0, 2, 1, 3])
    k = w.node("Transpose", k, perm=[0, 2, 3, 1])
    v = w.node("Transpose", v, perm=[0, 2, 1, 3])
    scores = w.node("Div", w.node("MatMul", q, k), w.constant(math.sqrt(per_head)))
    shares = w.node("Softmax", w.node("Add", scores, bias), axis=-1)
    joined = w.node("Transpose", w.node("MatMul", shares, v), perm=[0, 2, 1, 3])
    joined = w.node("Reshape", joined, w.constant([0, 0, WIDTH], "int64"))
    return _linear(w, joined, WIDTH, WIDTH)


def _feed_forward(w: writer.Writer, x: str) -> str:
    x = _linear(w, x, WIDTH, INNER_WIDTH)
    error = w.node("Erf", w.node("Div", x, w.constant(math.sqrt(2))))
    doubled = w.node("Mul", x, w.node("Add", error, w.constant(1.0)))
    return _linear(w, w.node("Mul", doubled, w.constant(0.5)), INNER_WIDTH, WIDTH)


def _norm(w: writer.Writer, x: str) -> str:
    centred = w.node("Sub", x, w.node("ReduceMean", x, axes=[-1]))
    square = w.node("Pow", centred, w.constant(2.0))
    variance = w.node("Add", w.node("ReduceMean", square, axes=[-1]), w.constant(1e-12))
    unit = w.node("Div", centred, w.node("Sqrt", variance))
    scaled = w.node("Mul", unit, w.normal((WIDTH,), 0.1, mean=1.0))
    return w.node("Add", scaled, w.normal((WIDTH,), 0.1))
