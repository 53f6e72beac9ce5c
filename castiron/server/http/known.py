"""Heads that came before: clients send the same bytes with each request, and read once is enough.

Kept is only what leaves nothing to decide: HTTP/1.1 that stays open, a body of declared length,
no interim answer. A head that varies (a trace's id in it, say) finds nothing and costs one copy.
"""

from __future__ import annotations

from typing import NamedTuple

from castiron.server import kept

_MOST = 128
_MOST_BYTES = 2048

Lines = list[tuple[bytes, bytes]]


class Head:
    """What a head says. Requests with the same bytes share one, so nobody changes it, but for
    ``reading``: what the application made of it, for the next request like this one.
    """

    __slots__ = (
        "awaits_continue", "headers", "is_old", "keeps_alive", "lines", "method", "raw_path",
        "reading",
    )  # fmt: skip

    def __init__(
        self, method: str, raw_path: bytes, lines: Lines, *, keeps_alive: bool, is_old: bool
    ) -> None:
        self.method = method
        self.raw_path = raw_path
        self.lines = lines
        # The last line of each name; ``heads.py`` refuses those that may stand only once.
        self.headers = headers = dict(lines)
        self.keeps_alive = keeps_alive
        self.is_old = is_old  # HTTP/1.0, which knows neither chunks nor interim answers
        self.awaits_continue = not is_old and headers.get(b"expect", b"").lower() == b"100-continue"
        self.reading: object = None


class Known(NamedTuple):
    """A head that came before, and how many bytes of body follow it."""

    head: Head
    body_bytes: int


class Heads:
    """Those of one port, a bounded number of short ones."""

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: kept.Kept[bytes, Known] = kept.Kept(_MOST)

    def __len__(self) -> int:
        return len(self._kept)

    def find(self, text: bytes) -> Known | None:
        """What is known of these bytes, the empty line at their end included."""
        return self._kept.get(text)

    def keep(self, text: bytes, body_bytes: int, head: Head) -> None:
        """A request of this head and so many bytes was read, and nothing was wrong with it."""
        if len(text) > _MOST_BYTES or not head.keeps_alive or head.awaits_continue:
            return
        declared = head.headers.get(b"content-length")
        if declared is None or b"transfer-encoding" in head.headers or int(declared) != body_bytes:
            return
        self._kept.put(text, Known(head, body_bytes))
