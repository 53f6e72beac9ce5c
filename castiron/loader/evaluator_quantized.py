"""Quantised ops of the com.microsoft domain for the evaluator.

Written from the operators' published definitions and checked against onnxruntime's results.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun


def quantise(x: np.ndarray) -> tuple[np.ndarray, np.float32, np.uint8]:
    """x as uint8 with the range stretched over its values and zero: (integers, scale, zero)."""
    low = np.minimum(x.min(initial=0.0), 0.0).astype(np.float32)
    high = np.maximum(x.max(initial=0.0), 0.0).astype(np.float32)
    scale = (high - low) / np.float32(255.0) if high > low else np.float32(1.0)
    zero = np.uint8(np.clip(np.rint(-low / scale), 0, 255))
    integers = np.clip(np.rint(x / scale) + zero, 0, 255).astype(np.uint8)
    return integers, scale, zero


def _product(x: np.ndarray, weight: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """x [batch, k] quantised now, times a weight [k, n] of integers and its scale."""
    integers, scale, zero = quantise(x)
    right, w_scale = weight
    left = integers.astype(np.float64) - float(zero)
    scales = float(scale) * w_scale.astype(np.float64)
    return np.asarray(left @ right * scales, dtype=np.float32)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return np.asarray(1.0 / (1.0 + np.exp(-x)), dtype=np.float32)


class DynamicQuantizeLSTM(OpRun):
    """An LSTM whose weights are integers and whose inputs are quantised at each step.

    X [seq, batch, input], W [dirs, input, 4 * hidden], R [dirs, hidden, 4 * hidden], gates in the
    order input, output, forget, cell. Default activations only.
    """

    op_domain = "com.microsoft"

    def _run(self, *inputs: Any, **attrs: Any) -> tuple[Any, ...]:
        x, w, r, b, lengths, h0, c0, peephole, *scales = (*inputs, *[None] * (12 - len(inputs)))
        hidden = int(attrs.get("hidden_size") or r.shape[1])
        direction = attrs.get("direction") or "forward"
        runs = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}[direction]
        outputs = []
        for index, is_reverse in enumerate(runs):
            weights = _direction(index, (w, r), scales)
            state = [
                np.zeros((x.shape[1], hidden), np.float32) if s is None else s[index]
                for s in (h0, c0)
            ]
            bias = np.zeros(8 * hidden, np.float32) if b is None else b[index]
            peeps = np.zeros(3 * hidden, np.float32) if peephole is None else peephole[index]
            outputs.append(_lstm(x, weights, (bias, peeps, lengths), state, is_reverse))
        y, y_h, y_c = zip(*outputs, strict=True)
        return np.stack(y, axis=1), np.stack(y_h), np.stack(y_c)


def _direction(index: int, weights: tuple[Any, Any], scales: list[Any]) -> list[Any]:
    """(weights less their zero point, scale) of the input and of the hidden state."""
    found = []
    for weight, scale, zero in zip(weights, scales[0::2], scales[1::2], strict=True):
        kept = scale[index] if scale.ndim and scale.shape[0] == weight.shape[0] else scale
        shift = np.zeros(1) if zero is None else np.asarray(zero)
        shift = shift[index] if shift.ndim and shift.shape[0] == weight.shape[0] else shift
        centred = weight[index].astype(np.float64) - np.asarray(shift).astype(np.float64)
        found.append((centred, np.asarray(kept)))
    return found


def _lstm(
    x: np.ndarray,
    weights: list[Any],
    parts: tuple[np.ndarray, np.ndarray, np.ndarray | None],
    state: list[np.ndarray],
    is_reverse: bool,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    bias, peephole, lengths = parts
    hidden = state[0].shape[1]
    p_i, p_o, p_f = np.split(peephole, 3)
    offset = bias[: 4 * hidden] + bias[4 * hidden :]
    h, c = state
    steps = x.shape[0]
    last = np.full(x.shape[1], steps) if lengths is None else np.asarray(lengths)
    y = np.zeros((steps, x.shape[1], hidden), np.float32)
    projected = _product(x.reshape(-1, x.shape[2]), weights[0]).reshape(steps, x.shape[1], -1)
    for t in range(steps)[:: -1 if is_reverse else 1]:
        gates = projected[t] + _product(h, weights[1]) + offset
        i, o, f, g = np.split(gates, 4, axis=1)
        i, f = _sigmoid(i + p_i * c), _sigmoid(f + p_f * c)
        new_c = f * c + i * np.tanh(g)
        new_h = _sigmoid(o + p_o * new_c) * np.tanh(new_c)
        alive = (t < last)[:, None]
        h, c = np.where(alive, new_h, h), np.where(alive, new_c, c)
        y[t] = np.where(alive, new_h, 0.0)
    return y, h, c


OPS = [DynamicQuantizeLSTM]
