"""LSTM, GRU and RNN: one product for all inputs, then a loop over time.

The input's share of every gate (weights and biases) is a single product over all time steps
(gemm.py). The recurrent step reads a buffer with gates side by side for each register of hidden
units. Units are directions times blocks of the batch. recurrent_cells.py has the loop's body.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from castiron.compiler.codegen import step
from castiron.compiler.codegen.kernels import gemm, recurrent_cells
from castiron.compiler.codegen.kernels.recurrent_cells import Form
from castiron.compiler.target import Target
from castiron.graph.graph import Extent, Graph, Node
from castiron.tensor import dim as dims

OPS = ("LSTM", "GRU", "RNN")
_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
_DEFAULTS = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}
# Positions of optional inputs.
_BIAS, _LENGTHS, _HIDDEN, _CELL, _PEEPHOLES = 3, 4, 5, 6, 7


def gap(node: Node, graph: Graph) -> str | None:
    """None for constant float32 weights, sequences of full length and usual activations."""
    kind = graph.types[node.inputs[0]]
    if kind.shape is None or kind.dtype is None or kind.dtype.name != "float32":
        return f"{node.op} of dtype {kind.dtype}"
    for index in (1, 2, _BIAS, _PEEPHOLES):
        value = _input(node, index)
        if value and value not in graph.constants:
            return f"{node.op} with weights that are not constant"
    if _input(node, _LENGTHS):
        return f"{node.op} with sequence_lens"
    if node.attr("clip"):
        return f"{node.op} with clip"
    if node.attr("input_forget", 0):
        return f"{node.op} with input_forget"
    if node.attr("activation_alpha") or node.attr("activation_beta"):
        return f"{node.op} with parameters of activations"
    unknown = set(_activations(node)) - set(recurrent_cells.ACTIVATIONS)
    if unknown:
        return f"{node.op} with activations {', '.join(sorted(unknown))}"
    if len(set(_by_direction(node))) > 1:
        return f"{node.op} with activations that differ between the directions"
    return None


def _input(node: Node, index: int) -> str:
    return node.inputs[index] if len(node.inputs) > index else ""


def _output(node: Node, index: int) -> str:
    return node.outputs[index] if len(node.outputs) > index else ""


def _activations(node: Node) -> tuple[str, ...]:
    given = node.attr("activations")
    return tuple(given) if given else _DEFAULTS[node.op] * _num_directions(node)


def _by_direction(node: Node) -> list[tuple[str, ...]]:
    every, count = _activations(node), len(_DEFAULTS[node.op])
    return [every[n : n + count] for n in range(0, len(every), count)]


def _num_directions(node: Node) -> int:
    return 2 if node.attr("direction", "forward") == "bidirectional" else 1


@dataclasses.dataclass(frozen=True, slots=True)
class _Weights:
    """Everything constant, by direction: w [D, G, H, I], r [D, G, H, H], biases [D, G, H]."""

    w: np.ndarray
    r: np.ndarray
    input_bias: np.ndarray
    hidden_bias: np.ndarray
    peepholes: np.ndarray | None

    @property
    def hidden(self) -> int:
        return int(self.w.shape[2])


def _weights(node: Node, graph: Graph) -> _Weights:
    gates = _GATES[node.op]
    w, r = (graph.constants[node.inputs[n]] for n in (1, 2))
    directions, hidden = w.shape[0], w.shape[1] // gates
    shape = (directions, gates, hidden)
    bias = _input(node, _BIAS)
    both = np.zeros((directions, 2 * gates * hidden), np.float32)
    if bias:
        both = graph.constants[bias]
    first, second = (part.reshape(shape) for part in np.split(both, 2, axis=1))
    peepholes = _input(node, _PEEPHOLES)
    own = graph.constants[peepholes].reshape(directions, 3, hidden) if peepholes else None
    wide_w, wide_r = (each.reshape(*shape, each.shape[2]) for each in (w, r))
    return _Weights(wide_w, wide_r, first, second, own)


def _lanes_last(array: np.ndarray, lanes: int) -> np.ndarray:
    """[D, G, H, ...] as [D, blocks, ..., G, lanes], hidden units padded with zeros."""
    directions, gates, hidden = array.shape[:3]
    blocks = -(-hidden // lanes)
    wide = np.zeros((directions, gates, blocks * lanes, *array.shape[3:]), np.float32)
    wide[:, :, :hidden] = array
    split = wide.reshape(directions, gates, blocks, lanes, *array.shape[3:])
    return np.moveaxis(np.moveaxis(split, 1, -1), 2, -1)


def lower(node: Node, graph: Graph, target: Target) -> step.Lowered:
    """The product of all inputs into a buffer, then the loop over time."""
    weights, lanes = _weights(node, graph), target.vector_lanes_f32
    form = Form(
        op=node.op,
        activations=_by_direction(node)[0],
        is_linear_first=bool(node.attr("linear_before_reset", 0)) and node.op == "GRU",
        has_peepholes=weights.peepholes is not None,
        has_hidden=bool(_input(node, _HIDDEN)),
        has_cell=bool(_input(node, _CELL)) and node.op == "LSTM",
        outputs=tuple(bool(_output(node, n)) for n in range(3)),
    )
    share = f"{next(value for value in node.outputs if value)}:gates"
    product = _projection(node, graph, (weights, form), share, lanes)
    x = graph.shape(node.inputs[0])
    width = product.matrix.shape[1]
    buffer = step.Buffer(share, dims.mul(dims.mul(x[0], x[1]), 4 * width))
    steps = (gemm.lower(product, target), _loop(node, graph, (weights, form), share, target))
    return step.Lowered(steps=steps, buffers=(buffer,))


def _projection(
    node: Node, graph: Graph, parts: tuple[_Weights, Form], share: str, lanes: int
) -> gemm.Product:
    """The inputs times the weights of all gates and directions, biases added."""
    weights, form = parts
    added = weights.input_bias + weights.hidden_bias
    if form.is_linear_first:  # the hidden state's share of the last gate has its own bias
        added[:, 2] = weights.input_bias[:, 2]
    # [D, blocks, I, G, lanes] -> [I, D, blocks, G, lanes]
    matrix = np.moveaxis(_lanes_last(weights.w, lanes), 2, 0)
    depth = matrix.shape[0]
    x = graph.shape(node.inputs[0])
    return gemm.Product(
        name=f"{node.name or node.op} inputs",
        input=step.Read(node.inputs[0]),
        output=step.Write(share),
        matrix=np.ascontiguousarray(matrix).reshape(depth, -1),
        rows=dims.mul(x[0], x[1]),
        a_row=4 * depth,
        a_step=4,
        bias=np.ascontiguousarray(_lanes_last(added, lanes)).reshape(-1),
    )


def _loop(
    node: Node, graph: Graph, parts: tuple[_Weights, Form], share: str, target: Target
) -> step.Step:
    weights, form = parts
    hidden, lanes = weights.hidden, target.vector_lanes_f32
    x = graph.shape(node.inputs[0])
    is_batch_first = bool(node.attr("layout", 0))
    times, batch = (x[1], x[0]) if is_batch_first else (x[0], x[1])
    directions, blocks = _num_directions(node), -(-hidden // lanes)
    matrices = _packed(weights.r, form, lanes)
    rows = recurrent_cells.unit_rows(target, matrices.nbytes // directions)
    operands: list[step.Read | step.Write | step.Packed] = [step.Read(share), step.Packed(matrices)]
    if form.is_linear_first:
        operands.append(step.Packed(_lanes_last(weights.hidden_bias[:, 2:], lanes)))
    if weights.peepholes is not None:
        operands.append(step.Packed(_lanes_last(weights.peepholes, lanes)))
    operands += [step.Read(_input(node, n)) for n in form.states()]
    operands += [step.Write(_output(node, n)) for n, on in enumerate(form.outputs) if on]
    gates = _GATES[node.op]
    gate_row = 4 * directions * blocks * gates * lanes
    is_reversed = int(node.attr("direction", "forward") == "reverse")
    params: list[Extent] = [
        times, batch, hidden, blocks, is_reversed, directions, matrices.nbytes // directions, rows,
        *_strides(is_batch_first, times, batch, directions, hidden),
        *((gate_row, dims.mul(times, gate_row)) if is_batch_first
          else (dims.mul(batch, gate_row), gate_row)),
    ]  # fmt: skip
    steps = dims.mul(dims.mul(times, batch), directions)
    return step.Step(
        name=node.name or node.op,
        kernel=step.Kernel(form.symbol(), recurrent_cells.text(form, target)),
        operands=tuple(operands),
        params=tuple(params),
        units=dims.mul(dims.ceildiv(batch, rows), directions),
        scratch_bytes=recurrent_cells.STATES * rows * blocks * lanes * 4,
        flops=dims.mul(steps, 2 * gates * hidden * hidden),
        bytes_moved=dims.mul(steps, 4 * gates * hidden * hidden),
    )


def _strides(
    is_batch_first: bool, times: Extent, batch: Extent, directions: int, hidden: int
) -> list[Extent]:
    """Bytes between times, directions and rows in Y, then directions and rows in a state."""
    row = 4 * hidden
    if is_batch_first:
        across = directions * row
        return [across, row, dims.mul(times, across), row, across]
    one = dims.mul(batch, row)
    return [dims.mul(one, directions), one, row, one, row]


def _packed(r: np.ndarray, form: Form, lanes: int) -> np.ndarray:
    """Recurrent weights: for each direction and phase [blocks, H, gates of the phase, lanes]."""
    parts = []
    for direction in r:
        for phase in form.phases():
            chosen = direction[list(phase)][None]
            parts.append(np.ascontiguousarray(_lanes_last(chosen, lanes)).reshape(-1))
    return np.concatenate(parts)
