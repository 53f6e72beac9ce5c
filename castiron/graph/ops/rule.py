"""What a type rule sees: one node, what is known of its inputs, and how to report.

A rule is ``rule(site) -> tuple[TensorType, ...]``, one type for each output that the node names.
It may add checks, which a binding of the symbols must satisfy, and name fresh symbols for
extents that only the data decide.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Set
from typing import Any, NoReturn

import numpy as np

from castiron import errors
from castiron.graph.graph import Check, Extent, Node, Shape, TensorType
from castiron.graph.ops import bounds
from castiron.graph.text import type_text
from castiron.tensor import dim as dims
from castiron.tensor import dtype as dtypes

UNKNOWN = TensorType(None, None)
Types = tuple[TensorType, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Ratio:
    """The exact value ``numerator / denominator`` of an element of a float tensor of sizes."""

    numerator: Extent
    denominator: int


@dataclasses.dataclass(frozen=True, slots=True)
class Symbols:
    """The symbols of a graph: ``given`` by its inputs, and made for extents that data decide."""

    given: Set[str]

    def made(self, value: str, axis: int) -> dims.Dim:
        """The symbol of a value's extent along an axis."""
        name = f"{value}_{axis}"
        return dims.symbol(f"{name}'" if name in self.given else name)


@dataclasses.dataclass(frozen=True, slots=True)
class Site:
    """One node under inference.

    ``ratios`` holds, for small float tensors computed from dims, each element exactly; a rule
    reads it through ``ratios_of`` and writes its own outputs there.
    """

    node: Node
    types: Mapping[str, TensorType]
    constants: Mapping[str, np.ndarray]
    ratios: dict[str, tuple[Ratio, ...]]
    checks: list[Check]
    symbols: Symbols

    def name(self, index: int) -> str:
        """The value at input ``index``; empty when absent."""
        return self.node.inputs[index] if index < len(self.node.inputs) else ""

    def has(self, index: int) -> bool:
        """Whether the input is present."""
        return bool(self.name(index))

    def type(self, index: int) -> TensorType:
        """The input's type; unknown when absent."""
        return self.types.get(self.name(index), UNKNOWN)

    def shape(self, index: int) -> Shape | None:
        """The input's shape, or None when its rank is unknown."""
        return self.type(index).shape

    def dtype(self, index: int) -> dtypes.DType | None:
        """The input's dtype, or None when unknown."""
        return self.type(index).dtype

    def contents(self, index: int) -> tuple[Extent, ...] | None:
        """The input's elements as dims, or None when they are not known."""
        array = self.array(index)
        if array is not None and array.dtype.kind in "iub" and array.size <= 4096:
            return tuple(int(item) for item in array.reshape(-1))
        return self.type(index).contents

    def array(self, index: int) -> np.ndarray | None:
        """The input's data when it is a constant."""
        return self.constants.get(self.name(index))

    def attr(self, key: str, default: Any = None) -> Any:
        """The node's attribute."""
        return self.node.attr(key, default)

    def fresh(self, axis: int, output: int = 0) -> dims.Dim:
        """The symbol of an extent that only the data decide."""
        return self.symbols.made(self.node.outputs[output], axis)

    def fresh_shape(self, rank: int, output: int = 0) -> Shape:
        """A shape of this rank of which nothing else is known."""
        return tuple(self.fresh(axis, output) for axis in range(rank))

    def check(self, left: Extent, right: Extent, reason: str) -> None:
        """Demand ``left == right``: at once for ints, of each binding for symbols."""
        if left == right:
            return
        if not isinstance(left, dims.Dim) and not isinstance(right, dims.Dim):
            self.fail(f"{reason}: expected equal extents, found {left} and {right}")
        if all((known.left, known.right) != (left, right) for known in self.checks):
            self.checks.append(Check(left, right, f"{self.node.op} {self.node.name!r}: {reason}"))

    def at_least(self, value: Extent, low: int, reason: str) -> None:
        """Demand ``value >= low``: at once for ints, of each binding where it is not provable."""
        if not isinstance(value, dims.Dim) and value < low:
            self.fail(f"{reason}: expected {low} or more, found {value}")
        if not bounds.holds_at_least(value, low):
            self.check(dims.minimum(dims.add(value, -low), 0), 0, reason)

    def axis(self, value: int, rank: int) -> int:
        """The axis counted from the front; a BuildError when it is out of range."""
        if not -rank <= value < rank:
            self.fail(f"axis: expected -{rank} <= axis < {rank}, found {value}")
        return value + rank if value < 0 else value

    def rank_at_least(self, index: int, rank: int) -> Shape | None:
        """The input's shape; a BuildError when its rank is known and too small."""
        shape = self.shape(index)
        if shape is not None and len(shape) < rank:
            self.fail(f"expected rank {rank} or more, found {type_text(self.type(index))}", index)
        return shape

    def fail(self, problem: str, index: int | None = None) -> NoReturn:
        """Refuse the node, naming it, the input and the rule that does not hold."""
        where = f"node {self.node.name!r} ({self.node.op})"
        if index is not None:
            where += f", input {index} {self.name(index)!r}"
        kinds = ", ".join(
            f"{value}: {type_text(self.types.get(value, UNKNOWN))}"
            for value in self.node.inputs
            if value
        )
        raise errors.BuildError(f"{where}: {problem} (inputs: {kinds or 'none'})")


