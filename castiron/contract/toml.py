"""Plain tables to TOML text: stable, so that a contract written twice is the same bytes.

The standard library reads TOML and does not write it. Tables keep the order they come in; short
lists stay on one line; a list of tables becomes ``[[name]]`` sections, except where tables hold
no further tables and stand inside one already (steps, columns): those are inline.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_WIDTH = 100
_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r",
            "\b": "\\b", "\f": "\\f"}  # fmt: skip


def text(table: Mapping[str, Any]) -> str:
    """The TOML text of a table of text, numbers, booleans, lists and tables."""
    return "\n".join(_table(table, ())).strip("\n") + "\n"


def _table(table: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    sections = {key: value for key, value in table.items() if _is_section(value)}
    for key, value in table.items():
        if key not in sections:
            yield from _line(f"{_key(key)} = ", value)
    for key, value in sections.items():
        here = (*path, key)
        name = ".".join(map(_key, here))
        for item in value if isinstance(value, list) else [value]:
            has_lines = isinstance(value, list) or any(not _is_section(v) for v in item.values())
            if has_lines:
                yield ""
                yield f"[[{name}]]" if isinstance(value, list) else f"[{name}]"
            yield from _table(item, here)


def _is_section(value: Any) -> bool:
    if isinstance(value, Mapping):
        return True
    is_tables = isinstance(value, list) and value and all(isinstance(v, Mapping) for v in value)
    return bool(is_tables) and "op" not in value[0]


def _line(start: str, value: Any) -> Iterator[str]:
    line = start + _inline(value)
    if len(line) <= _WIDTH or not isinstance(value, list):
        yield line
        return
    yield f"{start}["
    yield from _rows([_inline(item) for item in value])
    yield "]"


def _rows(items: list[str]) -> Iterator[str]:
    """As many on a line as fit."""
    row = "   "
    for item in items:
        if len(row) + len(item) + 2 > _WIDTH and row.strip():
            yield row
            row = "   "
        row += f" {item},"
    if row.strip():
        yield row


def _inline(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return _float(value)
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, list):
        return f"[{', '.join(map(_inline, value))}]"
    inner = ", ".join(f"{_key(key)} = {_inline(item)}" for key, item in value.items())
    return f"{{ {inner} }}"


def _float(value: float) -> str:
    if math.isnan(value):
        return "nan"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    shown = repr(value)
    return shown if "." in shown or "e" not in shown else shown.replace("e", ".0e")


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _string(key)


def _string(value: str) -> str:
    parts = [_ESCAPES.get(letter) or _plain(letter) for letter in value]
    return f'"{"".join(parts)}"'


def _plain(letter: str) -> str:
    is_control = letter < " " or letter == "\x7f"
    return f"\\u{ord(letter):04x}" if is_control else letter
