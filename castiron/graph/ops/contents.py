"""The arithmetic of small tensors of sizes: integer contents as dims, float ones as ratios.

Rules of elementwise and movement ops call this to keep the elements of shape tensors known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np

from castiron.graph.graph import Extent, Shape
from castiron.graph.ops import bounds
from castiron.graph.ops.rule import Ratio, Site, whole
from castiron.tensor import dim as dims
from castiron.tensor import dtype as dtypes

Contents = tuple[Extent, ...]
LIMIT = 64  # larger tensors are data, not shape arithmetic
_LARGEST_DENOMINATOR = 1 << 10  # float32 products with sizes below 2**14 stay exact


def _truth(answer: bool | None) -> Extent | None:
    return None if answer is None else int(answer)


def _mod(left: Extent, right: Extent) -> Extent | None:
    return dims.mod(left, right) if bounds.is_positive(right) else None


def _less_equal(left: Extent, right: Extent) -> Extent | None:
    answer = bounds.is_less(right, left)
    return None if answer is None else int(not answer)


INTEGER_BINARY: dict[str, Callable[[Extent, Extent], Extent | None]] = {
    "Add": dims.add,
    "Sub": bounds.sub,
    "Mul": dims.mul,
    "Div": bounds.truncdiv,
    "Mod": _mod,
    "Min": bounds.minimum,
    "Max": bounds.maximum,
    "Equal": lambda a, b: _truth(bounds.is_equal(a, b)),
    "Less": lambda a, b: _truth(bounds.is_less(a, b)),
    "Greater": lambda a, b: _truth(bounds.is_less(b, a)),
    "LessOrEqual": _less_equal,
    "GreaterOrEqual": lambda a, b: _less_equal(b, a),
    "And": lambda a, b: _logic(a, b, absorbing=0),
    "Or": lambda a, b: _logic(a, b, absorbing=1),
}


def _logic(left: Extent, right: Extent, absorbing: int) -> Extent | None:
    if absorbing in (left, right):
        return absorbing
    return right if left == 1 - absorbing else left


def is_small(shape: Shape | None) -> bool:
    """Whether a tensor of this shape may have contents."""
    return (
        shape is not None
        and len(shape) <= 1
        and all(not isinstance(extent, dims.Dim) and extent <= LIMIT for extent in shape)
    )


def stretch(parts: Sequence[tuple[object, ...]], shape: Shape) -> list[list[object]]:
    """The elements of each part, repeated to the (small) broadcast shape."""
    size = whole(shape[0]) if shape else 1
    return [list(part) * size if len(part) == 1 else list(part) for part in parts]


def binary(op: str, left: Contents, right: Contents, shape: Shape) -> Contents | None:
    """Elementwise integer arithmetic; None when one element is not known."""
    function = INTEGER_BINARY.get(op)
    if function is None:
        return None
    found = [function(a, b) for a, b in zip(*stretch([left, right], shape), strict=True)]
    return _all_known(found)


def where(parts: Sequence[Contents], shape: Shape) -> Contents | None:
    """Where on known conditions, or on equal branches."""
    found: list[Extent | None] = []
    for condition, yes, no in zip(*stretch(parts, shape), strict=True):
        if yes == no or condition == 1:
            found.append(yes)
        else:
            found.append(no if condition == 0 else None)
    return _all_known(found)


def _all_known(found: Sequence[Extent | None]) -> Contents | None:
    known = tuple(item for item in found if item is not None)
    return known if len(known) == len(found) else None


def ratios_of(site: Site, index: int) -> tuple[Ratio, ...] | None:
    """The exact elements of a small float input, or of an integer one, or None."""
    name = site.name(index)
    if name in site.ratios:
        return site.ratios[name]
    contents = site.contents(index)
    if contents is not None:
        return tuple(Ratio(item, 1) for item in contents)
    array = site.array(index)
    if array is None or array.size > LIMIT or array.ndim > 1 or array.dtype.kind != "f":
        return None
    if not np.isfinite(array).all():
        return None
    fractions = [Fraction(float(item)) for item in array.reshape(-1)]
    if any(item.denominator > _LARGEST_DENOMINATOR for item in fractions):
        return None
    return tuple(Ratio(item.numerator, item.denominator) for item in fractions)


def ratio_binary(op: str, left: Ratio, right: Ratio) -> Ratio | None:
    """Exact arithmetic of two ratios; None where floats would round."""
    if not _is_binary(left.denominator) or not _is_binary(right.denominator):
        return None
    if op in ("Add", "Sub"):
        sign = 1 if op == "Add" else -1
        top = dims.add(
            dims.mul(left.numerator, right.denominator),
            dims.mul(right.numerator, sign * left.denominator),
        )
        return _reduced(top, left.denominator * right.denominator)
    if op == "Mul":
        top = dims.mul(left.numerator, right.numerator)
        return _reduced(top, left.denominator * right.denominator)
    if op == "Div":
        return _ratio_divide(left, right)
    return None


def _is_binary(denominator: int) -> bool:
    return denominator & (denominator - 1) == 0


def _ratio_divide(left: Ratio, right: Ratio) -> Ratio | None:
    if left == right and bounds.is_positive(left.numerator):
        return Ratio(1, 1)
    if isinstance(right.numerator, dims.Dim) or right.numerator <= 0:
        exact = dims.floordiv(left.numerator, right.numerator) if right.numerator else None
        if exact is None or dims.mul(exact, right.numerator) != left.numerator:
            return None
        return _reduced(dims.mul(exact, right.denominator), left.denominator)
    top = dims.mul(left.numerator, right.denominator)
    return _reduced(top, left.denominator * right.numerator)


def _reduced(top: Extent, bottom: int) -> Ratio:
    exact = dims.floordiv(top, bottom)
    if dims.mul(exact, bottom) == top:
        return Ratio(exact, 1)
    return Ratio(top, bottom)


def rounded(op: str, ratio: Ratio) -> Ratio | None:
    """Floor, Ceil, or truncation (``"Cast"``) of a ratio; None when the sign is not known."""
    if op == "Ceil":
        return Ratio(dims.ceildiv(ratio.numerator, ratio.denominator), 1)
    if op == "Floor":
        return Ratio(dims.floordiv(ratio.numerator, ratio.denominator), 1)
    whole = bounds.truncdiv(ratio.numerator, ratio.denominator)
    return None if whole is None else Ratio(whole, 1)


def grid(contents: Contents | None, shape: Shape) -> np.ndarray | None:
    """The elements as an array of dims in the tensor's shape, to be moved around."""
    if contents is None or any(isinstance(extent, dims.Dim) for extent in shape):
        return None
    elements = np.empty(len(contents), object)
    elements[:] = contents
    return elements.reshape(tuple(map(whole, shape)))


def array_of(contents: Contents, dtype: dtypes.DType, shape: Shape) -> np.ndarray | None:
    """The constant tensor, when every element is an int."""
    if any(isinstance(item, dims.Dim) for item in contents):
        return None
    return np.array(contents, dtype=dtype.name).reshape(tuple(map(whole, shape)))
