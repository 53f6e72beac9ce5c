"""The loop over time of LSTM, GRU and RNN: hidden state times weights, gates, new state.

For a register of hidden units all gates are accumulated together, starting from the inputs'
share, and become the new state without going through memory. A unit runs all time steps of one
direction for a few rows of the batch; two copies of the hidden state take turns in scratch.
recurrent.py prepares the weights.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from castiron.compiler.codegen import elementary, loop
from castiron.compiler.codegen.kernels import strided
from castiron.compiler.codegen.loop import F32, I64, PTR, Function, Module, Value
from castiron.compiler.target import Target

_CHUNK_BLOCKS = 4  # registers of hidden units whose weights are used by all rows in turn
STATES = 5  # rows in scratch: two hidden states, the cell state, and two of GRU's gates

ACTIVATIONS: dict[str, Callable[[Function, Value], Value]] = {
    "Sigmoid": elementary.sigmoid,
    "Tanh": elementary.tanh,
    "Relu": lambda f, x: f.select(x < 0.0, 0.0, x),
}


@dataclasses.dataclass(frozen=True, slots=True)
class Form:
    """What the kernel's text depends on.

    ``is_linear_first`` is GRU's linear_before_reset; ``outputs`` says which of Y, Y_h and Y_c
    are wanted.
    """

    op: str
    activations: tuple[str, ...]
    is_linear_first: bool
    has_peepholes: bool
    has_hidden: bool
    has_cell: bool
    outputs: tuple[bool, ...]

    def symbol(self) -> str:
        """The kernel's name."""
        names = "".join(name[0].lower() for name in self.activations)
        flags = "".join(
            letter
            for letter, on in zip(
                "lphcyst",
                (self.is_linear_first, self.has_peepholes, self.has_hidden, self.has_cell,
                 *self.outputs),
                strict=True,
            )
            if on
        )  # fmt: skip
        return f"{self.op.lower()}_{names}_{flags}"

    def phases(self) -> list[tuple[int, ...]]:
        """Gates that are multiplied together; GRU's last gate waits for the reset gate."""
        if self.op == "GRU" and not self.is_linear_first:
            return [(0, 1), (2,)]
        return [tuple(range({"LSTM": 4, "GRU": 3, "RNN": 1}[self.op]))]

    def num_gates(self) -> int:
        """Gates in all."""
        return sum(map(len, self.phases()))

    def states(self) -> list[int]:
        """Input positions of the initial states that are given."""
        return [n for n, on in ((5, self.has_hidden), (6, self.has_cell)) if on]


def unit_rows(target: Target, matrix_bytes: int) -> int:
    """Rows of the batch that one unit runs; more where weights must come from far each time."""
    rows = _heights(target)[0]
    return rows if matrix_bytes <= target.l2_bytes else 4 * rows


def _heights(target: Target) -> tuple[int, ...]:
    """Numbers of rows that share each register of weights."""
    return (4, 2, 1) if target.num_vector_registers == 32 else (2, 1)


_CELL_PARAMS = [
    (PTR, "share"), (I64, "share_row"), (PTR, "panel"), (I64, "panel_step"), (I64, "depth"),
    (PTR, "factor"), (PTR, "old"), (PTR, "new"), (PTR, "cell"), (PTR, "extra"),
    (I64, "width"), (I64, "plane"), (I64, "at"),
]  # fmt: skip


