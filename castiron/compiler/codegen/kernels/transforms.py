"""The arithmetic of minimal filtering for 3-tap filters: F(2,3) and F(4,3).

One axis of a tile of ``outputs`` results needs ``outputs + 2`` inputs and as many products. The
points of F(4,3) are 0, +-5/8, +-3/2 and infinity: all constants of its input and output
transforms are exact in float32, and its error is about half of that with the points 0, +-1, +-2.
Weights are transformed at build time in float64. Two axes apply one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from castiron.compiler.codegen.loop import Function, Value

_A, _B = 5 / 8, 3 / 2
Transform = Callable[[Function, Sequence[Value]], list[Value]]


def weights_2d(filters: np.ndarray, outputs: int) -> np.ndarray:
    """[products * products, channels, filters] of filters [filters, channels, 3, 3]."""
    matrix = _matrix(outputs)
    both = np.kron(matrix, matrix)
    count, channels = filters.shape[:2]
    result = np.empty((both.shape[0], channels, count), np.float32)
    for number in range(count):
        result[:, :, number] = both @ filters[number].reshape(channels, 9).astype(np.float64).T
    return result


def _matrix(outputs: int) -> np.ndarray:
    """The weights' transform of one axis: a row for each product."""
    if outputs == 2:
        return np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]])
    a, b = _A, _B
    near, far = 2 * a * a * (a * a - b * b), 2 * b * b * (b * b - a * a)
    rows = [[1 / (a * a * b * b), 0, 0]]
    rows += [[1 / near, sign * a / near, a * a / near] for sign in (1, -1)]
    rows += [[1 / far, sign * b / far, b * b / far] for sign in (1, -1)]
    return np.array([*rows, [0, 0, 1]])


def of_input(outputs: int) -> Transform:
    """One axis of the input's transform."""
    return _input_2 if outputs == 2 else _input_4


def of_products(outputs: int) -> Transform:
    """One axis of the products' transform to outputs."""
    return _output_2 if outputs == 2 else _output_4


def square(
    f: Function, transform: Transform, values: Sequence[Sequence[Value]]
) -> list[list[Value]]:
    """The transform along columns, then along rows."""
    columns = [transform(f, column) for column in zip(*values, strict=True)]
    return [transform(f, row) for row in zip(*columns, strict=True)]


def _input_2(_: Function, d: Sequence[Value]) -> list[Value]:
    return [d[0] - d[2], d[1] + d[2], d[2] - d[1], d[1] - d[3]]


def _output_2(_: Function, m: Sequence[Value]) -> list[Value]:
    return [m[0] + m[1] + m[2], m[1] - m[2] - m[3]]


def _input_4(f: Function, d: Sequence[Value]) -> list[Value]:
    first, last = _ends(f, d)
    near = _pair(f, d, (_A, _B))
    far = _pair(f, d, (_B, _A))
    return [first, *near, *far, last]


def _ends(f: Function, d: Sequence[Value]) -> list[Value]:
    """Components 0 and 5: the points 0 and infinity."""
    product, total = (_A * _B) ** 2, -(_A * _A + _B * _B)
    first = _scaled(f, product, d[0], _scaled(f, total, d[2], d[4]))
    return [first, _scaled(f, product, d[1], _scaled(f, total, d[3], d[5]))]


def _pair(f: Function, d: Sequence[Value], points: tuple[float, float]) -> list[Value]:
    """The components of +-point, which vanish at the other points."""
    point, other = points
    even, odd = (_scaled(f, -other * other, d[n], d[n + 2]) for n in (2, 1))
    return [_scaled(f, point, odd, even), _scaled(f, -point, odd, even)]


def input_passes(outputs: int) -> tuple[tuple[tuple[int, ...], Transform], ...]:
    """The transform of one axis in passes that each give some components: (which, how).

    A whole square of F(4,3) has more values than there are registers; reading the patch again
    for each pass is cheaper than keeping them on the stack.
    """
    if outputs == 2:
        return (((0, 1, 2, 3), _input_2),)
    return (
        ((0, 5), _ends),
        ((1, 2), lambda f, d: _pair(f, d, (_A, _B))),
        ((3, 4), lambda f, d: _pair(f, d, (_B, _A))),
    )


def _output_4(f: Function, m: Sequence[Value]) -> list[Value]:
    sum_a, sum_b = m[1] + m[2], m[3] + m[4]
    gap_a, gap_b = m[1] - m[2], m[3] - m[4]
    return [
        m[0] + sum_a + sum_b,
        _scaled(f, _A, gap_a, gap_b * _B),
        _scaled(f, _A * _A, sum_a, sum_b * (_B * _B)),
        _scaled(f, _A**3, gap_a, _scaled(f, _B**3, gap_b, m[5])),
    ]


def _scaled(f: Function, factor: float, value: Value, addend: Value) -> Value:
    return f.fma(value, f.const(factor, value.type), addend)
