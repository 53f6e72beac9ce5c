"""Loops over a run of elements by vectors: whole vectors first, then one that is masked.

The body is written once and printed up to three times: for several vectors abreast, for one, and
for the masked rest. Nothing outside the run is read or written. Kernels for elementwise work,
reductions and norms are made of such sweeps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from castiron.compiler.codegen import loop
from castiron.compiler.codegen.loop import Function, Value

# (index of the first element, mask or None, carried values) -> carried values updated
Body = Callable[[Value, Value | None, list[Value]], list[Value]]

# A run of known length up to this many vectors is printed without a loop.
_MOST_STRAIGHT = 6


def sweep(
    f: Function,
    count: Value | int,
    lanes: int,
    body: Body,
    carry: Sequence[Value] = (),
    *,
    ways: int = 1,
) -> list[list[Value]]:  # limit: seven words that every sweep needs
    """Run ``body`` over elements ``[0, count)``, ``lanes`` at a time, ``ways`` vectors abreast.

    Each way carries its own copy of ``carry``, so that chains of additions do not wait for each
    other; the result is one list of final values for each way. Vectors are dealt to the ways in a
    fixed order that depends on ``count`` alone.
    """
    states = [list(carry) for _ in range(ways)]
    if isinstance(count, int):
        if count <= lanes * max(ways, _MOST_STRAIGHT):
            return _straight(f, count, lanes, body, states)
        count = f.const(count, loop.I64)
    start: Value | int = 0
    if ways > 1:
        states, start = _abreast(f, count, lanes, body, states)
    whole = count & -lanes
    with f.loop(start, whole, lanes, states[0]) as single:
        single.update(body(single.index, None, single.carried))
    states[0] = single.results
    if lanes > 1:
        # At most one turn: a loop rather than a branch, since it carries values.
        with f.loop(whole, count, lanes, states[0]) as rest:
            mask = f.lane_mask(count - rest.index, lanes)
            rest.update(body(rest.index, mask, rest.carried))
        states[0] = rest.results
    return states


def _straight(
    f: Function, count: int, lanes: int, body: Body, states: list[list[Value]]
) -> list[list[Value]]:
    whole = count - count % lanes
    for number, first in enumerate(range(0, whole, lanes)):
        way = number % len(states)
        states[way] = body(f.const(first, loop.I64), None, states[way])
    if whole < count:
        mask = f.lane_mask(f.const(count - whole, loop.I64), lanes)
        states[0] = body(f.const(whole, loop.I64), mask, states[0])
    return states


def _abreast(
    f: Function, count: Value, lanes: int, body: Body, states: list[list[Value]]
) -> tuple[list[list[Value]], Value]:
    ways, width = len(states), len(states[0])
    stop = count & -(lanes * ways)
    flat = [value for state in states for value in state]
    with f.loop(0, stop, lanes * ways, flat) as wide:
        updated: list[Value] = []
        for way in range(ways):
            mine = wide.carried[way * width : (way + 1) * width]
            updated += body(wide.index + way * lanes if way else wide.index, None, mine)
        wide.update(updated)
    ends = wide.results
    return [ends[way * width : (way + 1) * width] for way in range(ways)], stop


def read(
    f: Function, type_: str, place: Value, mask: Value | None, otherwise: float | int = 0
) -> Value:
    """Load a vector, or the lanes of it that the mask names."""
    if mask is None:
        return f.load(type_, place)
    return f.masked_load(type_, place, mask, otherwise)


def write(f: Function, value: Value, place: Value, mask: Value | None) -> None:
    """Store a vector, or the lanes of it that the mask names."""
    if mask is None:
        f.store(value, place)
    else:
        f.masked_store(value, place, mask)


def fold(f: Function, value: Value, join: Callable[[Value, Value], Value]) -> Value:
    """All lanes joined into a scalar, halves upon halves: a fixed order for each width."""
    lanes = loop.lanes_of(value.type)
    while lanes > 1:
        half = lanes // 2
        lower = f.shuffle(value, value, range(half))
        upper = f.shuffle(value, value, range(half, lanes))
        if half == 1:
            lower, upper = f.extract(value, 0), f.extract(value, 1)
        value = join(lower, upper)
        lanes = half
    return value


def fold_ways(states: list[list[Value]], join: Callable[[Value, Value], Value]) -> list[Value]:
    """The ways' values joined in order, position by position."""
    result = states[0]
    for state in states[1:]:
        result = [join(a, b) for a, b in zip(result, state, strict=True)]
    return result
