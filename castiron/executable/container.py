"""The shape of an executable file: an ELF file with castiron's header and parts inside.

Names every offset, packs and unpacks the header, and checks that its parts fit the file. Touches
no file itself: writer makes one, reader opens one. The order in the file is ELF head, header,
then the parts in the order of PARTS, weights last.
"""

from __future__ import annotations

import struct

from castiron import errors
from castiron.executable import digest

MAGIC = b"CASTIRON"
FORMAT_VERSION = 1

# Kernels with 64 KB pages can map only what starts on such a page.
PAGE_BYTES = 1 << 16
PART_ALIGN = 64
ELF_HEAD_BYTES = 256
HEADER_OFFSET = ELF_HEAD_BYTES
IMAGE_OFFSET = PAGE_BYTES

PARTS = ("image", "tables", "plan", "report", "source", "weights")
MACHINES = {"x86_64": 62, "aarch64": 183}

_FIELDS = struct.Struct("<8sIIII16s256sQQ")
_PART = struct.Struct("<QQ32s")
HEADER_BYTES = _FIELDS.size + len(PARTS) * _PART.size + digest.DIGEST_BYTES
HEAD_BYTES = HEADER_OFFSET + HEADER_BYTES

ELF_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
PROGRAM_HEADER = struct.Struct("<IIQQQQQQ")
SECTION_HEADER = struct.Struct("<IIQQQQIIQQ")
SYMBOL = struct.Struct("<IBBHQQ")
SECTION_SYMTAB = 2


class Part:
    """One part of the file: `offset` and `size` in bytes, and its SHA-256."""

    __slots__ = ("digest", "offset", "size")

    def __init__(self, offset: int, size: int, digest: bytes) -> None:
        self.offset = offset
        self.size = size
        self.digest = digest


class Header:
    """What the file says of itself.

    `target` is the target's name, `machine` the word `uname -m` prints for it, `flags` the words
    of /proc/cpuinfo the code needs, `text_bytes` the code at the front of the image.
    """

    __slots__ = ("abi_version", "file_bytes", "flags", "machine", "parts", "target", "text_bytes")

    def __init__(
        self,
        target: str,
        machine: str,
        flags: tuple[str, ...],
        abi_version: int,
        text_bytes: int,
    ) -> None:
        self.target = target
        self.machine = machine
        self.flags = flags
        self.abi_version = abi_version
        self.text_bytes = text_bytes
        self.file_bytes = 0
        self.parts: dict[str, Part] = {}


def pack_head(header: Header, elf_head: bytes) -> bytes:
    """The first HEAD_BYTES of the file: `elf_head` padded, then the header and its digest.

    Raises BuildError if the target's name or its flags are longer than their fields.
    """
    name, flags = header.target.encode(), " ".join(header.flags).encode()
    if len(name) > 16 or len(flags) > 256:
        raise errors.BuildError(
            f"target {header.target}: expected a name up to 16 bytes and flags up to 256; found "
            f"{len(name)} and {len(flags)} bytes. Shorten them in compiler/target.py."
        )
    fields = _FIELDS.pack(
        MAGIC,
        FORMAT_VERSION,
        header.abi_version,
        MACHINES[header.machine],
        0,
        name,
        flags,
        header.file_bytes,
        header.text_bytes,
    )
    parts = [header.parts[part] for part in PARTS]
    packed = b"".join(_PART.pack(part.offset, part.size, part.digest) for part in parts)
    signed = elf_head.ljust(ELF_HEAD_BYTES, b"\0") + fields + packed
    return signed + digest.sha256(signed)


def unpack_head(head: bytes, size_bytes: int, path: str) -> Header:
    """The header in the first HEAD_BYTES of a file of `size_bytes`; `path` is for messages.

    Raises ExecutableError unless the head is whole, of this format, unchanged, and all parts lie
    inside the file in their order, so that mapping them cannot touch a missing page.
    """
    if len(head) < HEAD_BYTES or head[HEADER_OFFSET : HEADER_OFFSET + 8] != MAGIC:
        raise fault(
            path,
            "header",
            f"an executable that begins with {HEAD_BYTES} bytes of head, with {MAGIC!r} at byte "
            f"{HEADER_OFFSET}",
            f"{size_bytes} bytes beginning {bytes(head[:8])!r}",
            "give a .cast file made by castiron build",
        )
    values = _FIELDS.unpack_from(head, HEADER_OFFSET)
    _check_version(values[1], path)
    check_digest(path, "header", head[-digest.DIGEST_BYTES :], head[: -digest.DIGEST_BYTES])
    header = _header_of(values, path)
    for number, name in enumerate(PARTS):
        part = _PART.unpack_from(head, HEADER_OFFSET + _FIELDS.size + number * _PART.size)
        header.parts[name] = Part(*part)
    _check_extent(header, size_bytes, path)
    return header


