"""The rules by which ``compare.py`` judges a change: each with a verdict and a sentence.

A change breaks clients when a request that was answered is now refused, when a reply can hold
what its reader was not told of, or when a promise became weaker.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Rule:
    """One kind of change."""

    name: str
    """For tools and tests."""

    is_breaking: bool
    """Whether clients of the old contract may fail under the new one."""

    sentence: str
    """Why."""


@dataclass(frozen=True, slots=True)
class Change:
    """One difference between two contracts."""

    path: str
    """The field, tensors and entries by their names."""

    rule: Rule
    """What it is."""

    old: Any = None
    """The value before; None where there was none."""

    new: Any = None
    """The value now; None where there is none."""

    def __str__(self) -> str:
        """One line for people."""
        verdict = "breaking" if self.rule.is_breaking else "safe"
        values = f" ({_shown(self.old)} -> {_shown(self.new)})"
        return f"{verdict:8}  {self.path}: {self.rule.sentence}{values}"


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    text = str(list(value)) if isinstance(value, tuple) else str(value)
    return text if len(text) <= 60 else text[:57] + "..."


_BREAKING = (
    ("model-renamed", "clients ask for the old name, which is not there"),
    ("input-removed", "clients send an input that is refused as unknown"),
    ("input-added", "clients do not send an input that is needed"),
    ("input-renamed", "clients send the old name, which is refused as unknown"),
    ("output-removed", "clients read an output that does not come"),
    ("output-renamed", "clients read the old name, which does not come"),
    ("datatype-changed", "clients write or read values of another datatype"),
    ("rank-changed", "clients write or read another number of dims"),
    ("dim-changed", "clients write or read another extent"),
    ("input-dim-fixed", "a dim that clients chose is fixed"),
    ("output-dim-freed", "a dim that clients rely on may vary"),
    ("dims-tied", "dims that clients chose apart must be equal"),
    ("output-dims-untied", "a dim of the reply no longer follows from another one"),
    ("input-narrowed", "values that were accepted are refused"),
    ("output-widened", "replies may hold values that they did not hold"),
    ("entry-removed", "applications send or read a value that is not there"),
    ("entry-renamed", "applications send or read the old name"),
    ("required-entry-added", "applications do not send a value that is needed"),
    ("entry-required", "applications may leave a value out that is now needed"),
    ("output-entry-optional", "a value that applications read may be missing"),
    ("kind-changed", "applications write or read another kind of value"),
    ("columns-changed", "columns are others, or stand in another order"),
    ("labels-moved", "the same number stands for another label"),
    ("limit-lowered", "requests that were answered may be refused"),
    ("limit-added", "requests that no limit refused may be refused"),
    ("timeout-lowered", "answers that came in time may be given up"),
    ("promise-weakened", "the service level is lower than clients were told"),
    ("class-removed", "clients ask for a priority class that is not there"),
    ("class-demoted", "a priority class stands behind one that it was before"),
    ("default-class-demoted", "requests that name no class are less important"),
)
_SAFE = (
    ("output-added", "replies name their outputs; a new one is not looked at"),
    ("reordered", "inputs and outputs are known by name, not by place"),
    ("input-dim-freed", "a dim that was fixed may be chosen"),
    ("output-dim-fixed", "a dim that could vary is always the same"),
    ("input-dims-untied", "dims that had to be equal may differ"),
    ("input-widened", "more values are accepted"),
    ("output-narrowed", "replies hold fewer different values"),
    ("optional-entry-added", "applications need not send it"),
    ("output-entry-added", "a new value is not looked at"),
    ("entry-optional", "a value may be left out"),
    ("output-entry-required", "a value always comes"),
    ("limit-raised", "fewer requests are refused"),
    ("limit-removed", "the server's own limit is used, if it has one"),
    ("timeout-raised", "more answers come in time"),
    ("promise-strengthened", "the service level is higher than clients were told"),
    ("class-added", "nobody asks for it yet"),
    ("class-promoted", "a priority class stands before one that it was behind"),
    ("default-class-promoted", "requests that name no class are more important"),
    ("steps-changed", "the form stays as it is; values may come out differently"),
    ("inside-changed", "clients do not see it"),
    ("text-changed", "it is for people"),
)

RULES = {name: Rule(name, True, sentence) for name, sentence in _BREAKING}
RULES |= {name: Rule(name, False, sentence) for name, sentence in _SAFE}


def change(path: str, rule: str, old: Any = None, new: Any = None) -> Change:
    """A change that this rule judges."""
    return Change(path, RULES[rule], old, new)
