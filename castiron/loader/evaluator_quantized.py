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
    order input, output, forget, cell. Default activations only. All rows of a batch share one
    scale, as in onnxruntime on one thread (there the number of threads changes the results).
    """

    op_domain = "com.microsoft"

    def _run(self, *inputs: Any, **attrs: Any) -> tuple[Any, ...]:
        operands: list[Any] = [*inputs, *[None] * (12 - len(inputs))]
        x, w, r, b, lengths, h0, c0, peephole = operands[:8]
        scales = operands[8:]
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
        y = np.stack([found[0] for found in outputs], axis=1)
        return (
            y,
            np.stack([found[1] for found in outputs]),
            np.stack([found[2] for found in outputs]),
        )


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
    y_h, y_c = state
    steps, batch = x.shape[:2]
    ends = np.full(batch, steps) if lengths is None else np.asarray(lengths)
    order = _order(steps, ends) if is_reverse else np.tile(np.arange(steps)[:, None], batch)
    rows = np.arange(batch)
    projected = _product(x[order, rows].reshape(steps * batch, -1), weights[0])
    y = np.zeros((steps, batch, hidden), np.float32)
    for t, gates in enumerate(projected.reshape(steps, batch, -1)):
        i, o, f, g = np.split(gates + _product(h, weights[1]) + offset, 4, axis=1)
        i, f = _sigmoid(i + p_i * c), _sigmoid(f + p_f * c)
        c = f * c + i * np.tanh(g)
        h = _sigmoid(o + p_o * c) * np.tanh(c)
        alive = (t < ends)[:, None]
        y_h, y_c = np.where(alive, h, y_h), np.where(alive, c, y_c)
        h = np.where(alive, h, 0.0).astype(np.float32)
        y[order[t], rows] = h
    return y, y_h, y_c


def _order(steps: int, ends: np.ndarray) -> np.ndarray:
    """[steps, batch]: the step that a reversed run takes at each turn; the unused tail stays."""
    turn = np.arange(steps)[:, None]
    return np.where(turn < ends, ends - 1 - turn, turn)


OPS = [DynamicQuantizeLSTM]
