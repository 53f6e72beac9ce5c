"""LSTM, GRU and RNN against a float64 loop written from ONNX's equations."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass

import numpy as np
import pytest

from castiron.compiler import target as targets
from castiron.compiler.codegen import assemble, families, spills
from castiron.graph.graph import Graph, Node
from castiron.tensor import dim
from tests.codegen import runner

RUNNABLE = [item for item in targets.ALL if runner.can_run(item)]
Array = np.ndarray
Wide = dict[str, np.ndarray]
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return np.asarray(1 / (1 + np.exp(-x)))


@dataclass
class Case:
    """One layer; ``given`` names optional inputs: b(ias), h, c, p(eepholes)."""

    op: str
    times: int = 5
    batch: int = 1
    size: int = 7
    hidden: int = 20
    direction: str = "forward"
    given: str = "b"
    outputs: str = "yhc"
    layout: int = 0
    linear_before_reset: int = 0
    is_symbolic: bool = False

    @property
    def directions(self) -> int:
        return 2 if self.direction == "bidirectional" else 1

    def arrays(self) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(6)
        d, g, h = self.directions, GATES[self.op], self.hidden
        state = (self.batch, d, h) if self.layout else (d, self.batch, h)
        x = (self.batch, self.times) if self.layout else (self.times, self.batch)
        shapes = {
            "x": (*x, self.size), "w": (d, g * h, self.size), "r": (d, g * h, h),
            "b": (d, 2 * g * h), "h": state, "c": state, "p": (d, 3 * h),
        }  # fmt: skip
        kept = [n for n in shapes if n in "xwr" or n in self.given]
        scale = min(0.4, 2 / self.hidden**0.5)
        return {n: (rng.standard_normal(shapes[n]) * scale).astype(np.float32) for n in kept}

    def graph(self, arrays: dict[str, np.ndarray]) -> Graph:
        inputs = [n if n in arrays else "" for n in ("x", "w", "r", "b", "", "h", "c", "p")]
        while not inputs[-1]:
            inputs.pop()
        d, h = self.directions, self.hidden
        attrs = {"hidden_size": h, "direction": self.direction, "layout": self.layout}
        if self.op == "GRU":
            attrs["linear_before_reset"] = self.linear_before_reset
        t: int | dim.Dim = dim.symbol("t") if self.is_symbolic else self.times
        n: int | dim.Dim = dim.symbol("n") if self.is_symbolic else self.batch
        full = (n, t, d, h) if self.layout else (t, d, n, h)
        last = (n, d, h) if self.layout else (d, n, h)
        shapes = {"Y": full, "H": last, "C": last}
        names = [o.upper() if o in self.outputs else "" for o in "yhc"]
        names = names if self.op == "LSTM" else names[:2]
        types = {k: runner.tensor(shapes[k]) for k in names if k}
        types |= {k: runner.tensor(last) for k in "hc" if k in arrays}
        types["x"] = runner.tensor((n, t, self.size) if self.layout else (t, n, self.size))
        constants = {k: arrays[k] for k in "wrbp" if k in arrays}
        node = Node(self.op, tuple(inputs), tuple(names), attrs)
        return runner.graph_of(node, types, constants)

    def expected(self, arrays: dict[str, np.ndarray]) -> list[np.ndarray]:
        wide = {k: a.astype(np.float64) for k, a in arrays.items()}
        x = wide["x"].swapaxes(0, 1) if self.layout else wide["x"]
        parts = [self._run(d, x, wide) for d in range(self.directions)]
        y = np.stack([part[0] for part in parts], 1)
        last = [np.stack([part[n] for part in parts]) for n in (1, 2)]
        if self.layout:
            y, last = y.transpose(2, 0, 1, 3), [each.swapaxes(0, 1) for each in last]
        found = dict(zip("yhc", (y, *last), strict=True))
        return [found[o] for o in ("yhc" if self.op == "LSTM" else "yh") if o in self.outputs]

    def _run(self, d: int, x: np.ndarray, wide: dict[str, np.ndarray]) -> tuple[np.ndarray, ...]:
        zero = np.zeros((self.batch, self.hidden))
        states = [wide[k][:, d] if self.layout else wide[k][d] for k in "hc" if k in wide]
        hidden = states[0] if "h" in wide else zero
        cell = states[-1] if "c" in wide else zero
        order = range(self.times)
        if self.direction == "reverse" or d == 1:
            order = range(self.times - 1, -1, -1)
        y = np.zeros((self.times, self.batch, self.hidden))
        step = {"LSTM": self._lstm, "GRU": self._gru, "RNN": self._rnn}[self.op]
        for t in order:
            hidden, cell = step(d, x[t], (hidden, cell), wide)
            y[t] = hidden
        return y, hidden, cell

    def _split(self, d: int, wide: dict[str, np.ndarray]) -> tuple[np.ndarray, ...]:
        g = GATES[self.op]
        b = wide["b"][d] if "b" in wide else np.zeros(2 * g * self.hidden)
        return (*np.split(wide["w"][d], g), *np.split(wide["r"][d], g), *np.split(b, 2 * g))

    def _lstm(
        self, d: int, x: Array, states: tuple[Array, Array], wide: Wide
    ) -> tuple[Array, Array]:
        h, c = states
        w, r, wb, rb = (self._split(d, wide)[n : n + 4] for n in (0, 4, 8, 12))
        i, o, f, g = (x @ w[n].T + h @ r[n].T + wb[n] + rb[n] for n in range(4))
        pi, po, pf = np.split(wide["p"][d], 3) if "p" in wide else (0, 0, 0)
        c2 = _sigmoid(f + pf * c) * c + _sigmoid(i + pi * c) * np.tanh(g)
        return _sigmoid(o + po * c2) * np.tanh(c2), c2

    def _gru(
        self, d: int, x: Array, states: tuple[Array, Array], wide: Wide
    ) -> tuple[Array, Array]:
        h, c = states
        w, r, wb, rb = (self._split(d, wide)[n : n + 3] for n in (0, 3, 6, 9))
        z, reset = (_sigmoid(x @ w[n].T + h @ r[n].T + wb[n] + rb[n]) for n in range(2))
        if self.linear_before_reset:
            fresh = np.tanh(x @ w[2].T + reset * (h @ r[2].T + rb[2]) + wb[2])
        else:
            fresh = np.tanh(x @ w[2].T + (reset * h) @ r[2].T + rb[2] + wb[2])
        return (1 - z) * fresh + z * h, c

    def _rnn(
        self, d: int, x: Array, states: tuple[Array, Array], wide: Wide
    ) -> tuple[Array, Array]:
        h, c = states
        w, r, wb, rb = self._split(d, wide)
        return np.tanh(x @ w.T + h @ r.T + wb + rb), c


CASES = [
    *(Case(op, direction=direction, batch=batch, layout=layout, given="bhc")
      for op, direction, batch, layout in itertools.product(
          GATES, ("forward", "reverse", "bidirectional"), (1, 3, 7), (0, 1))),
    Case("LSTM", given="bp", batch=2), Case("LSTM", given="", outputs="h"),
    Case("LSTM", given="h", outputs="y"), Case("LSTM", given="c", outputs="c"),
    Case("LSTM", hidden=128, times=9, batch=2, is_symbolic=True),
    Case("LSTM", hidden=80, times=0, given="bhc"), Case("LSTM", batch=0, is_symbolic=True),
    Case("LSTM", hidden=1, size=1), Case("LSTM", hidden=288, batch=19, times=2, given="bhc"),
    Case("GRU", hidden=330, batch=9, times=2, given="bh", direction="bidirectional"),
    *(Case("GRU", linear_before_reset=1, batch=batch, given="bh", direction="bidirectional",
           hidden=hidden) for batch, hidden in itertools.product((1, 2, 5), (20, 64))),
]  # fmt: skip


@pytest.mark.parametrize("target", RUNNABLE, ids=lambda item: item.name)
def test_states_agree_with_float64(target: targets.Target) -> None:
    for case in CASES:
        arrays = case.arrays()
        graph = case.graph(arrays)
        assert families.gap(graph.nodes[0], graph) is None
        lowered = families.lower(graph.nodes[0], graph, target)
        symbols = {"t": case.times, "n": case.batch}
        found = runner.run_lowered(lowered, graph, target, arrays, symbols)
        for result, expected in zip(found, case.expected(arrays), strict=True):
            assert np.allclose(result, expected, rtol=1e-5, atol=2e-6), case


def test_a_row_does_not_depend_on_the_other_rows() -> None:
    results = []
    many = Case("LSTM", batch=7, hidden=40).arrays()
    for batch in (1, 2, 4, 7):
        case = Case("LSTM", batch=batch, hidden=40)
        arrays = {**many, "x": many["x"][:, :batch]}
        graph = case.graph(arrays)
        lowered = families.lower(graph.nodes[0], graph, targets.host())
        found = runner.run_lowered(lowered, graph, targets.host(), arrays)
        results.append(found[0][:, :, 0].tobytes())
    assert len(set(results)) == 1


@pytest.mark.parametrize("op", list(GATES))
def test_no_register_is_spilled_in_the_loops(op: str) -> None:
    case = Case(op, given="b")
    graph = case.graph(case.arrays())
    for target in targets.ALL:
        lowered = families.lower(graph.nodes[0], graph, target)
        text = lowered.steps[1].kernel.text
        assembly = assemble.emit_assembly(text, target)
        for function in re.findall(r"@(cells\w+)\(ptr %share", text):
            assert spills.count_in_assembly(assembly, target, function) == 0, (
                target.name,
                function,
            )


def test_what_is_missing_is_said() -> None:
    case = Case("LSTM")
    graph = case.graph(case.arrays())
    node = graph.nodes[0]
    clipped = Node(node.op, node.inputs, node.outputs, {**node.attrs, "clip": 3.0})
    assert "clip" in str(families.gap(clipped, graph))
    loose = graph.replace(constants={})
    assert "constant" in str(families.gap(node, loose))
