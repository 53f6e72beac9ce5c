"""Extents that checks make equal are written alike, and nothing else changes."""

from __future__ import annotations

from castiron.compiler.passes.equalities import Equalities
from castiron.graph.graph import Check, Extent, Node, TensorType
from castiron.tensor import dim as dims
from castiron.tensor import dtype as dtypes

_H, _W = dims.symbol("h"), dims.symbol("w")


def _known(*pairs: tuple[Extent, Extent], symbols: str = "hw") -> Equalities:
    return Equalities(
        [Check(left, right, "they must agree") for left, right in pairs], set(symbols)
    )


def test_a_chain_of_halvings_is_written_by_its_smallest() -> None:
    sixteenth, eighth = dims.ceildiv(_H, 16), dims.ceildiv(_H, 8)
    half = dims.ceildiv(_H, 32)
    known = _known((eighth, dims.mul(sixteenth, 2)), (sixteenth, dims.mul(half, 2)))
    assert known.extent(eighth) == dims.mul(half, 4)
    assert known.extent(dims.add(eighth, 1)) == dims.add(dims.mul(half, 4), 1)


def test_a_symbol_becomes_the_number_it_must_be() -> None:
    known = _known((_H, 32))
    assert known.extent(dims.mul(_H, _W)) == dims.mul(_W, 32)
    assert known.extent(dims.floordiv(_H, 5)) == 6


def test_a_symbol_never_becomes_a_larger_expression() -> None:
    assert not _known((_H, dims.mul(_W, 2)))


def test_what_the_data_decide_is_left_alone() -> None:
    assert not _known((dims.symbol("nonzero_0"), _H))


def test_an_extent_is_not_replaced_by_something_that_holds_it() -> None:
    atom = dims.ceildiv(_H, 3)
    known = _known((atom, dims.mul(atom, _W)))
    assert known.extent(atom) == atom


def test_types_and_attrs_are_rewritten() -> None:
    known = _known((_H, _W))
    kind = known.type(TensorType(dtypes.FLOAT32, (_H, _W), None))
    assert len(set(kind.shape or ())) == 1
    node = known.node(Node("Expand", ("x",), ("y",), {"shape": (_H, 1, _W)}))
    assert len(set(node.attrs["shape"])) == 2


def test_without_checks_nothing_is_copied() -> None:
    node = Node("Expand", ("x",), ("y",), {"shape": (_H,)})
    assert _known().node(node) is node