def whole(extent: Extent) -> int:
    """The extent as an int; only where it is known to be one."""
    assert not isinstance(extent, dims.Dim)
    return extent


def broadcast_extent(site: Site, left: Extent, right: Extent) -> Extent:
    """The extent of two axes that broadcast.

    Extents of inputs that are not known to be equal are made to be, by a check; where the data
    decide, one of them may turn out to be 1.
    """
    if right in (left, 1):
        return left
    if left == 1:
        return right
    if not dims.symbols_of(left) | dims.symbols_of(right) <= site.symbols.given:
        return wider_extent(site, left, right)
    site.check(left, right, "axes that broadcast must agree")
    if not isinstance(left, dims.Dim):
        return left
    if not isinstance(right, dims.Dim):
        return right
    return left if len(repr(left)) <= len(repr(right)) else right


def wider_extent(site: Site, left: Extent, right: Extent) -> Extent:
    """The extent of two axes of which either may turn out to be 1; else they must be equal."""
    apart = dims.mul(bounds.sub(left, right), dims.mul(dims.add(left, -1), dims.add(right, -1)))
    site.check(apart, 0, "axes that broadcast must agree or be 1")
    # An axis of 1 beside an empty one would be read as the wider of the two.
    wider = bounds.maximum(left, right)
    some = dims.minimum(dims.minimum(left, right), 1)
    site.check(dims.minimum(wider, 1), some, "an empty axis broadcasts only with an empty one")
    return wider


def broadcast_shapes(site: Site, shapes: list[Shape | None]) -> Shape | None:
    """The numpy broadcast of all shapes; None when any rank is unknown."""
    result: Shape = ()
    for shape in shapes:
        if shape is None:
            return None
        rank = max(len(result), len(shape))
        left = (1,) * (rank - len(result)) + tuple(result)
        right = (1,) * (rank - len(shape)) + tuple(shape)
        result = tuple(broadcast_extent(site, a, b) for a, b in zip(left, right, strict=True))
    return result


def axes_of(site: Site, rank: int, index: int = 1) -> tuple[int, ...] | None:
    """The ``axes`` of a node, from its attr or the input at ``index``, counted from the front.

    None when they are not given or not constant; ``has_axes`` tells these apart.
    """
    given = site.attr("axes")
    if given is None:
        found = site.contents(index)
        if found is None or any(isinstance(item, dims.Dim) for item in found):
            return None
        given = found
    return tuple(site.axis(int(item), rank) for item in given)


def has_axes(site: Site, index: int = 1) -> bool:
    """Whether the node says which axes it works on."""
    return site.attr("axes") is not None or site.has(index)
