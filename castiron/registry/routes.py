"""Which version of a model answers when a request names none, and how one returns to another.

Numbers only: the newest answers, unless somebody promoted one; then it and older ones do, and a
newer one waits. What answered before is remembered, so that a rollback knows where to. Versions
themselves are moved by ``registry.py``.
"""

from __future__ import annotations

from collections.abc import Collection

from castiron import errors
from castiron.registry import policy
from castiron.registry import version as versions

_REMEMBERED = 16


class Routes:
    """Of all models of one folder."""

    __slots__ = ("_history", "policies", "promoted")

    def __init__(self) -> None:
        self.policies = policy.Policies()
        self.promoted: dict[str, int] = {}
        self._history: dict[str, list[int]] = {}

    def order(self, model: str, ready: list[versions.Version]) -> list[versions.Version]:
        """Those that may answer, in order of preference; older ones stand in for it."""
        if len(ready) > 1:
            ready.sort(key=_number, reverse=True)
        promoted = self.promoted.get(model)
        if promoted is None:
            return ready
        return [version for version in ready if version.number <= promoted]

    def number(self, model: str, text: str) -> str:
        """The number that a label stands for; what is no label stays as it is."""
        labelled = self.policies.of(model).labels.get(text)
        return text if labelled is None else str(labelled)

    def wanted(self, model: str, numbers: Collection[int]) -> set[int]:
        """Those that are to answer, of the numbers that there are."""
        return self.policies.of(model).wanted(numbers, self.promoted.get(model))

    def answers(self, model: str, number: int) -> None:
        """From now on this version answers."""
        history = self._history.setdefault(model, [])
        if not history or history[-1] != number:
            history.append(number)
            del history[:-_REMEMBERED]

    def before(self, model: str, there: Collection[int]) -> int:
        """The version that answered before this one, of those there. Raises ModelNotReady."""
        history = self._history.get(model, [])
        for number in reversed(history[:-1]):
            if number in there and number != history[-1]:
                return number
        raise errors.ModelNotReady(
            f"model {model!r} has no version to go back to; kept are {sorted(there)}"
        )


def _number(version: versions.Version) -> int:
    return version.number
