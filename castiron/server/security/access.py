"""The one question before a request's body is read: who asks, and what may it do?

Here is the question, and the answer of a server that asks for no tokens; with tokens it is given
by ``tokens.py``, which alone loads what checks signatures.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from castiron.server.security import rights

Headers = Iterable[tuple[bytes, bytes]]


class Access(Protocol):
    """Who may ask; headers have names in lower case."""

    is_open: bool

    async def check(self, headers: Headers) -> rights.Grant:
        """What the sender of these headers may do. Refusal 401 when it is not known, 503 when
        there are no keys yet.
        """

    def require_control(self, grant: rights.Grant, model: str) -> None:
        """Refusal 403 unless models may be loaded and unloaded on the data port."""

    def tick(self) -> None:
        """About once a second."""

    def close(self) -> None:
        """Stop looking for keys."""


class Fixed:
    """The same grant for everyone who gets as far as asking."""

    __slots__ = ("_grant", "is_open")

    def __init__(self, grant: rights.Grant, *, is_open: bool) -> None:
        self._grant = grant
        self.is_open = is_open

    async def check(self, headers: Headers) -> rights.Grant:
        """The grant."""
        del headers
        return self._grant

    def require_control(self, grant: rights.Grant, model: str) -> None:
        """Allowed when the grant says so, which ``guard.py`` decides."""
        grant.require(model, rights.ADMIN)

    def tick(self) -> None:
        """Nothing changes."""

    def close(self) -> None:
        """Nothing is open."""