def _check_version(found: int, path: str) -> None:
    if found != FORMAT_VERSION:
        raise fault(
            path,
            "header",
            f"format version {FORMAT_VERSION}",
            f"version {found}",
            "build the model again with this castiron, or serve the file with the one that built it",
        )


def _header_of(values: tuple[int | bytes, ...], path: str) -> Header:
    _, _, abi_version, number, _, name, flags, file_bytes, text_bytes = values
    assert isinstance(number, int)
    machines = [machine for machine, known in MACHINES.items() if known == number]
    if not machines:
        raise fault(
            path,
            "header",
            f"a machine among {', '.join(MACHINES)}",
            f"ELF machine {number}",
            "build the model for this machine",
        )
    assert isinstance(name, bytes)
    assert isinstance(flags, bytes)
    words = flags.rstrip(b"\0").decode("ascii", "replace").split()
    target = name.rstrip(b"\0").decode("ascii", "replace")
    assert isinstance(abi_version, int)
    assert isinstance(text_bytes, int)
    header = Header(target, machines[0], tuple(words), abi_version, text_bytes)
    header.file_bytes = int(file_bytes)
    return header


def _check_extent(header: Header, size_bytes: int, path: str) -> None:
    if header.file_bytes != size_bytes:
        raise fault(
            path,
            "file size",
            f"{header.file_bytes} bytes",
            f"{size_bytes} bytes",
            "the file was cut short or added to: copy it again",
        )
    end = HEAD_BYTES
    for name in PARTS:
        part = header.parts[name]
        if part.offset < end or part.offset + part.size > size_bytes:
            raise fault(
                path,
                f"part {name}",
                f"a place between byte {end} and the end at {size_bytes}",
                f"{part.size} bytes at {part.offset}",
                "the file is not one castiron wrote: build the model again",
            )
        end = part.offset + part.size
    _check_pages(header, path)


def _check_pages(header: Header, path: str) -> None:
    image, weights = header.parts["image"], header.parts["weights"]
    paged = image.offset == IMAGE_OFFSET and weights.offset % PAGE_BYTES == 0
    if not (paged and image.size > 0 and header.text_bytes <= image.size):
        raise fault(
            path,
            "part image",
            f"code at byte {IMAGE_OFFSET} and weights on a page of {PAGE_BYTES} bytes",
            f"{header.text_bytes} bytes of code in {image.size} at {image.offset}, "
            f"weights at {weights.offset}",
            "the file is not one castiron wrote: build the model again",
        )


def check_digest(path: str, where: str, expected: bytes, data: bytes | memoryview) -> None:
    """ExecutableError unless the SHA-256 of `data` is `expected`."""
    found = digest.sha256(data)
    if found != expected:
        raise fault(
            path,
            where,
            f"sha256 {expected.hex()}",
            f"sha256 {found.hex()}",
            "the file was changed or damaged: copy it again, or build the model again",
        )


def fault(path: str, where: str, expected: str, found: str, remedy: str) -> errors.ExecutableError:
    """The error for one thing wrong with the file at `path`."""
    return errors.ExecutableError(
        f"{path}: {where}: expected {expected}; found {found}. What to do: {remedy}."
    )


def symbols_of(head: bytes, tables: bytes, tables_offset: int) -> dict[str, tuple[int, int]]:
    """Kernel names to (offset in the image, size in bytes), from the ELF symbol table.

    `tables` is the part of that name and begins at byte `tables_offset`. Raises struct.error,
    IndexError or ValueError if its tables point outside it.
    """
    elf = ELF_HEADER.unpack_from(head, 0)
    start, count = elf[6] - tables_offset, elf[12]
    headers = [
        SECTION_HEADER.unpack_from(tables, start + index * SECTION_HEADER.size)
        for index in range(count)
    ]
    found = {}
    for header in headers:
        if header[1] != SECTION_SYMTAB:
            continue
        names = _slice(tables, headers[header[6]], tables_offset)
        for entry in SYMBOL.iter_unpack(_slice(tables, header, tables_offset)):
            if entry[0]:
                name = names[entry[0] : names.index(b"\0", entry[0])].decode()
                found[name] = (entry[4] - IMAGE_OFFSET, entry[5])
    return found


def _slice(tables: bytes, header: tuple[int, ...], tables_offset: int) -> bytes:
    start = header[4] - tables_offset
    return tables[start : start + header[5]]
