"""Recurrent layers: LSTM, GRU, RNN, and com.microsoft's DynamicQuantizeLSTM.

X is (time, batch, input), or (batch, time, input) with ``layout`` 1; W is (directions,
gates * hidden, input). Outputs: Y (time, directions, batch, hidden), Y_h and, for LSTM, Y_c
(directions, batch, hidden). Attrs as in ONNX; ``direction`` is forward, reverse or bidirectional.
"""

from __future__ import annotations

from castiron.graph.graph import Extent, Shape, TensorType
from castiron.graph.ops.rule import Site, Types


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
    if w is not None:
        at.check(w[0], directions, "one set of weights is needed for each direction")
        at.check(w[2], x[2], "the weights must fit the input's last axis")
    full: Shape
    last: Shape
    if at.attr("layout", 0):
        full, last = (x[0], x[1], directions, hidden), (x[0], directions, hidden)
    else:
        full, last = (x[0], directions, x[1], hidden), (directions, x[1], hidden)
    kinds = (TensorType(dtype, full), TensorType(dtype, last), TensorType(dtype, last))
    return kinds[:count]
