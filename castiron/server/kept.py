"""A bounded memory of what clients sent before, in which nobody can make it grow."""

from __future__ import annotations

from typing import TypeVar

KeyT = TypeVar("KeyT")
ValueT = TypeVar("ValueT")


class Kept(dict[KeyT, ValueT]):
    """At most ``most`` entries. All are forgotten when one more comes: what is in use comes again,
    and no order has to be kept on the way of each request.
    """

    __slots__ = ("_most",)

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def put(self, key: KeyT, value: ValueT) -> None:
        """Keep one more."""
        if len(self) >= self._most:
            self.clear()
        self[key] = value
