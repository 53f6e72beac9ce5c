"""Messages changed field by field, so that damage gets past the parser of their bytes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

_NUMBERS = (0, 1, -1, 2, 7, 13, 255, 2**31 - 1, -(2**31), 2**62, -(2**63), 2**63 - 1)
_FLOATS = (0.0, -1.0, 1e38, float("nan"), float("inf"))


def changed(message: Any, dice: random.Random) -> None:
    """Change a few fields anywhere below the message, in place."""
    for _ in range(dice.choice([1, 1, 2, 4])):
        if places := [each for each in _below(message) if each.DESCRIPTOR.fields]:
            _change_one(dice.choice(places), dice)


def _below(message: Any) -> Iterator[Any]:
    yield message
    for descriptor, value in message.ListFields():
        if descriptor.message_type is not None:
            if descriptor.message_type.GetOptions().map_entry:
                continue
            for each in value if descriptor.is_repeated else [value]:
                yield from _below(each)


def _change_one(message: Any, dice: random.Random) -> None:
    descriptor = dice.choice(message.DESCRIPTOR.fields)
    set_fields = [each for each, _ in message.ListFields()]
    if set_fields and dice.random() < 0.8:
        descriptor = dice.choice(set_fields)
    name = descriptor.name
    if dice.random() < 0.1:
        message.ClearField(name)
    elif descriptor.message_type is not None and descriptor.message_type.GetOptions().map_entry:
        _change_map(getattr(message, name), descriptor.message_type, dice)
    elif descriptor.is_repeated:
        _change_list(getattr(message, name), descriptor, dice)
    elif descriptor.message_type is not None:
        getattr(message, name).SetInParent()
    else:
        _set(message, name, descriptor, dice)


def _change_list(values: Any, descriptor: Any, dice: random.Random) -> None:
    is_message = descriptor.message_type is not None
    if values and dice.random() < 0.3:
        del values[dice.randrange(len(values))]
    elif values and dice.random() < 0.5:
        values.append(values[dice.randrange(len(values))])
    elif is_message:
        values.add()
    elif values:
        values[dice.randrange(len(values))] = _scalar(descriptor, values[0], dice)
    else:
        values.append(_scalar(descriptor, None, dice))


def _change_map(values: Any, entry: Any, dice: random.Random) -> None:
    key = dice.choice(["timeout", "priority", "binary_data_output", "sequence_id", "", "a"])
    if entry.fields_by_name["value"].message_type is None:
        return
    parameter = values[key]
    option = dice.choice(parameter.DESCRIPTOR.fields)
    if option.message_type is None and not option.is_repeated:
        _set(parameter, option.name, option, dice)


def _set(message: Any, name: str, descriptor: Any, dice: random.Random) -> None:
    setattr(message, name, _scalar(descriptor, getattr(message, name), dice))


def _scalar(descriptor: Any, value: Any, dice: random.Random) -> Any:
    """Another value of the field's type."""
    match descriptor.cpp_type:
        case descriptor.CPPTYPE_STRING if descriptor.type == descriptor.TYPE_BYTES:
            raw = bytearray(value or b"\0" * 8)
            del raw[dice.randrange(len(raw) + 1) :]
            return bytes(raw) + dice.randbytes(dice.choice([0, 1, 4]))
        case descriptor.CPPTYPE_STRING:
            return dice.choice(["", "x", "y", "w", "\0", "Conv", "Loop", "ai.onnx", "n" * 300])
        case descriptor.CPPTYPE_FLOAT | descriptor.CPPTYPE_DOUBLE:
            return dice.choice(_FLOATS)
        case descriptor.CPPTYPE_BOOL:
            return not value
        case descriptor.CPPTYPE_ENUM:
            return dice.choice(descriptor.enum_type.values).number
        case descriptor.CPPTYPE_INT32 | descriptor.CPPTYPE_UINT32 | descriptor.CPPTYPE_UINT64:
            return dice.choice([0, 1, 2, 9, 2**31 - 1])
        case _:
            return dice.choice(_NUMBERS)
