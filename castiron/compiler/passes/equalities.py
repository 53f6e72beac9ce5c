"""What the checks say about dims, used to write equal extents alike.

A check such as ``(h + 15)//16 == 2*((h + 31)//32)`` holds for every run that is not refused, so
either side may stand for the other; then shapes that must agree are provably the same. The checks
themselves stay as they are. Extents that only the data decide are never replaced.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Set
from typing import Any

from castiron.graph.graph import Check, Extent, Node, Shape, TensorType
from castiron.tensor import dim as dims

_PASSES = 4
_BUILD = {
    "floordiv": dims.floordiv,
    "min": dims.minimum,
    "max": dims.maximum,
    "wide": dims.stride_if_wide,
}


class Equalities:
    """A replacement for some atoms: an input's symbol by an int or another input's symbol, an
    operation on inputs' symbols by any dim of them."""

    def __init__(self, checks: Iterable[Check], symbols: Set[str]) -> None:
        self._symbols = symbols
        self._replacement: dict[Any, Extent] = {}
        self._memo: dict[dims.Dim, Extent] = {}
        waiting = list(checks)
        for _ in range(_PASSES):
            learned = [self._learn(check) for check in waiting]
            if not any(learned):
                break

    def __bool__(self) -> bool:
        return bool(self._replacement)

    def _learn(self, check: Check) -> bool:
        left, right = self.extent(check.left), self.extent(check.right)
        if left == right:
            return False
        for one, other in sorted(((left, right), (right, left)), key=lambda pair: -_length(pair)):
            atom = _single_atom(one)
            if atom is None or not self._may_replace(atom, other):
                continue
            self._replacement[atom] = other
            self._memo.clear()
            for key, value in self._replacement.items():
                self._replacement[key] = self.extent(value)
            return True
        return False

    def _may_replace(self, atom: Any, other: Extent) -> bool:
        names = dims.symbols_of(_alone(atom)) | dims.symbols_of(other)
        if not names <= self._symbols or atom in _atoms_within(other):
            return False
        if atom[0] == "sym":
            single = _single_atom(other)
            return not isinstance(other, dims.Dim) or (single is not None and single[0] == "sym")
        return True

    def extent(self, value: Extent) -> Extent:
        """The dim with every known replacement made."""
        if not self._replacement or not isinstance(value, dims.Dim):
            return value
        if value not in self._memo:
            found: Extent = value
            for _ in range(_PASSES):
                before, found = found, self._once(found)
                if found == before:
                    break
            self._memo[value] = found
        return self._memo[value]

    def _once(self, value: Extent) -> Extent:
        if not isinstance(value, dims.Dim):
            return value
        total: Extent = 0
        for atoms, coefficient in value.terms:
            term: Extent = coefficient
            for atom in atoms:
                term = dims.mul(term, self._atom(atom))
            total = dims.add(total, term)
        return total

    def _atom(self, atom: Any) -> Extent:
        if atom in self._replacement:
            return self._replacement[atom]
        if atom[0] == "sym":
            return _alone(atom)
        return _BUILD[atom[0]](self._once(atom[1]), self._once(atom[2]))

    def type(self, kind: TensorType) -> TensorType:
        """The type with its extents and contents replaced."""
        if not self._replacement or kind.shape is None:
            return kind
        shape: Shape = tuple(self.extent(extent) for extent in kind.shape)
        contents = kind.contents
        if contents is not None:
            contents = tuple(self.extent(item) for item in contents)
        return TensorType(kind.dtype, shape, contents)

    def node(self, node: Node) -> Node:
        """The node with the dims in its attrs replaced."""
        if not self._replacement:
            return node
        changed = {key: self._attr(value) for key, value in node.attrs.items()}
        if all(changed[key] is value for key, value in node.attrs.items()):
            return node
        return dataclasses.replace(node, attrs=changed)

    def _attr(self, value: Any) -> Any:
        if isinstance(value, dims.Dim):
            return self.extent(value)
        if isinstance(value, tuple) and any(isinstance(item, dims.Dim) for item in value):
            return tuple(self._attr(item) for item in value)
        return value


def _length(pair: tuple[Extent, Extent]) -> int:
    return len(repr(pair[0]))


def _alone(atom: Any) -> dims.Dim:
    return dims.Dim((((atom,), 1),))


def _single_atom(value: Extent) -> Any:
    if not isinstance(value, dims.Dim) or len(value.terms) != 1:
        return None
    atoms, coefficient = value.terms[0]
    return atoms[0] if coefficient == 1 and len(atoms) == 1 else None


def _atoms_within(value: Extent) -> set[Any]:
    if not isinstance(value, dims.Dim):
        return set()
    found = set()
    for atoms, _ in value.terms:
        for atom in atoms:
            found.add(atom)
            if atom[0] != "sym":
                found |= _atoms_within(atom[1]) | _atoms_within(atom[2])
    return found
