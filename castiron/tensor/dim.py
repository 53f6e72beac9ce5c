"""Symbolic dims: integer polynomials over symbols and opaque atoms, in one canonical form.

A dim is an ``int`` or a ``Dim``. Sums, products, floor division, modulo, minimum and maximum
of dims are dims again; a result that is constant comes back as ``int``. Two dims are equal when
their canonical forms are, so ``==`` is provable equality for every value of the symbols.

The executable stores dims as a table of small operations (``executable/program.py``); at run
time only ints are left. This module is used while building.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any, TypeAlias

    Atom: TypeAlias = tuple[Any, ...]  # ("sym", name) or (operation, left, right)


class Dim:
    """A canonical non-constant polynomial: terms of (sorted atoms, integer coefficient)."""

    __slots__ = ("_hash", "terms")

    def __init__(self, terms: tuple[tuple[tuple[Atom, ...], int], ...]) -> None:
        self.terms = terms
        self._hash = hash(terms)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Dim) and self.terms == other.terms

    def __add__(self, other: int | Dim) -> int | Dim:
        return add(self, other)

    __radd__ = __add__

    def __sub__(self, other: int | Dim) -> int | Dim:
        return add(self, mul(other, -1))

    def __rsub__(self, other: int | Dim) -> int | Dim:
        return add(other, mul(self, -1))

    def __mul__(self, other: int | Dim) -> int | Dim:
        return mul(self, other)

    __rmul__ = __mul__

    def __neg__(self) -> int | Dim:
        return mul(self, -1)

    def __floordiv__(self, other: int | Dim) -> int | Dim:
        return floordiv(self, other)

    def __rfloordiv__(self, other: int) -> int | Dim:
        return floordiv(other, self)

    def __mod__(self, other: int | Dim) -> int | Dim:
        return mod(self, other)

    def __repr__(self) -> str:
        return text(self)


def symbol(name: str) -> Dim:
    """The dim that is exactly the symbol ``name``."""
    return Dim((((("sym", name),), 1),))


def _terms(value: int | Dim) -> dict[tuple[Atom, ...], int]:
    if isinstance(value, Dim):
        return dict(value.terms)
    return {(): int(value)} if value else {}


def _from_terms(terms: Mapping[tuple[Atom, ...], int]) -> int | Dim:
    kept = sorted(((key, c) for key, c in terms.items() if c), key=repr)
    if not kept:
        return 0
    if len(kept) == 1 and kept[0][0] == ():
        return kept[0][1]
    return Dim(tuple(kept))


def add(left: int | Dim, right: int | Dim) -> int | Dim:
    """left + right."""
    if not isinstance(left, Dim) and not isinstance(right, Dim):
        return left + right
    total = _terms(left)
    for key, coefficient in _terms(right).items():
        total[key] = total.get(key, 0) + coefficient
    return _from_terms(total)


def mul(left: int | Dim, right: int | Dim) -> int | Dim:
    """left * right."""
    if not isinstance(left, Dim) and not isinstance(right, Dim):
        return left * right
    total: dict[tuple[Atom, ...], int] = {}
    for a_key, a in _terms(left).items():
        for b_key, b in _terms(right).items():
            key = tuple(sorted(a_key + b_key, key=repr))
            total[key] = total.get(key, 0) + a * b
    return _from_terms(total)


def product(values: Sequence[int | Dim]) -> int | Dim:
    """The product of all values; 1 for none."""
    result: int | Dim = 1
    for value in values:
        result = mul(result, value)
    return result


def _opaque(operation: str, left: int | Dim, right: int | Dim) -> Dim:
    return Dim((((((operation, left, right),)), 1),))


def floordiv(left: int | Dim, right: int | Dim) -> int | Dim:
    """left // right, rounding down; exact multiples of a constant divisor leave the floor."""
    if not isinstance(left, Dim) and not isinstance(right, Dim):
        return left // right
    if right == 1:
        return left
    if left == right:
        return 1
    if isinstance(right, Dim):
        return _divide_by_term(left, right) or _opaque("floordiv", left, right)
    exact = {k: c // right for k, c in _terms(left).items() if c % right == 0}
    rest = {k: c for k, c in _terms(left).items() if c % right}
    if not rest:
        return _from_terms(exact)
    if set(rest) == {()} and 0 <= rest[()] < right:
        return _from_terms(exact)
    inner = _from_terms(rest)
    constant = rest.get((), 0)
    if constant and not 0 <= constant < right:
        shift = constant // right
        exact[()] = exact.get((), 0) + shift
        inner = add(inner, -shift * right)
    return add(_from_terms(exact), _nested_floordiv(inner, right))


def _nested_floordiv(left: int | Dim, right: int) -> int | Dim:
    """floor(floor(x / a) / b) = floor(x / (a * b)); floor((floor(x/a)+c)/b) likewise."""
    if not isinstance(left, Dim):
        return left // right
    constant = _terms(left).get((), 0)
    rest = _from_terms({k: c for k, c in left.terms if k != ()})
    if isinstance(rest, Dim) and len(rest.terms) == 1 and rest.terms[0][1] == 1:
        atoms = rest.terms[0][0]
        if len(atoms) == 1 and atoms[0][0] == "floordiv" and isinstance(atoms[0][2], int):
            _, inner, divisor = atoms[0]
            return floordiv(add(inner, constant * divisor), divisor * right)
    return _opaque("floordiv", left, right)


def _divide_by_term(left: int | Dim, right: Dim) -> int | Dim | None:
    """Exact division by a one-term divisor, or None when it is not provably exact."""
    if len(right.terms) != 1:
        return None
    atoms, coefficient = right.terms[0]
    quotient: dict[tuple[Atom, ...], int] = {}
    for key, c in _terms(left).items():
        rest = list(key)
        for atom in atoms:
            if atom not in rest:
                return None
            rest.remove(atom)
        if c % coefficient:
            return None
        quotient[tuple(rest)] = c // coefficient
    return _from_terms(quotient)


def ceildiv(left: int | Dim, right: int | Dim) -> int | Dim:
    """left / right, rounded up, for a positive divisor."""
    if isinstance(right, Dim):
        return mul(floordiv(mul(left, -1), right), -1)
    return floordiv(add(left, right - 1), right)


def mod(left: int | Dim, right: int | Dim) -> int | Dim:
    """left - right * (left // right)."""
    return add(left, mul(mul(right, floordiv(left, right)), -1))


def minimum(left: int | Dim, right: int | Dim) -> int | Dim:
    """The smaller one; folds when the difference is constant."""
    difference = add(left, mul(right, -1))
    if not isinstance(difference, Dim):
        return left if difference <= 0 else right
    return _opaque("min", *sorted((left, right), key=repr))


def maximum(left: int | Dim, right: int | Dim) -> int | Dim:
    """The larger one; folds when the difference is constant."""
    difference = add(left, mul(right, -1))
    if not isinstance(difference, Dim):
        return left if difference >= 0 else right
    return _opaque("max", *sorted((left, right), key=repr))


def stride_if_wide(extent: int | Dim, stride: int | Dim) -> int | Dim:
    """``stride``, or 0 where ``extent`` turns out to be 1: the stride of a broadcast axis."""
    if not isinstance(extent, Dim):
        return 0 if extent == 1 else stride
    return _opaque("wide", extent, stride)


_OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "floordiv": lambda a, b: a // b,
    "min": min,
    "max": max,
    "wide": lambda extent, stride: 0 if extent == 1 else stride,
}


