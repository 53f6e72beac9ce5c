"""YAML for people to read: block style, every string in double quotes, as JSON writes it.

Only what rule files need: dicts, lists, strings, numbers and booleans.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any


def text(content: Mapping[str, Any]) -> str:
    """The document."""
    return "\n".join(_lines(content, "")) + "\n"


def _lines(content: Any, indent: str) -> Iterator[str]:
    if isinstance(content, Mapping):
        for key, value in content.items():
            if isinstance(value, Mapping | list) and value:
                yield f"{indent}{_plain(key)}:"
                yield from _lines(value, f"{indent}  ")
            else:
                yield f"{indent}{_plain(key)}: {_scalar(value)}"
        return
    for value in content:
        if isinstance(value, Mapping | list) and value:
            first, *rest = _lines(value, f"{indent}  ")
            yield f"{indent}- {first.lstrip()}"
            yield from rest
        else:
            yield f"{indent}- {_scalar(value)}"


def _plain(key: str) -> str:
    return key if key.replace("_", "").isalnum() and key.isascii() else json.dumps(key)


def _scalar(value: Any) -> str:
    return json.dumps(value, ensure_ascii=True)
