"""The metrics page as one caller may see it: the lines of its own models.

Works on the text, so that whatever is counted is filtered, also by those who add metrics later: a
line without a ``model`` label is about the whole process and shown to those who see every model.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from castiron.server.security import rights

_MODEL = re.compile(r'[{,]model="((?:[^"\\]|\\.)*)"')
_ESCAPES = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}


def visible(text: str, grant: rights.Grant) -> str:
    """The part of a page in Prometheus text form whose models the grant lets be described."""
    if grant.allows_all(rights.METADATA):
        return text
    return "".join(f"{line}\n" for line in _lines(text, grant))


def _lines(text: str, grant: rights.Grant) -> Iterator[str]:
    heads: list[str] = []
    for line in text.splitlines():
        if line.startswith("#"):
            if line.startswith("# HELP"):
                heads = []
            heads.append(line)
        elif (found := _MODEL.search(line)) and grant.allows(_plain(found[1]), rights.METADATA):
            yield from heads
            heads = []
            yield line


def _plain(label: str) -> str:
    return re.sub(r'\\[\\"n]', lambda found: _ESCAPES[found[0]], label)
