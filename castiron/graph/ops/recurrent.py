"""Recurrent layers: LSTM, GRU, RNN, and com.microsoft's DynamicQuantizeLSTM.

X is (time, batch, input), or (batch, time, input) with ``layout`` 1; W is (directions,
gates * hidden, input). Outputs: Y (time, directions, batch, hidden), Y_h and, for LSTM, Y_c
(directions, batch, hidden). Attrs as in ONNX; ``direction`` is forward, reverse or bidirectional.
"""

from __future__ import annotations

from castiron.graph.graph import Extent, Shape, TensorType
from castiron.graph.ops.rule import Site, Types
from castiron.tensor import dim as dims

_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
# Positions of optional inputs.
_BIAS, _HIDDEN, _CELL, _PEEPHOLES = 3, 5, 6, 7


def quantized_lstm(at: Site) -> Types:
    """As LSTM, with weights (directions, input, 4 * hidden) and (directions, hidden, 4 * hidden)."""
    x, r = at.rank_at_least(0, 3), at.rank_at_least(2, 3)
    dtype, count = at.dtype(0), len(at.node.outputs)
    hidden = at.attr("hidden_size") if r is None else r[1]
    if x is None or hidden is None:
        return (TensorType(dtype, None),) * count
    directions = 2 if at.attr("direction", "forward") == "bidirectional" else 1
    last = TensorType(dtype, (directions, x[1], hidden))
    return (TensorType(dtype, (x[0], directions, x[1], hidden)), last, last)[:count]


def recurrent(at: Site) -> Types:
    """All hidden states, the last hidden state, and the last cell state."""
    x, w, r = at.rank_at_least(0, 3), at.rank_at_least(1, 3), at.rank_at_least(2, 3)
    dtype, count = at.dtype(0), len(at.node.outputs)
    if x is None or (r is None and at.attr("hidden_size") is None):
        return (TensorType(dtype, None),) * count
    hidden: Extent = r[-1] if r is not None else int(at.attr("hidden_size"))
    directions = 2 if at.attr("direction", "forward") == "bidirectional" else 1
    is_batch_first = bool(at.attr("layout", 0))
    if w is not None:
        at.check(w[0], directions, "one set of weights is needed for each direction")
        at.check(w[2], x[2], "the weights must fit the input's last axis")
    _fit_states(at, (directions, x[1 - is_batch_first], hidden), is_batch_first)
    _fit_weights(at, directions, hidden)
    full: Shape
    last: Shape
    if is_batch_first:
        full, last = (x[0], x[1], directions, hidden), (x[0], directions, hidden)
    else:
        full, last = (x[0], directions, x[1], hidden), (directions, x[1], hidden)
    kinds = (TensorType(dtype, full), TensorType(dtype, last), TensorType(dtype, last))
    return kinds[:count]


def _fit_states(at: Site, expected: Shape, is_batch_first: bool) -> None:
    """The states to begin with are (directions, batch, hidden), or batch before directions."""
    if is_batch_first:
        expected = (expected[1], expected[0], expected[2])
    for index in (_HIDDEN, _CELL):
        _fit(at, index, expected, "a first state must be as large as a last one")


def _fit_weights(at: Site, directions: int, hidden: Extent) -> None:
    """Each part of the weights is for all gates of all hidden units."""
    gates = _GATES.get(at.node.op)
    if gates is None:
        return
    rows = dims.mul(hidden, gates)
    reason = "weights must be for each gate of each hidden unit"
    w = at.shape(1)
    if w is not None:
        at.check(w[1], rows, reason)
    _fit(at, 2, (directions, rows, hidden), reason)
    _fit(at, _BIAS, (directions, dims.mul(rows, 2)), reason)
    _fit(at, _PEEPHOLES, (directions, dims.mul(hidden, 3)), reason)


def _fit(at: Site, index: int, expected: Shape, reason: str) -> None:
    shape = at.shape(index)
    if shape is None:
        return
    if len(shape) != len(expected):
        at.fail(f"expected rank {len(expected)}, found {len(shape)}", index)
    for extent, wanted in zip(shape, expected, strict=True):
        at.check(extent, wanted, reason)
