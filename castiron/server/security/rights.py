"""What a caller may do: rules of model patterns and actions, and the questions about them.

A model that no rule names does not exist for the caller (404, as if it were not served); one that
is named, but not for this action, is forbidden (403). Who the caller is, is ``access.py``'s work.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from castiron import errors
from castiron.server import status

INFER = "infer"
METADATA = "metadata"
ADMIN = "admin"
ACTIONS = (INFER, METADATA, ADMIN)

_MAX_RULES = 64
_MAX_PATTERNS = 256
_MAX_PATTERN_CHARS = 256
_FORBIDDEN_HEADER = (
    b"www-authenticate", b'Bearer realm="castiron", error="insufficient_scope"',
)  # fmt: skip


class RightsFault(ValueError):
    """The claim does not say rights in the form that docs/security.md describes."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Some models, by patterns in which ``*`` stands for any characters, and what is allowed."""

    patterns: tuple[str, ...]
    actions: frozenset[str]

    def names(self, model: str) -> bool:
        """Whether a pattern fits the model."""
        return any(fits(pattern, model) for pattern in self.patterns)


def fits(pattern: str, name: str) -> bool:
    """Whether ``name`` is ``pattern``; ``*`` fits any text, everything else itself.

    Takes time in proportion to the name for each piece of the pattern, whatever both are.
    """
    if "*" not in pattern:
        return pattern == name
    first, *middle, last = pattern.split("*")
    if len(name) < len(first) + len(last):
        return False
    if not name.startswith(first) or not name.endswith(last):
        return False
    at, end = len(first), len(name) - len(last)
    for piece in middle:
        found = name.find(piece, at, end)
        if found < 0:
            return False
        at = found + len(piece)
    return True


@dataclass(frozen=True, slots=True)
class Grant:
    """A caller found to be who it says, until ``until_s`` (seconds since 1970)."""

    subject: str
    rules: tuple[Rule, ...]
    until_s: float = float("inf")
    key_print: str = ""
    issuer: str = ""
    _known: dict[tuple[str, str], bool] = field(default_factory=dict, repr=False, compare=False)

    def allows(self, model: str, action: str) -> bool:
        """Whether a rule names the model for this action."""
        known = self._known.get((model, action))
        if known is None:
            known = any(action in rule.actions and rule.names(model) for rule in self.rules)
            if known and len(self._known) < _MAX_PATTERNS:
                self._known[model, action] = known
        return known

    def allows_all(self, action: str) -> bool:
        """Whether a rule names every model, present or future, for this action."""
        return any(action in rule.actions and "*" in rule.patterns for rule in self.rules)

    def sees(self, model: str) -> bool:
        """Whether any rule names the model."""
        return any(self.allows(model, action) for action in ACTIONS)

    def require(self, model: str, action: str) -> None:
        """ModelNotFound for a model that no rule names, Refusal 403 for another action."""
        if self.allows(model, action):
            return
        self.require_sight(model)
        raise forbidden(f"{action} of model {model!r} is not allowed for this caller")

    def require_sight(self, model: str) -> None:
        """ModelNotFound, as if it were not served, for a model that no rule names."""
        if not self.sees(model):
            raise errors.ModelNotFound(f"model {model!r} is not served here")


def holder(subject: str, actions: tuple[str, ...]) -> Grant:
    """The grant of one who is not asked for a token: these actions, every model."""
    return Grant(subject, (Rule(("*",), frozenset(actions)),))


def forbidden(message: str) -> status.Refusal:
    """The refusal of one who is known but may not."""
    refused = status.Refusal(403, message, headers=(_FORBIDDEN_HEADER,))
    refused.why = "forbidden"
    return refused


def rules_of(claim: Any) -> tuple[Rule, ...]:
    """The rules that a claim holds: one object or a list of them; none when it is absent.

    RightsFault when it is anything else.
    """
    if claim is None:
        return ()
    entries = claim if isinstance(claim, list) else [claim]
    if len(entries) > _MAX_RULES:
        raise RightsFault(f"expected at most {_MAX_RULES} rules")
    return tuple(_rule(entry) for entry in entries)


def _rule(entry: Any) -> Rule:
    if not isinstance(entry, dict) or entry.keys() != {"models", "actions"}:
        raise RightsFault("expected objects with models and actions")
    patterns = _texts(entry["models"], "models", lambda text: len(text) <= _MAX_PATTERN_CHARS)
    actions = _texts(entry["actions"], "actions", lambda text: text in ACTIONS)
    return Rule(patterns, frozenset(actions))


def _texts(found: Any, what: str, is_good: Callable[[str], bool]) -> tuple[str, ...]:
    is_list = isinstance(found, list) and len(found) <= _MAX_PATTERNS
    if not is_list or not all(isinstance(text, str) and text and is_good(text) for text in found):
        raise RightsFault(f"{what}: expected a list of names")
    return tuple(found)