class _Cells:
    """One function: ``rows`` rows times ``blocks`` registers of hidden units, in one phase.

    ``share``, ``panel`` and ``extra`` point to the first block's data, ``at`` is its byte offset
    inside a state row of ``width`` bytes. ``factor`` is what the weights are multiplied with: the
    old state, or in GRU's second phase the reset one. For GRU, ``cell`` has the update gate, and
    the reset state ``plane`` bytes behind it.
    """

    def __init__(self, module: Module, form: Form, phase: int, size: tuple[int, int]) -> None:
        self.form, self.phase = form, phase
        self.rows, self.blocks = size
        self.f = module.function(f"cells{phase}_{self.rows}x{self.blocks}", _CELL_PARAMS)
        self.at = dict(zip((name for _, name in _CELL_PARAMS), self.f.params, strict=True))
        self.lanes = module.target.vector_lanes_f32
        self.type = loop.vector(self.lanes, F32)
        self.step = 4 * self.lanes
        self.gates = form.phases()[phase]

    def write(self) -> Function:
        sums = self._multiplied()
        for row in range(self.rows):
            for block in range(self.blocks):
                first = (row * self.blocks + block) * len(self.gates)
                self._finish(row, block, sums[first : first + len(self.gates)])
        self.f.return_()
        return self.f

    def _share(self, row: int, block: int, gate: int) -> Value:
        f, num = self.f, self.form.num_gates()
        place = f.offset(self.at["share"], self.at["share_row"] * row if row else 0)
        return f.load(self.type, place, (block * num + gate) * self.step)

    def _starts_at_bias(self, gate: int) -> bool:
        return self.form.is_linear_first and gate == 2

    def _extra(self, block: int, vector: int, count: int) -> Value:
        return self.f.load(self.type, self.at["extra"], (block * count + vector) * self.step)

    def _multiplied(self) -> list[Value]:
        """Sums over the old hidden state, by row, block and gate."""
        f, at = self.f, self.at
        first = [
            self._extra(block, 0, 1) if self._starts_at_bias(g) else self._share(row, block, g)
            for row in range(self.rows)
            for block in range(self.blocks)
            for g in self.gates
        ]
        panels = [at["panel"]]
        panels += [f.offset(at["panel"], at["panel_step"] * n) for n in range(1, self.blocks)]
        vectors = len(self.gates)
        with f.loop(0, at["depth"], carry=[*panels, *first]) as turn:
            places, sums = turn.carried[: self.blocks], turn.carried[self.blocks :]
            scalars = []
            for row in range(self.rows):
                start = f.offset(at["factor"], at["width"] * row if row else 0)
                scalar = f.load(F32, f.offset(start, turn.index * 4))
                scalars.append(f.splat(scalar, self.lanes))
            for block, place in enumerate(places):
                for gate in range(vectors):
                    weight = f.load(self.type, place, gate * self.step)
                    for row in range(self.rows):
                        n = (row * self.blocks + block) * vectors + gate
                        sums[n] = f.fma(scalars[row], weight, sums[n])
            turn.update([*(f.offset(p, vectors * self.step) for p in places), *sums])
        return turn.results[self.blocks :]

    def _state(self, name: str, row: int, block: int, planes: int = 0) -> Value:
        """The address of a block of a state, or of one ``planes`` states behind it."""
        f, at = self.f, self.at
        place = f.offset(at[name], at["width"] * row if row else 0)
        if planes:
            place = f.offset(place, at["plane"] * planes)
        return f.offset(f.offset(place, at["at"]), block * self.step)

    def _activated(self, number: int, x: Value) -> Value:
        return ACTIVATIONS[self.form.activations[number]](self.f, x)

    def _finish(self, row: int, block: int, sums: Sequence[Value]) -> None:
        finish = {"LSTM": self._lstm, "GRU": self._gru, "RNN": self._rnn}[self.form.op]
        finish(row, block, sums)

    def _rnn(self, row: int, block: int, sums: Sequence[Value]) -> None:
        self.f.store(self._activated(0, sums[0]), self._state("new", row, block))

    def _lstm(self, row: int, block: int, sums: Sequence[Value]) -> None:
        f = self.f
        enter, leave, keep, fresh = sums
        place = self._state("cell", row, block)
        cell = f.load(self.type, place)
        if self.form.has_peepholes:
            enter = f.fma(self._extra(block, 0, 3), cell, enter)
            keep = f.fma(self._extra(block, 2, 3), cell, keep)
        kept = self._activated(0, keep) * cell
        cell = f.fma(self._activated(0, enter), self._activated(1, fresh), kept)
        f.store(cell, place)
        if self.form.has_peepholes:
            leave = f.fma(self._extra(block, 1, 3), cell, leave)
        hidden = self._activated(0, leave) * self._activated(2, cell)
        f.store(hidden, self._state("new", row, block))

    def _gru(self, row: int, block: int, sums: Sequence[Value]) -> None:
        f = self.f
        old = f.load(self.type, self._state("old", row, block))
        if self.form.is_linear_first:
            update, reset, own = sums
            mixed = f.fma(self._activated(0, reset), own, self._share(row, block, 2))
            fresh = self._activated(1, mixed)
            self._blend(row, block, (self._activated(0, update), fresh, old))
        elif self.phase == 0:
            update, reset = sums
            f.store(self._activated(0, update), self._state("cell", row, block))
            f.store(self._activated(0, reset) * old, self._state("cell", row, block, 1))
        else:
            update = f.load(self.type, self._state("cell", row, block))
            self._blend(row, block, (update, self._activated(1, sums[0]), old))

    def _blend(self, row: int, block: int, parts: tuple[Value, Value, Value]) -> None:
        update, fresh, old = parts
        hidden = self.f.fma(update, old - fresh, fresh)
        self.f.store(hidden, self._state("new", row, block))


