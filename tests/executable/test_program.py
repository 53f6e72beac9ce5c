"""The plan section survives a round trip, and damage is refused by name."""

from __future__ import annotations

import contextlib

import hypothesis
import hypothesis.strategies as st
import pytest

from castiron import errors
from castiron.compiler import encode
from castiron.executable import program
from castiron.tensor import dim as dims


def _sample() -> program.Program:
    written = program.Program()
    written.symbols = ("n", "w")
    written.dims = [program.SYMBOL, 0, 0, program.CONST, 3, 0]
    written.slots = [
        program.Slot("x", "float32", [0, 1], ["n", "3"]),
        program.Slot("y", "int64", None, ()),
    ]
    written.inputs, written.outputs = [0], [1]
    written.kernels, written.kernel_offsets = ("castiron_run", "k"), [0, 64]
    stage = program.NativeStage()
    stage.symbols, stage.dims = [0], [program.SYMBOL, 0, 0]
    stage.reads, stage.writes, stage.write_dims = [0], [1], [[0]]
    stage.num_steps, stage.steps = 1, [1, 0, 0, 1, 1, program.IN_SLOT, 0, 0, 0]
    stage.reasons, stage.checks = ("they must agree",), [0, 0]
    interpreted = program.InterpretedStage("Loop", (0, 17))
    interpreted.reads, interpreted.writes = [0], [1]
    written.stages = [stage, interpreted]
    written.metadata = {"author": "nobody", "character": "abc\nd"}
    return written


def test_a_program_decodes_to_what_was_encoded() -> None:
    data = program.encode(_sample())
    again = program.decode(data)
    assert program.encode(again) == data
    assert again.metadata == {"author": "nobody", "character": "abc\nd"}
    assert again.slots[1].dims is None
    assert [type(stage).__name__ for stage in again.stages] == ["NativeStage", "InterpretedStage"]


@hypothesis.given(st.integers(0, 10_000), st.integers(1, 255))
def test_a_flipped_byte_decodes_or_is_refused_but_nothing_else(at: int, flip: int) -> None:
    data = bytearray(program.encode(_sample()))
    data[at % len(data)] ^= flip
    with contextlib.suppress(errors.ExecutableError):
        program.decode(bytes(data))


def test_a_cut_program_is_refused() -> None:
    data = program.encode(_sample())
    for length in range(len(data)):
        with pytest.raises(errors.ExecutableError, match="plan section"):
            program.decode(data[:length])


@hypothesis.given(st.integers(0, 100), st.integers(0, 100))
def test_rows_of_a_dims_table_evaluate_like_the_dims(n: int, w: int) -> None:
    a, b = dims.symbol("n"), dims.symbol("w")
    wanted = [
        dims.floordiv(a * 2 + b, 3),
        dims.minimum(a, b * b),
        dims.maximum(a - b, 4),
        dims.stride_if_wide(a, b),
        7,
        a * b * 3 - 1,
    ]
    table = encode.DimsTable({"n": 0, "w": 1})
    rows = [table.row(dim) for dim in wanted]
    order = {"n": n, "w": w}
    values = program.evaluate(table.flat(), [order[name] for name in table.used])
    assert [values[row] for row in rows] == [dims.evaluate(dim, order) for dim in wanted]
