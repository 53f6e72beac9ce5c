"""JSON requests whose text was read before, but for the numbers in it.

A program that asks in JSON writes the same text around its lists each time. The text is kept in
pieces; a body of the same pieces has a list wherever the first had one, so by the grammar of JSON
nothing else in it can differ, and only the lists are read. What does not fit is read whole, as ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from castiron.server import kept, template

_MOST = 32
_MOST_BYTES = 2048
# In larger ones the lists are what takes time.
_MOST_BODY_BYTES = 1 << 16
_DATA = b'"data"'


class Skeleton:
    """The text of one kind of request around its lists, and what it says."""

    __slots__ = ("_last", "_pieces", "template")

    def __init__(self, pieces: Sequence[bytes], made: template.Template) -> None:
        *self._pieces, self._last = pieces
        self.template = made

    def lists(self, text: bytes) -> list[list[Any]] | None:
        """The lists of a request of these pieces, in order; None when it is another one."""
        last = self._last
        if not text.endswith(last):
            return None  # before its lists are read: with an id at the end, say
        found: list[list[Any]] = []
        at = 0
        for piece in self._pieces:
            if not text.startswith(piece, at):
                return None
            at += len(piece)
            end = text.find(b"]", at) + 1
            try:
                found.append(orjson.loads(text[at:end]))  # JSON that ends like this is a list
            except orjson.JSONDecodeError:
                return None
            at = end
        return found if at + len(last) == len(text) else None


class Skeletons:
    """Those of one version, by the text before their first list."""

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: kept.Kept[bytes, Skeleton] = kept.Kept(_MOST)

    def __len__(self) -> int:
        return len(self._kept)

    def find(self, text: bytes) -> Skeleton | None:
        """The one that a body may be of."""
        at = text.find(_DATA)
        return self._kept.get(text[:at]) if at >= 0 and len(text) <= _MOST_BODY_BYTES else None

    def keep(self, text: bytes, head: dict[str, Any], made: template.Template) -> None:
        """For the next request like this one, which was read well, if its text can be taken apart."""
        pieces = _pieces(text) if len(text) <= _MOST_BODY_BYTES else []
        if len(pieces) != len(made.places) + 1 or sum(map(len, pieces)) > _MOST_BYTES:
            return
        if not _are_around_lists(pieces, head):
            return
        self._kept.put(text[: text.find(_DATA)], Skeleton(pieces, made))


def _are_around_lists(pieces: list[bytes], head: dict[str, Any]) -> bool:
    """Proof that the pieces, one more than inputs, are cut at all of each input's list.

    Without an escape, each input has the word data once as it stands; there are no more of them.
    """
    if any(b"\\" in piece for piece in pieces):
        return False
    emptied = {**head, "inputs": [{**each, "data": []} for each in head["inputs"]]}
    try:
        return bool(orjson.loads(b"[]".join(pieces)) == emptied)
    except orjson.JSONDecodeError:
        return False


def _pieces(text: bytes) -> list[bytes]:
    """The text around the flat lists that follow the word data; nothing of a text without any."""
    pieces: list[bytes] = []
    begin = 0
    while (at := text.find(_DATA, begin)) >= 0:
        opens = text.find(b"[", at)
        end = text.find(b"]", at) + 1
        if opens < 0 or not end or text[at + len(_DATA) : opens].strip() != b":":
            return []
        pieces.append(text[begin:opens])
        begin = end
    return [*pieces, text[begin:]]
