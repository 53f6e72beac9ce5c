"""The loop language: what it prints is what it says, on every instruction set of this machine."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import numpy as np
import pytest

from castiron.compiler import target as targets
from castiron.compiler.codegen import loop
from castiron.compiler.codegen.loop import F32, F64, I32, I64, PTR, Function, Module, Value
from tests.codegen import runner

TARGETS = [target for target in targets.ALL if runner.can_run(target)]
each_target = pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)

Write = Callable[[Function, Value, Value, Value], None]


def ran(
    write: Write, given: np.ndarray, result: np.ndarray, target: targets.Target, count: int
) -> np.ndarray:
    """A kernel written by ``write(f, source, result, count)``, run once."""
    module = Module(target)
    f = module.kernel("tested")
    args = f.params[0]
    write(f, f.argument(args, 0, PTR), f.argument(args, 1, PTR), f.argument(args, 2))
    f.return_()
    block = (ctypes.c_int64 * 3)(given.ctypes.data, result.ctypes.data, count)
    place = runner.address(module.text(), target, "tested")
    kernel = ctypes.CFUNCTYPE(
        None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p
    )
    kernel(place)(ctypes.addressof(block), 0, 1, None)
    return result


@each_target
@pytest.mark.parametrize("count", [0, 1, 7])
def test_a_loop_carries_values_from_turn_to_turn(target: targets.Target, count: int) -> None:
    def write(f: Function, source: Value, result: Value, number: Value) -> None:
        carry = [f.const(0.0, F64), f.const(1.0, F64)]
        with f.loop(0, number, carry=carry) as turn:
            total, product = turn.carried
            x = f.load(F64, source, turn.index * 8)
            turn.update([total + x, product * x])
        for at, value in enumerate(turn.results):
            f.store(value, result, 8 * at)

    given = np.arange(1.0, 8.0)
    found = ran(write, given, np.zeros(2), target, count)
    assert found.tolist() == [given[:count].sum(), given[:count].prod()]


@each_target
def test_nested_loops_and_steps_reach_every_place_once(target: targets.Target) -> None:
    def write(f: Function, source: Value, result: Value, number: Value) -> None:
        del source
        with f.loop(0, number, 2) as row, f.loop(row.index, number, 3) as column:
            place = (row.index * number + column.index) * 4
            f.store(f.load(I32, result, place) + 1, result, place)

    found = ran(write, np.zeros(1), np.zeros((9, 9), np.int32), target, 9)
    wanted = np.zeros((9, 9), np.int32)
    for row in range(0, 9, 2):
        wanted[row, row::3] += 1
    np.testing.assert_array_equal(found, wanted)


@each_target
@pytest.mark.parametrize("count", [3, 4])
def test_branches_run_where_their_condition_says(target: targets.Target, count: int) -> None:
    def write(f: Function, source: Value, result: Value, number: Value) -> None:
        del source
        condition = number.equals(3)
        with f.when(condition):
            f.store(f.const(1, I32), result)
        with f.unless(condition):
            f.store(f.const(1, I32), result, 4)

    found = ran(write, np.zeros(1), np.zeros(2, np.int32), target, count)
    assert found.tolist() == [int(count == 3), int(count != 3)]


@each_target
def test_arithmetic_takes_numbers_on_either_side(target: targets.Target) -> None:
    def write(f: Function, source: Value, result: Value, number: Value) -> None:
        x = f.load(F32, source)
        floats = [x + 2, 2 - x, x * 0.5, 1 / x, x - 1, f.fma(x, 3.0, 1.0)]
        for at, value in enumerate(floats):
            f.store(value, result, 4 * at)
        whole = [number // 3, number % 3, number << 2, number >> 1, number ^ 5, 10 - number]
        for at, value in enumerate(whole, len(floats)):
            f.store(f.convert("sitofp", value, F32), result, 4 * at)
        f.store(f.convert("sitofp", f.minimum(number, 3), F32), result, 48)
        f.store(f.convert("sitofp", f.maximum(number, 3), F32), result, 52)

    found = ran(write, np.array([4.0], np.float32), np.zeros(14, np.float32), target, 7)
    assert found.tolist() == [6, -2, 2, 0.25, 3, 13, 2, 1, 28, 3, 2, 3, 3, 7]


@each_target
@pytest.mark.parametrize("count", [0, 1, 3, 4, 9])
def test_masked_lanes_are_neither_read_nor_written(target: targets.Target, count: int) -> None:
    def write(f: Function, source: Value, result: Value, number: Value) -> None:
        mask = f.lane_mask(number, 4)
        values = f.masked_load(loop.vector(4, F32), source, mask, 9.0)
        f.masked_store(values * 2, result, mask)
        f.store(values, result, 16)

    given = np.arange(1, 5, dtype=np.float32)
    found = ran(write, given, np.full(8, -1, np.float32), target, count)
    kept = min(count, 4)
    assert found[:4].tolist() == [2 * v for v in given[:kept]] + [-1] * (4 - kept)
    assert found[4:].tolist() == [*given[:kept], *[9.0] * (4 - kept)]


@each_target
def test_vectors_are_splat_shuffled_and_taken_apart(target: targets.Target) -> None:
    def write(f: Function, source: Value, result: Value, number: Value) -> None:
        del number
        x = f.load(loop.vector(4, F32), source)
        turned = f.shuffle(x, x * 10, [3, 4, 1, 6])
        chosen = f.select(turned > 2, turned, 0)
        f.store(chosen + f.splat(f.extract(x, 0), 4), result)

    found = ran(write, np.arange(1, 5, dtype=np.float32), np.zeros(4, np.float32), target, 0)
    assert found.tolist() == [5, 11, 1, 31]


@each_target
def test_a_function_calls_another_and_keeps_slots_of_its_own(target: targets.Target) -> None:
    def write(f: Function, source: Value, result: Value, number: Value) -> None:
        del source
        inner = f.module.function("squared", [(I64, "x")], returns=I64)
        place = inner.slots(1, I64)
        inner.store(inner.params[0] * inner.params[0], place)
        inner.return_(inner.load(I64, place))
        f.store(f.call(inner, [number]) + f.call(inner, [2]), result)

    assert ran(write, np.zeros(1), np.zeros(1, np.int64), target, 5).tolist() == [29]


def test_a_constant_table_is_read_only_data_of_the_module() -> None:
    module = Module(targets.named("baseline"))
    f = module.function("f", [])
    assert module.table("squares", F32, [0, 1, 4]) == "@squares"
    f.return_()
    assert "@squares = internal constant [3 x float] [float 0x" in module.text()


@pytest.mark.parametrize(
    "type_, element, lanes, mangled",
    [
        ("float", "float", 1, "f32"),
        ("<8 x float>", "float", 8, "v8f32"),
        ("<2 x i64>", "i64", 2, "v2i64"),
        ("ptr", "ptr", 1, "p0"),
        ("<4 x double>", "double", 4, "v4f64"),
    ],
)
def test_a_type_is_known_by_its_text(type_: str, element: str, lanes: int, mangled: str) -> None:
    assert loop.element_of(type_) == element
    assert loop.lanes_of(type_) == lanes
    assert loop.mangled(type_) == mangled
    assert loop.vector(lanes, element) == type_


@pytest.mark.parametrize(
    "value, type_, text",
    [
        (1.0, "float", "0x3FF0000000000000"),
        (0.1, "float", "0x3FB99999A0000000"),
        (0.1, "double", "0x3FB999999999999A"),
        (float("-inf"), "float", "0xFFF0000000000000"),
        (True, "i1", "true"),
        (-3, "i32", "-3"),
        (2, "<4 x i32>", "splat (i32 2)"),
    ],
)
def test_constants_are_written_to_the_bit(value: float, type_: str, text: str) -> None:
    assert loop.literal(value, type_) == text


def test_what_does_not_fit_a_type_is_our_own_fault() -> None:
    f = Module(targets.named("baseline")).function("f", [(I64, "x"), (F32, "y")])
    with pytest.raises(AssertionError, match="cannot use float as i64"):
        f.params[0] + f.params[1]
    with (
        pytest.raises(AssertionError, match="every carried value needs its update"),
        f.loop(0, 1, carry=[f.params[0]]) as turn,
    ):
        turn.update([])