def evaluate(value: int | Dim, symbols: Mapping[str, int]) -> int:
    """The integer that the dim is under this binding; KeyError names a missing symbol."""
    if not isinstance(value, Dim):
        return int(value)
    total = 0
    for atoms, coefficient in value.terms:
        term = coefficient
        for atom in atoms:
            term *= _evaluate_atom(atom, symbols)
        total += term
    return total


def _evaluate_atom(atom: Atom, symbols: Mapping[str, int]) -> int:
    if atom[0] == "sym":
        return symbols[atom[1]]
    left, right = evaluate(atom[1], symbols), evaluate(atom[2], symbols)
    return _OPERATIONS[atom[0]](left, right)


def substitute(value: int | Dim, replacement: Mapping[str, int | Dim]) -> int | Dim:
    """The dim with some symbols replaced by dims, canonical again."""
    if not isinstance(value, Dim):
        return value
    total: int | Dim = 0
    for atoms, coefficient in value.terms:
        term: int | Dim = coefficient
        for atom in atoms:
            term = mul(term, _substitute_atom(atom, replacement))
        total = add(total, term)
    return total


def _substitute_atom(atom: Atom, replacement: Mapping[str, int | Dim]) -> int | Dim:
    if atom[0] == "sym":
        return replacement.get(atom[1], symbol(atom[1]))
    left, right = substitute(atom[1], replacement), substitute(atom[2], replacement)
    build = {"floordiv": floordiv, "min": minimum, "max": maximum, "wide": stride_if_wide}
    return build[atom[0]](left, right)


def symbols_of(value: int | Dim) -> set[str]:
    """The names of all symbols in the dim."""
    if not isinstance(value, Dim):
        return set()
    found: set[str] = set()
    for atoms, _ in value.terms:
        for atom in atoms:
            if atom[0] == "sym":
                found.add(atom[1])
            else:
                found |= symbols_of(atom[1]) | symbols_of(atom[2])
    return found


def text(value: int | Dim) -> str:
    """A readable form such as ``w//2 + 2*h - 1``, which Python would read as the same number."""
    if not isinstance(value, Dim):
        return str(value)
    terms = sorted(value.terms, key=lambda term: (not term[0], term[1] < 0, repr(term)))
    first, *rest = (_term_text(*term) for term in terms)
    return " ".join([first[2:] if first[0] == "+" else f"-{first[2:]}", *rest])


def _term_text(atoms: tuple[Atom, ...], coefficient: int) -> str:
    """The term behind its sign; ``//`` stands in brackets where something else is near."""
    factors = [_atom_text(atom) for atom in atoms]
    if abs(coefficient) != 1 or not factors:
        factors.insert(0, str(abs(coefficient)))
    if len(factors) > 1 or coefficient < 0:
        factors = [f"({factor})" if "//" in factor else factor for factor in factors]
    return f"{'-' if coefficient < 0 else '+'} {'*'.join(factors)}"


def _atom_text(atom: Atom) -> str:
    if atom[0] == "sym":
        return str(atom[1])
    if atom[0] == "floordiv":
        return f"{_operand_text(atom[1])}//{_operand_text(atom[2])}"
    return f"{atom[0]}({text(atom[1])}, {text(atom[2])})"


def _operand_text(value: int | Dim) -> str:
    """The dim beside ``//``: in brackets unless it is one name, one call or a plain number."""
    written = text(value)
    if isinstance(value, Dim):
        (atoms, coefficient), *more = value.terms
        if not more and coefficient == 1 and len(atoms) == 1 and atoms[0][0] != "floordiv":
            return written
    return written if written.isdigit() else f"({written})"