def text(form: Form, target: Target) -> str:
    """The whole kernel."""
    module = Module(target)
    run = _Run(module, form).write()
    f = module.kernel(form.symbol())
    args, begin, end, scratch = f.params
    at = _arguments(f, form, args)
    with f.loop(begin, end) as unit:
        block = unit.index // at["directions"]
        direction = unit.index - block * at["directions"]
        first = block * at["unit_rows"]
        count = f.minimum(at["batch"] - first, at["unit_rows"])
        f.call(run, [args, scratch, direction, first, count])
    f.return_()
    return module.text()


_NUMBERS = (
    "times batch hidden blocks is_reversed directions matrix_bytes"
    " unit_rows y_time y_direction y_row state_direction state_row share_time share_row"
).split()


def _arguments(f: Function, form: Form, args: Value) -> dict[str, Value]:
    """Operands and params by name; absent operands have no entry."""
    labels = ["share", "matrix"]
    labels += ["extra"] if form.is_linear_first or form.has_peepholes else []
    labels += [name for name, on in (("h0", form.has_hidden), ("c0", form.has_cell)) if on]
    labels += [n for n, on in zip(("y", "y_h", "y_c"), form.outputs, strict=True) if on]
    at = {label: f.argument(args, n, PTR) for n, label in enumerate(labels)}
    return at | {name: f.argument(args, len(labels) + n) for n, name in enumerate(_NUMBERS)}


