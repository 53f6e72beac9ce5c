"""Symbolic dims mean the same as the integers they stand for, in canonical form."""

from __future__ import annotations

from collections.abc import Callable

import hypothesis
import hypothesis.strategies as st
import pytest

from castiron.tensor import dim as dims
from castiron.tensor.dim import Dim

H, W, N = (dims.symbol(name) for name in "hwn")
_SYMBOLS = ("h", "w", "n")
_Symbolic = Callable[[int | Dim, int | Dim], int | Dim]
_BINARY: dict[str, tuple[_Symbolic, Callable[[int, int], int]]] = {
    "add": (dims.add, lambda a, b: a + b),
    "mul": (dims.mul, lambda a, b: a * b),
    "floordiv": (dims.floordiv, lambda a, b: a // b),
    "ceildiv": (dims.ceildiv, lambda a, b: -(-a // b)),
    "mod": (dims.mod, lambda a, b: a % b),
    "min": (dims.minimum, min),
    "max": (dims.maximum, max),
}


@st.composite
def _expressions(draw: st.DrawFn, depth: int = 4) -> tuple[int | Dim, dict[str, int], int]:
    """A dim, a binding, and the integer that plain arithmetic gives."""
    binding = {name: draw(st.integers(0, 40)) for name in _SYMBOLS}

    def build(level: int) -> tuple[int | Dim, int]:
        if level == 0 or draw(st.booleans()):
            if draw(st.booleans()):
                name = draw(st.sampled_from(_SYMBOLS))
                return dims.symbol(name), binding[name]
            number = draw(st.integers(-6, 12))
            return number, number
        kind = draw(st.sampled_from(sorted(_BINARY)))
        symbolic, plain = _BINARY[kind]
        left, left_value = build(level - 1)
        if kind in ("floordiv", "ceildiv", "mod"):
            divisor = draw(st.integers(1, 9))
            return symbolic(left, divisor), plain(left_value, divisor)
        right, right_value = build(level - 1)
        return symbolic(left, right), plain(left_value, right_value)

    expression, expected = build(depth)
    return expression, binding, expected


@hypothesis.given(_expressions())
def test_a_dim_evaluates_to_what_plain_arithmetic_gives(
    case: tuple[int | Dim, dict[str, int], int],
) -> None:
    expression, binding, expected = case
    assert dims.evaluate(expression, binding) == expected


@hypothesis.given(_expressions())
def test_substituting_every_symbol_leaves_the_same_integer(
    case: tuple[int | Dim, dict[str, int], int],
) -> None:
    expression, binding, expected = case
    assert dims.substitute(expression, binding) == expected


def test_equal_extents_reached_by_different_roads_compare_equal() -> None:
    h = dims.symbol("h")
    halves_of_quarter = dims.floordiv(dims.floordiv(h - 1, 2) + 1 - 1, 2) + 1
    assert halves_of_quarter == dims.floordiv(h + 3, 4)
    assert dims.floordiv(2 * h + 3, 2) == h + 1
    assert dims.floordiv(h * 32, h) == 32
    assert (h + 1) * (h - 1) == h * h - 1


def test_extents_that_differ_for_some_value_do_not_compare_equal() -> None:
    h = dims.symbol("h")
    assert dims.floordiv(h, 2) * 2 != h
    assert dims.ceildiv(h, 2) != dims.floordiv(h, 2)


def test_the_text_of_a_dim_reads_like_arithmetic() -> None:
    h, w = dims.symbol("h"), dims.symbol("w")
    assert dims.text(2 * h - 1) == "2*h - 1"
    assert dims.text(dims.floordiv(h + 3, 4) * w) == "((h + 3)//4)*w"
    assert dims.text(7) == "7"


def test_the_stride_of_a_broadcast_axis_is_zero_exactly_where_the_extent_is_one() -> None:
    h = dims.symbol("h")
    stride = dims.stride_if_wide(h, 5)
    assert [dims.evaluate(stride, {"h": value}) for value in (0, 1, 2)] == [5, 0, 5]
    assert dims.stride_if_wide(1, 5) == 0
    assert dims.stride_if_wide(3, 5) == 5


@hypothesis.given(_expressions())
def test_the_text_of_a_dim_is_the_same_number_in_python(
    drawn: tuple[int | Dim, dict[str, int], int],
) -> None:
    expression, binding, expected = drawn
    names = {"min": min, "max": max, **binding}
    assert eval(dims.text(expression), names) == expected  # noqa: S307  a text of our own


@pytest.mark.parametrize(
    "dim, text",
    [
        (H // 8, "h//8"),
        ((H + 13) // 14 * N, "((h + 13)//14)*n"),
        (2 * H + W // 2 - 1, "w//2 + 2*h - 1"),
        (1 - H, "-h + 1"),
        (dims.maximum(1, N) * H, "max(1, n)*h"),
        (dims.ceildiv(W, H), "-((-w)//h)"),
    ],
)
def test_dims_read_as_people_write_them(dim: Dim, text: str) -> None:
    assert dims.text(dim) == text
