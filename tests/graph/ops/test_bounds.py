"""What is proved about dims must hold for every binding."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from castiron.graph.graph import Extent
from castiron.graph.ops import bounds
from castiron.tensor import dim as dims

_LEAVES = st.one_of(st.integers(-6, 6), st.sampled_from("abc").map(dims.symbol))


def _combined(parts: st.SearchStrategy[Extent]) -> st.SearchStrategy[Extent]:
    pairs = st.tuples(parts, parts)
    return st.one_of(
        pairs.map(lambda p: dims.add(*p)),
        pairs.map(lambda p: bounds.sub(*p)),
        pairs.map(lambda p: dims.mul(*p)),
        pairs.map(lambda p: bounds.minimum(*p)),
        pairs.map(lambda p: bounds.maximum(*p)),
        st.tuples(parts, st.integers(1, 5)).map(lambda p: dims.floordiv(*p)),
    )


_DIMS = st.recursive(_LEAVES, _combined, max_leaves=6)
_BINDINGS = st.fixed_dictionaries({name: st.integers(1, 30) for name in "abc"})


@given(value=_DIMS, binding=_BINDINGS)
def test_no_binding_falls_below_the_lower_bound(value: Extent, binding: dict[str, int]) -> None:
    assert dims.evaluate(value, binding) >= bounds.lower(value)


@given(left=_DIMS, right=_DIMS, binding=_BINDINGS)
def test_min_and_max_are_exact(left: Extent, right: Extent, binding: dict[str, int]) -> None:
    a, b = dims.evaluate(left, binding), dims.evaluate(right, binding)
    assert dims.evaluate(bounds.minimum(left, right), binding) == min(a, b)
    assert dims.evaluate(bounds.maximum(left, right), binding) == max(a, b)


@given(left=_DIMS, right=_DIMS, binding=_BINDINGS)
def test_proved_relations_hold(left: Extent, right: Extent, binding: dict[str, int]) -> None:
    a, b = dims.evaluate(left, binding), dims.evaluate(right, binding)
    assert bounds.is_equal(left, right) in (None, a == b)
    assert bounds.is_less(left, right) in (None, a < b)


@given(left=_DIMS, right=st.one_of(st.integers(-5, 5), _LEAVES), binding=_BINDINGS)
def test_division_truncates(left: Extent, right: Extent, binding: dict[str, int]) -> None:
    found = bounds.truncdiv(left, right)
    if found is not None:
        a, b = dims.evaluate(left, binding), dims.evaluate(right, binding)
        assert dims.evaluate(found, binding) == math.trunc(a / b)


@given(index=_DIMS, extent=st.sampled_from([dims.symbol("a"), 7]), binding=_BINDINGS)
def test_negative_indices_count_from_the_end(
    index: Extent, extent: Extent, binding: dict[str, int]
) -> None:
    i, n = dims.evaluate(index, binding), dims.evaluate(extent, binding)
    assert dims.evaluate(bounds.wrapped(index, extent), binding) == (i + n if i < 0 else i)