class _Run:
    """All time steps of one direction: ``run(args, scratch, direction, row, count)``.

    ``count`` rows from ``row`` on. Weights are walked in the outer loop of a step, groups of rows
    in the inner one, so that all rows use a panel while it is near. Every other step walks the
    weights backward: where they exceed the cache, it still holds what was walked last.
    """

    def __init__(self, module: Module, form: Form) -> None:
        self.form = form
        self.copy, self.fill = strided.copier(module), strided.filler(module, 4)
        self.heights = _heights(module.target)
        self.together = {
            (phase, rows): _blocks_together(module.target, rows * len(gates))
            for phase, gates in enumerate(form.phases())
            for rows in self.heights
        }
        self.cells = {
            (phase, rows, blocks): _Cells(module, form, phase, (rows, blocks)).write()
            for (phase, rows), most in self.together.items()
            for blocks in sorted({1, most})
        }
        params = [(PTR, "args"), (PTR, "scratch"), (I64, "direction"), (I64, "row"), (I64, "count")]
        self.f = module.function("run", params)
        args, self.scratch, self.direction, self.row, self.count = self.f.params
        self.at = _arguments(self.f, form, args)
        self.vector = 4 * module.target.vector_lanes_f32
        self.width = self.at["blocks"] * self.vector
        self.plane = self.width * self.at["unit_rows"]

    def write(self) -> Function:
        f, at = self.f, self.at
        states = [f.offset(self.scratch, self.plane * n) for n in range(3)]
        f.call(self.fill, [self.scratch, f.const(0, "i32"), (self.plane * 3) >> 2])
        for name, state in (("h0", states[0]), ("c0", states[2])):
            if name in at:
                self._move(state, self._state_row(name), ("state_row", False))
        backward = (at["is_reversed"] + self.direction) > 0
        with f.loop(0, at["times"], carry=states[:2]) as turn:
            old, new = turn.carried
            time = f.select(backward, at["times"] - 1 - turn.index, turn.index)
            is_odd = (turn.index & 1).equals(1)
            for phase in range(len(self.form.phases())):
                self._phase(phase, is_odd, self._places(phase, time, (old, new, states[2])))
            if "y" in at:
                place = f.offset(at["y"], time * at["y_time"] + self.row * at["y_row"])
                place = f.offset(place, self.direction * at["y_direction"])
                self._move(new, place, ("y_row", True))
            turn.update([new, old])
        for name, state in (("y_h", turn.results[0]), ("y_c", states[2])):
            if name in at:
                self._move(state, self._state_row(name), ("state_row", True))
        f.return_()
        return f

    def _state_row(self, name: str) -> Value:
        at = self.at
        skipped = self.direction * at["state_direction"] + self.row * at["state_row"]
        return self.f.offset(at[name], skipped)

    def _move(self, state: Value, outside: Value, how: tuple[str, bool]) -> None:
        """Copy the rows of a state from or to a value outside."""
        stride, goes_out = how
        with self.f.loop(0, self.count) as turn:
            inner = self.f.offset(state, self.width * turn.index)
            outer = self.f.offset(outside, self.at[stride] * turn.index)
            pair = [outer, inner] if goes_out else [inner, outer]
            self.f.call(self.copy, [*pair, self.at["hidden"] * 4])

    def _phase(self, phase: int, is_odd: Value, here: dict[str, Value]) -> None:
        """All blocks and rows of one phase of one time step."""
        f, blocks = self.f, self.at["blocks"]
        chunks = (blocks + (_CHUNK_BLOCKS - 1)) // _CHUNK_BLOCKS
        with f.loop(0, chunks) as turn:
            chunk = f.select(is_odd, chunks - 1 - turn.index, turn.index)
            first = chunk * _CHUNK_BLOCKS
            last = f.minimum(first + _CHUNK_BLOCKS, blocks)
            done = f.const(0, I64)
            for rows in self.heights:
                following = self.count - self.count % rows
                with f.loop(done, following, rows) as group:
                    self._blocks(phase, rows, group.index, (here, first, last))
                done = following

    def _places(
        self, phase: int, time: Value, states: tuple[Value, Value, Value]
    ) -> dict[str, Value]:
        """What the cells of the first block and row read and write."""
        f, at, form = self.f, self.at, self.form
        old, new, cell = states
        gates = form.num_gates() * self.vector
        share = f.offset(at["share"], time * at["share_time"] + self.row * at["share_row"])
        panel = f.offset(at["matrix"], self.direction * at["matrix_bytes"])
        if phase:
            before = at["hidden"] * (len(form.phases()[0]) * self.vector)
            panel = f.offset(panel, at["blocks"] * before)
        extra = self.direction * at["blocks"] * self._extra_step()
        return {
            "share": f.offset(share, self.direction * at["blocks"] * gates),
            "share_row": at["share_row"],
            "panel": panel,
            "panel_step": at["hidden"] * (len(form.phases()[phase]) * self.vector),
            "depth": at["hidden"],
            "factor": f.offset(cell, self.plane) if phase else old,
            "old": old,
            "new": new,
            "cell": cell,
            "extra": f.offset(at.get("extra", at["share"]), extra),
            "width": self.width,
            "plane": self.plane,
        }

    def _extra_step(self) -> int:
        return self.vector * (3 if self.form.has_peepholes else 1)

    def _blocks(
        self, phase: int, rows: int, row: Value, span: tuple[dict[str, Value], Value, Value]
    ) -> None:
        """The blocks of a chunk for one group of rows."""
        f = self.f
        here, done, last = span
        gates = self.form.num_gates() * self.vector
        down = {"share": self.at["share_row"]}
        down |= dict.fromkeys(("factor", "old", "new", "cell"), self.width)
        group = {**here, **{name: f.offset(here[name], row * by) for name, by in down.items()}}
        for blocks in sorted({1, self.together[phase, rows]}, reverse=True):
            following = last - (last - done) % blocks
            with f.loop(done, following, blocks) as turn:
                n = turn.index
                now = {
                    **group,
                    "share": f.offset(group["share"], n * gates),
                    "panel": f.offset(here["panel"], n * here["panel_step"]),
                    "extra": f.offset(here["extra"], n * self._extra_step()),
                    "at": n * self.vector,
                }
                f.call(self.cells[phase, rows, blocks], [now[name] for _, name in _CELL_PARAMS])
            done = following


def _blocks_together(target: Target, sums_per_block: int) -> int:
    """Blocks whose sums fit the registers and hide the latency of multiply-adds."""
    most = 16 if target.num_vector_registers == 32 else 8
    return min(4, max(1, most // sums_per_block))
