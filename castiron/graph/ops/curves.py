"""Trigonometric and hyperbolic functions as expressions of exp, log, sqrt, sin, cos and atan.

Near 0, where those lose digits, a short Taylor series takes over. Each takes a float expression.
"""

from __future__ import annotations

from castiron.graph import expr
from castiron.graph.expr import Expr

_SINH = (1.0, 1 / 6, 1 / 120, 1 / 5040, 1 / 362880)  # of x, x^3, x^5, ...
_ASINH = (1.0, -1 / 6, 3 / 40, -15 / 336, 105 / 3456)
_ATANH = (1.0, 1 / 3, 1 / 5, 1 / 7, 1 / 9)
_SERIES_BELOW = 0.2


def _k(value: float, like: Expr) -> Expr:
    return expr.const(value, like.dtype)


def _mul(left: Expr, right: Expr) -> Expr:
    return expr.apply("mul", left, right)


def _odd_series(x: Expr, coefficients: tuple[float, ...]) -> Expr:
    """x * (c0 + c1 x^2 + c2 x^4 + ...)."""
    square = _mul(x, x)
    total = _k(coefficients[-1], x)
    for coefficient in reversed(coefficients[:-1]):
        total = expr.apply("add", _mul(total, square), _k(coefficient, x))
    return _mul(x, total)


def _near_zero(x: Expr, series: Expr, elsewhere: Expr) -> Expr:
    limit = _k(_SERIES_BELOW, x)
    small = expr.apply("less", expr.apply("abs", x), limit, dtype="bool")
    return expr.apply("where", small, series, elsewhere)


def tan(x: Expr) -> Expr:
    """sin / cos."""
    return expr.apply("div", expr.apply("sin", x), expr.apply("cos", x))


def cosh(x: Expr) -> Expr:
    """(e^x + e^-x) / 2, halved before the sum so that only the result overflows."""
    half = _k(0.5, x)
    up = _mul(expr.apply("exp", x), half)
    return expr.apply("add", up, _mul(expr.apply("exp", expr.apply("neg", x)), half))


def sinh(x: Expr) -> Expr:
    """(e^x - e^-x) / 2."""
    half = _k(0.5, x)
    up = _mul(expr.apply("exp", x), half)
    down = _mul(expr.apply("exp", expr.apply("neg", x)), half)
    return _near_zero(x, _odd_series(x, _SINH), expr.apply("sub", up, down))


def asinh(x: Expr) -> Expr:
    """sign(x) * log(|x| + sqrt(x^2 + 1))."""
    size = expr.apply("abs", x)
    root = expr.apply("sqrt", expr.apply("add", _mul(x, x), _k(1.0, x)))
    curve = _mul(expr.apply("sign", x), expr.apply("log", expr.apply("add", size, root)))
    return _near_zero(x, _odd_series(x, _ASINH), curve)


def acosh(x: Expr) -> Expr:
    """log(x + sqrt((x - 1) * (x + 1)))."""
    one = _k(1.0, x)
    product = _mul(expr.apply("sub", x, one), expr.apply("add", x, one))
    return expr.apply("log", expr.apply("add", x, expr.apply("sqrt", product)))


def atanh(x: Expr) -> Expr:
    """log((1 + x) / (1 - x)) / 2."""
    one = _k(1.0, x)
    quotient = expr.apply("div", expr.apply("add", one, x), expr.apply("sub", one, x))
    curve = _mul(expr.apply("log", quotient), _k(0.5, x))
    return _near_zero(x, _odd_series(x, _ATANH), curve)


def _cosine_of_arc(x: Expr) -> Expr:
    """sqrt((1 - x) * (1 + x)), the other leg of the triangle."""
    one = _k(1.0, x)
    product = _mul(expr.apply("sub", one, x), expr.apply("add", one, x))
    return expr.apply("sqrt", product)


def asin(x: Expr) -> Expr:
    """2 atan(x / (1 + sqrt(1 - x^2)))."""
    below = expr.apply("add", _k(1.0, x), _cosine_of_arc(x))
    return _mul(expr.apply("atan", expr.apply("div", x, below)), _k(2.0, x))


def acos(x: Expr) -> Expr:
    """2 atan(sqrt(1 - x) / sqrt(1 + x)); pi at -1, where the quotient is infinite."""
    one = _k(1.0, x)
    above = expr.apply("sqrt", expr.apply("sub", one, x))
    below = expr.apply("sqrt", expr.apply("add", one, x))
    return _mul(expr.apply("atan", expr.apply("div", above, below)), _k(2.0, x))


CURVES = {
    "Tan": tan, "Cosh": cosh, "Sinh": sinh, "Asinh": asinh, "Acosh": acosh, "Atanh": atanh,
    "Asin": asin, "Acos": acos,
}  # fmt: skip
