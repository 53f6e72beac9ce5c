"""The machine types of the loop language, as LLVM spells them, and constants of them.

A type is its LLVM text: ``float``, ``i64``, ``<8 x float>``. ``loop.py`` continues: it hands
these names on, so that a kernel is written with one import.
"""

from __future__ import annotations

import struct

I1, I8, I16, I32, I64 = "i1", "i8", "i16", "i32", "i64"
F32, F64, PTR = "float", "double", "ptr"


def vector(lanes: int, element: str) -> str:
    """The type of ``lanes`` elements, or the element itself for one lane."""
    return element if lanes == 1 else f"<{lanes} x {element}>"


def element_of(type_: str) -> str:
    """The element type of a vector type; a scalar type is its own element."""
    return type_.split(" x ")[1][:-1] if type_.startswith("<") else type_


def lanes_of(type_: str) -> int:
    """The number of lanes of a type; 1 for scalars."""
    return int(type_[1:].split(" x ", maxsplit=1)[0]) if type_.startswith("<") else 1


def literal(value: float | int | bool, type_: str) -> str:
    """The text of a constant of this type; vectors become a splat."""
    element = element_of(type_)
    if element == F32:
        rounded = struct.unpack("<f", struct.pack("<f", value))[0]
        text = f"0x{struct.unpack('<Q', struct.pack('<d', rounded))[0]:016X}"
    elif element == F64:
        text = f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"
    elif element == I1:
        text = "true" if value else "false"
    else:
        text = str(int(value))
    return f"splat ({element} {text})" if type_.startswith("<") else text


def mangled(type_: str) -> str:
    """The type's suffix in an overloaded intrinsic's name, such as ``v16f32``."""
    names = {F32: "f32", F64: "f64", PTR: "p0"}
    element = element_of(type_)
    suffix = names.get(element, element)
    return f"v{lanes_of(type_)}{suffix}" if type_.startswith("<") else suffix


def align_of(type_: str) -> int:
    """The natural alignment in bytes of the type's elements."""
    sizes = {F32: 4, F64: 8, PTR: 8, I1: 1, I8: 1, I16: 2, I32: 4, I64: 8, "half": 2, "bfloat": 2}
    return sizes[element_of(type_)]
