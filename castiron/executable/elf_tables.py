"""The ELF tables around an image, so that objdump, readelf, perf and gdb know its kernels.

Castiron itself never needs them. Nothing here depends on the parts' contents.
"""

from __future__ import annotations

from castiron.executable import container

_SHT_PROGBITS, _SHT_SYMTAB, _SHT_STRTAB = 1, 2, 3
_SHF_ALLOC, _SHF_EXEC = 2, 4
_ET_DYN = 3
_PT_LOAD_READ_EXEC = (1, 5)
_GLOBAL_FUNCTION = 1 << 4 | 2
_TEXT_INDEX = 1
# The null symbol is the only local one.
_FIRST_GLOBAL = 1

Extent = tuple[int, int]


class _Strings:
    """A string table under construction; `add` gives the offset of a name."""

    def __init__(self) -> None:
        self.content = bytearray(1)

    def add(self, name: str) -> int:
        offset = len(self.content)
        self.content += name.encode() + b"\0"
        return offset


def elf_head(machine: str, image_bytes: int, sections_offset: int, num_sections: int) -> bytes:
    """ELF header and its one program header; the section names are the table's last section."""
    header = container.ELF_HEADER.pack(
        b"\x7fELF\x02\x01\x01",
        _ET_DYN,
        container.MACHINES[machine],
        1,
        0,
        container.ELF_HEADER.size,
        sections_offset,
        0,
        container.ELF_HEADER.size,
        container.PROGRAM_HEADER.size,
        1,
        container.SECTION_HEADER.size,
        num_sections,
        num_sections - 1,
    )
    place = container.IMAGE_OFFSET
    segment = (place, place, place, image_bytes, image_bytes, container.PAGE_BYTES)
    return header + container.PROGRAM_HEADER.pack(*_PT_LOAD_READ_EXEC, *segment)


def symbol_tables(symbols: dict[str, Extent]) -> tuple[bytes, bytes]:
    """.symtab and .strtab of functions given as (offset in the image, size)."""
    strings = _Strings()
    entries = [bytes(container.SYMBOL.size)]
    for name, (offset, size) in symbols.items():
        value = container.IMAGE_OFFSET + offset
        index = strings.add(name)
        entries.append(container.SYMBOL.pack(index, _GLOBAL_FUNCTION, 0, _TEXT_INDEX, value, size))
    return b"".join(entries), bytes(strings.content)


class SectionTable:
    """The section header table under construction; `add` in order, then `finish`."""

    def __init__(self) -> None:
        self._names = _Strings()
        self._headers = [bytes(container.SECTION_HEADER.size)]

    def add_code(self, image_bytes: int, text_bytes: int) -> None:
        """.text and, behind it, .rodata of the image."""
        place, rest = container.IMAGE_OFFSET, image_bytes - text_bytes
        self._add(".text", _SHT_PROGBITS, _SHF_ALLOC | _SHF_EXEC, (place, text_bytes), place)
        if rest:
            extent = (place + text_bytes, rest)
            self._add(".rodata", _SHT_PROGBITS, _SHF_ALLOC, extent, extent[0])

    def add_symbols(self, symtab: Extent, strtab: Extent) -> None:
        """.symtab and .strtab at (offset, size)."""
        link = (len(self._headers) + 1, _FIRST_GLOBAL, container.SYMBOL.size)
        self._add(".symtab", _SHT_SYMTAB, 0, symtab, 0, link)
        self._add(".strtab", _SHT_STRTAB, 0, strtab)

    def add_part(self, name: str, extent: Extent) -> None:
        """A section of castiron's own that no loader maps."""
        self._add(f".castiron.{name}", _SHT_PROGBITS, 0, extent)

    def finish(self, names_offset: int) -> tuple[bytes, bytes, int]:
        """.shstrtab for that offset, the header table, and the number of sections."""
        index = self._names.add(".shstrtab")
        names = bytes(self._names.content)
        last = (index, _SHT_STRTAB, 0, 0, names_offset, len(names), 0, 0, 1, 0)
        headers = [*self._headers, container.SECTION_HEADER.pack(*last)]
        return names, b"".join(headers), len(headers)

    def _add(
        self,
        name: str,
        kind: int,
        flags: int,
        extent: Extent,
        address: int = 0,
        link: tuple[int, int, int] = (0, 0, 0),
    ) -> None:
        index = self._names.add(name)
        align = _alignment_of(extent[0])
        fields = (index, kind, flags, address, *extent, link[0], link[1], align, link[2])
        self._headers.append(container.SECTION_HEADER.pack(*fields))


def _alignment_of(offset: int) -> int:
    """The largest alignment castiron uses that `offset` has."""
    for align in (container.PAGE_BYTES, container.PART_ALIGN):
        if offset % align == 0:
            return align
    return 1
