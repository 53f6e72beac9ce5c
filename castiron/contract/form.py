"""Records to plain tables and back, by the types of their fields.

Reading finds every fault at once, each with its path; an unknown key is a fault that names the
nearest known one. Writing leaves out what is absent or empty. The text around it is ``toml.py``.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import types
import typing
from collections.abc import Hashable, Iterable, Mapping
from typing import Any

from castiron.contract import steps

_NUMBER = int | float
_WORDS = {
    str: "text", int: "a whole number", float: "a number", bool: "true or false",
    _NUMBER: "a number",
}  # fmt: skip


class Unreadable:
    """What stands for a value that has a fault; the fault itself is in the list of problems."""


UNREADABLE = Unreadable()


def read(record: type[Any], table: Any, path: str, problems: list[str]) -> Any:
    """The record that ``table`` says, or UNREADABLE once ``problems`` tells why not."""
    if not isinstance(table, Mapping):
        problems.append(f"{path or 'contract'}: expected a table, found {_shown(table)}")
        return UNREADABLE
    known = _fields(typing.cast("Hashable", record))
    problems.extend(_unknown(table, known, path))
    given: dict[str, Any] = {}
    for name, (kind, is_needed) in known.items():
        place = f"{path}.{name}" if path else name
        if name in table:
            given[name] = _value(kind, table[name], place, problems)
        elif is_needed:
            problems.append(f"{place}: expected {_word(kind)}, found nothing")
            given[name] = UNREADABLE
    if any(value is UNREADABLE for value in given.values()):
        return UNREADABLE
    return record(**given)


@functools.cache
def _fields(record: Hashable) -> dict[str, tuple[Any, bool]]:
    """Name to (type, whether it must be given) for each field of a record, in order."""
    kind: Any = record
    hints = typing.get_type_hints(kind)
    return {
        item.name: (
            hints[item.name],
            item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING,
        )
        for item in dataclasses.fields(kind)
    }


def nearest(word: str, known: Iterable[str]) -> str:
    """``; did you mean X?`` when some known word is close, nothing otherwise."""
    close = difflib.get_close_matches(word, list(known), 1, 0.6)
    return f"; did you mean {close[0]!r}?" if close else ""


def _unknown(table: Mapping[str, Any], known: Iterable[str], path: str) -> list[str]:
    return [
        f"{path + '.' if path else ''}{key}: unknown key"
        f"{nearest(key, known) or '; known are ' + ', '.join(known)}"
        for key in table
        if key not in known
    ]


def _value(kind: Any, value: Any, path: str, problems: list[str]) -> Any:
    if kind == steps.Step:
        return _step(value, path, problems)
    kind = _without_none(kind)
    origin = typing.get_origin(kind)
    if origin is tuple:
        return _sequence(typing.get_args(kind), value, path, problems)
    if origin is dict:
        return _mapping(typing.get_args(kind)[1], value, path, problems)
    if dataclasses.is_dataclass(kind):
        return read(typing.cast("type[Any]", kind), value, path, problems)
    if _fits(kind, value):
        return float(value) if kind is float else value
    problems.append(f"{path}: expected {_word(kind)}, found {_shown(value)}")
    return UNREADABLE


def _sequence(kinds: tuple[Any, ...], value: Any, path: str, problems: list[str]) -> Any:
    if not isinstance(value, list):
        problems.append(f"{path}: expected a list, found {_shown(value)}")
        return UNREADABLE
    if kinds[-1] is not Ellipsis:
        if len(value) != len(kinds):
            problems.append(f"{path}: expected {len(kinds)} values, found {len(value)}")
            return UNREADABLE
    else:
        kinds = (kinds[0],) * len(value)
    read_values = [
        _value(kind, item, f"{path}[{index}]", problems)
        for index, (kind, item) in enumerate(zip(kinds, value, strict=True))
    ]
    return UNREADABLE if UNREADABLE in read_values else tuple(read_values)


def _mapping(kind: Any, value: Any, path: str, problems: list[str]) -> Any:
    if not isinstance(value, Mapping):
        problems.append(f"{path}: expected a table, found {_shown(value)}")
        return UNREADABLE
    found = {key: _value(kind, item, f"{path}.{key}", problems) for key, item in value.items()}
    return UNREADABLE if UNREADABLE in found.values() else found


def _step(value: Any, path: str, problems: list[str]) -> Any:
    if not isinstance(value, Mapping) or not isinstance(value.get("op"), str):
        problems.append(f"{path}: expected a table with the key op, found {_shown(value)}")
        return UNREADABLE
    op = value["op"]
    if op not in steps.BY_OP:
        hint = nearest(op, steps.BY_OP) or f"; known are {', '.join(steps.BY_OP)}"
        problems.append(f"{path}.op: unknown step {op!r}{hint}")
        return UNREADABLE
    rest = {key: item for key, item in value.items() if key != "op"}
    return read(steps.BY_OP[op], rest, path, problems)


def _without_none(kind: Any) -> Any:
    """``X`` for ``X | None``."""
    if not isinstance(kind, types.UnionType) or type(None) not in kind.__args__:
        return kind
    kept = [item for item in kind.__args__ if item is not type(None)]
    return functools.reduce(lambda left, right: left | right, kept)


def _fits(kind: Any, value: Any) -> bool:
    accepted = set(kind.__args__) if isinstance(kind, types.UnionType) else {kind}
    # Whole numbers are numbers; true and false are not.
    return type(value) in accepted or (type(value) is int and float in accepted)


def _word(kind: Any) -> str:
    kind = _without_none(kind)
    if kind in _WORDS:
        return _WORDS[kind]
    if isinstance(kind, types.UnionType):
        return " or ".join(_WORDS.get(item, "a table") for item in kind.__args__)
    return "a list" if typing.get_origin(kind) is tuple else "a table"


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return "a table"
    if isinstance(value, list):
        return "a list"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def write(record: Any) -> dict[str, Any]:
    """The plain table of a record; ``read`` gives the record back."""
    table: dict[str, Any] = {}
    if type(record) in steps.OP_OF:
        table["op"] = steps.OP_OF[type(record)]
    for item in dataclasses.fields(record):
        value = getattr(record, item.name)
        if value is None or _is_empty(value, item):
            continue
        table[item.name] = _plain(value)
    return table


def _is_empty(value: Any, item: dataclasses.Field[Any]) -> bool:
    """Whether reading without the key gives the same value, and the value is worth no line."""
    if value == item.default and value in ("", (), False):
        return True
    if item.default_factory is not dataclasses.MISSING and value == item.default_factory():
        return True
    return dataclasses.is_dataclass(value) and value == item.default and not write(value)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return write(value)
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value
