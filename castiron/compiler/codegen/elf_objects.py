"""Object files as the linker wants them: sections kept, symbols, relocations.

Reads the ELF64 objects LLVM emits, once; the parsed form has a small binary shape of its own so
that the kernel cache never parses ELF again. Judges nothing: link decides what may be kept.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from castiron import errors

MACHINE_X86_64 = 62
MACHINE_AARCH64 = 183

UNDEFINED = -1
ABSOLUTE = -2

SECTION_WRITE = 1
SECTION_ALLOC = 2
SECTION_EXEC = 4
SECTION_TLS = 0x400

_SYMTAB, _RELA, _NOBITS = 2, 4, 8
_TYPE_FUNCTION, _TYPE_SECTION = 2, 3
_INDEX_ABSOLUTE = 0xFFF1
_LARGEST_SECTION = 1 << 28
_FILE_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION_HEADER = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QIIq")


@dataclass(frozen=True, slots=True)
class Section:
    """One allocated section: its bytes, `flags` (SECTION_*), and alignment in bytes."""

    name: str
    flags: int
    align: int
    content: bytes


@dataclass(frozen=True, slots=True)
class Symbol:
    """`section` indexes KernelObject.sections, or is UNDEFINED or ABSOLUTE."""

    name: str
    section: int
    offset: int
    size: int
    is_exported: bool
    is_function: bool


@dataclass(frozen=True, slots=True)
class Relocation:
    """A place to patch: `offset` in `section`; `symbol` indexes KernelObject.symbols."""

    section: int
    offset: int
    kind: int
    symbol: int
    addend: int


@dataclass(frozen=True, slots=True)
class KernelObject:
    """One object file, reduced to what ends in an image."""

    machine: int
    sections: tuple[Section, ...]
    symbols: tuple[Symbol, ...]
    relocations: tuple[Relocation, ...]

    def exported(self) -> tuple[str, ...]:
        """Names of the functions other objects and the plan may call, in symbol order."""
        return tuple(
            symbol.name
            for symbol in self.symbols
            if symbol.is_exported and symbol.is_function and symbol.section >= 0
        )


def parse(data: bytes) -> KernelObject:
    """The parsed form of a relocatable ELF64 little-endian object.

    Raises BuildError if `data` is something else or cut short.
    """
    try:
        return _parse(data)
    except (struct.error, IndexError, ValueError) as fault:
        raise errors.BuildError(
            f"object file: expected a whole ELF64 relocatable object; found {len(data)} bytes "
            f"that end or point outside themselves ({fault}). Clear the kernel cache and rebuild."
        ) from fault


def _parse(data: bytes) -> KernelObject:
    header = _FILE_HEADER.unpack_from(data, 0)
    if header[0][:6] != b"\x7fELF\x02\x01" or header[1] != 1:
        raise errors.BuildError(
            "object file: expected a relocatable ELF64 little-endian object; "
            f"found bytes starting {data[:18].hex()}. Clear the kernel cache and rebuild."
        )
    raw = [
        _SECTION_HEADER.unpack_from(data, header[6] + index * header[11])
        for index in range(header[12])
    ]
    names = _content(data, raw[header[13]])
    kept = _kept_sections(data, raw, names)
    renumbered = {old: new for new, old in enumerate(kept)}
    return KernelObject(
        machine=header[2],
        sections=tuple(kept.values()),
        symbols=tuple(_symbols(data, raw, names, renumbered)),
        relocations=tuple(_relocations(data, raw, renumbered)),
    )


def _content(data: bytes, header: tuple[int, ...]) -> bytes:
    _, kind, _, _, offset, size, *_ = header
    if kind == _NOBITS and size <= _LARGEST_SECTION:
        return bytes(size)
    if offset + size > len(data):
        raise IndexError(f"section at {offset} of {size} bytes")
    return data[offset : offset + size]


def _text_at(table: bytes, offset: int) -> str:
    return table[offset : table.index(b"\0", offset)].decode()


def _kept_sections(data: bytes, raw: list[tuple[int, ...]], names: bytes) -> dict[int, Section]:
    """Allocated sections by their old index; unwind tables are dropped, nothing unwinds here."""
    kept = {}
    for index, header in enumerate(raw):
        name = _text_at(names, header[0])
        if header[2] & SECTION_ALLOC and header[5] and not name.startswith(".eh_frame"):
            kept[index] = Section(name, header[2], max(header[8], 1), _content(data, header))
    return kept


def _symbols(
    data: bytes, raw: list[tuple[int, ...]], names: bytes, renumbered: dict[int, int]
) -> Iterator[Symbol]:
    for header in raw:
        if header[1] != _SYMTAB:
            continue
        strings = _content(data, raw[header[6]])
        for entry in _SYMBOL.iter_unpack(_content(data, header)):
            name, info, _, section, value, size = entry
            text = _text_at(strings, name)
            if info & 15 == _TYPE_SECTION:
                text = _text_at(names, raw[section][0])
            home = renumbered.get(section, UNDEFINED)
            if section == _INDEX_ABSOLUTE:
                home = ABSOLUTE
            yield Symbol(text, home, value, size, info >> 4 != 0, info & 15 == _TYPE_FUNCTION)


def _relocations(
    data: bytes, raw: list[tuple[int, ...]], renumbered: dict[int, int]
) -> Iterator[Relocation]:
    for header in raw:
        if header[1] != _RELA or header[7] not in renumbered:
            continue
        section = renumbered[header[7]]
        for offset, kind, symbol, addend in _RELOCATION.iter_unpack(_content(data, header)):
            yield Relocation(section, offset, kind, symbol, addend)


_COUNTS = struct.Struct("<IIII")
_PACKED_SECTION = struct.Struct("<HIIQ")
_PACKED_SYMBOL = struct.Struct("<HiQQBB")
_PACKED_RELOCATION = struct.Struct("<IQIIq")


def pack(parsed: KernelObject) -> bytes:
    """The cache's bytes for `parsed`; `unpack` is the exact inverse."""
    counts = (len(parsed.sections), len(parsed.symbols), len(parsed.relocations))
    parts = [_COUNTS.pack(parsed.machine, *counts)]
    for section in parsed.sections:
        name = section.name.encode()
        fixed = (len(name), section.flags, section.align, len(section.content))
        parts += [_PACKED_SECTION.pack(*fixed), name, section.content]
    for symbol in parsed.symbols:
        name = symbol.name.encode()
        place = (len(name), symbol.section, symbol.offset, symbol.size)
        parts += [_PACKED_SYMBOL.pack(*place, symbol.is_exported, symbol.is_function), name]
    for item in parsed.relocations:
        fields = (item.section, item.offset, item.kind, item.symbol, item.addend)
        parts.append(_PACKED_RELOCATION.pack(*fields))
    return b"".join(parts)


def unpack(data: bytes) -> KernelObject:
    """The object `pack` was given. `data` must be intact (the cache checks its digest first)."""
    machine, num_sections, num_symbols, num_relocations = _COUNTS.unpack_from(data, 0)
    position = _COUNTS.size
    sections = []
    for _ in range(num_sections):
        length, flags, align, size = _PACKED_SECTION.unpack_from(data, position)
        position += _PACKED_SECTION.size
        name = data[position : position + length].decode()
        position += length
        sections.append(Section(name, flags, align, data[position : position + size]))
        position += size
    symbols = []
    for _ in range(num_symbols):
        length, section, offset, size, *marks = _PACKED_SYMBOL.unpack_from(data, position)
        position += _PACKED_SYMBOL.size
        name = data[position : position + length].decode()
        position += length
        symbols.append(Symbol(name, section, offset, size, bool(marks[0]), bool(marks[1])))
    end = position + num_relocations * _PACKED_RELOCATION.size
    patches = _PACKED_RELOCATION.iter_unpack(data[position:end])
    relocations = tuple(Relocation(*fields) for fields in patches)
    return KernelObject(machine, tuple(sections), tuple(symbols), relocations)
