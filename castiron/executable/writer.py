"""Writes an executable file, once and whole.

The file appears under its name complete or not at all: written beside it, synced, renamed, and
read-only from then on, because processes map it. What the parts mean is their makers' business.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pathlib
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from castiron.executable import abi, container, digest, elf_tables

Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class Contents:
    """Everything an executable holds.

    `target`, `machine` ("x86_64" or "aarch64") and `flags` (words of /proc/cpuinfo) say where it
    runs. `image` is flat code, its first `text_bytes` instructions, its functions `symbols`
    (name to offset and size). `weights` are written one behind the other: whoever placed them
    has padded them.
    """

    target: str
    machine: str
    flags: tuple[str, ...]
    image: bytes
    text_bytes: int
    symbols: dict[str, tuple[int, int]]
    plan: bytes
    report: bytes = b""
    source: bytes = b""
    weights: Sequence[Buffer] = ()


def write(path: str | os.PathLike[str], contents: Contents) -> None:
    """Write `contents` to `path`; the same contents give the same bytes.

    Replaces a file of that name without touching its bytes, which may be mapped. Raises OSError
    if the folder cannot be written; then nothing is left behind.
    """
    goal = pathlib.Path(path)
    handle, name = tempfile.mkstemp(dir=goal.parent, prefix=f".{goal.name}.")
    temporary = pathlib.Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            for offset, data in _pieces(contents):
                file.seek(offset)
                # Pieces come in order, so an empty one still makes the file reach its place.
                file.write(data) if len(data) else file.truncate()
            file.flush()
            os.fchmod(file.fileno(), 0o444)
            os.fsync(file.fileno())
        temporary.replace(goal)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    _sync_folder(goal.parent)


def _sync_folder(folder: pathlib.Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _pieces(contents: Contents) -> Iterator[tuple[int, Buffer]]:
    """(offset, bytes) of every piece; the head comes last, since it holds all digests."""
    header = container.Header(
        contents.target,
        contents.machine,
        contents.flags,
        abi.ABI_VERSION,
        contents.text_bytes,
    )
    offsets = _place(contents)
    tables, elf_head = _tables(contents, offsets)
    solid = {
        "image": contents.image,
        "tables": tables,
        "plan": contents.plan,
        "report": contents.report,
        "source": contents.source,
    }
    for name, data in solid.items():
        header.parts[name] = container.Part(offsets[name], len(data), digest.sha256(data))
        yield offsets[name], data
    weights = hashlib.sha256()
    end = offsets["weights"]
    for buffer in contents.weights:
        piece = memoryview(buffer).cast("B")
        weights.update(piece)
        yield end, piece
        end += len(piece)
    size = end - offsets["weights"]
    header.parts["weights"] = container.Part(offsets["weights"], size, weights.digest())
    header.file_bytes = end
    yield end, b""
    yield 0, container.pack_head(header, elf_head)


def _aligned(offset: int, align: int) -> int:
    return -(-offset // align) * align


def _place(contents: Contents) -> dict[str, int]:
    """The offset of every part, in the order of the file."""
    symtab, strtab = elf_tables.symbol_tables(contents.symbols)
    names, headers, _ = _section_table(contents, {}).finish(0)
    tables_bytes = len(symtab) + len(strtab) + len(names) + len(headers) + 3 * container.PART_ALIGN
    sizes = {
        "image": len(contents.image),
        "tables": tables_bytes,
        "plan": len(contents.plan),
        "report": len(contents.report),
        "source": len(contents.source),
    }
    offsets, end = {}, container.IMAGE_OFFSET
    for name, size in sizes.items():
        offsets[name] = _aligned(end, container.PART_ALIGN)
        end = offsets[name] + size
    offsets["weights"] = _aligned(end, container.PAGE_BYTES)
    return offsets


def _section_table(
    contents: Contents, extents: dict[str, tuple[int, int]]
) -> elf_tables.SectionTable:
    table = elf_tables.SectionTable()
    table.add_code(len(contents.image), contents.text_bytes)
    nowhere = (0, 0)
    table.add_symbols(extents.get("symtab", nowhere), extents.get("strtab", nowhere))
    for name in ("header", "plan", "report", "source", "weights"):
        table.add_part(name, extents.get(name, nowhere))
    return table


def _tables(contents: Contents, offsets: dict[str, int]) -> tuple[bytes, bytes]:
    """The part "tables" (symbols, names, section headers), and the ELF head that points to it."""
    symtab, strtab = elf_tables.symbol_tables(contents.symbols)
    start = offsets["tables"]
    extents = {
        "symtab": (start, len(symtab)),
        "strtab": (start + len(symtab), len(strtab)),
        "header": (container.HEADER_OFFSET, container.HEADER_BYTES),
        "plan": (offsets["plan"], len(contents.plan)),
        "report": (offsets["report"], len(contents.report)),
        "source": (offsets["source"], len(contents.source)),
        "weights": (offsets["weights"], sum(memoryview(w).nbytes for w in contents.weights)),
    }
    names_offset = start + len(symtab) + len(strtab)
    names, headers, count = _section_table(contents, extents).finish(names_offset)
    content = symtab + strtab + names
    content += bytes(-len(content) % 8)
    head = elf_tables.elf_head(contents.machine, len(contents.image), start + len(content), count)
    return content + headers, head
