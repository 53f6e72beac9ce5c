"""Executables changed on purpose, with digests that are right again: what no digest can tell."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from castiron.executable import container, digest, reader

# mov rax, [rdi]; cmp dword [rax], -123.0f; jne over; ud2; over: ret
TRAP_ON_MINUS_123 = bytes.fromhex("488b07 81380000f6c2 7502 0f0b c3".replace(" ", ""))


def with_code(source: Path, out: Path, kernel: str, code: bytes) -> None:
    """The executable whose first kernel of a name that begins so is this machine code."""
    with reader.open(source) as file:
        name = next(name for name in file.symbols() if name.startswith(kernel))
        at, size = file.symbols()[name]
        assert len(code) <= size
        part = file.header.parts["image"]
    content = bytearray(source.read_bytes())
    begin = part.offset + at
    content[begin : begin + len(code)] = code
    image = bytes(content[part.offset : part.offset + part.size])
    _sealed(content, lambda head: head.parts["image"].__init__(  # type: ignore[misc]
        part.offset, part.size, digest.sha256(image)))  # fmt: skip
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_bytes(content)


def with_flags(source: Path, out: Path, *flags: str) -> None:
    """The executable for processors that have these features."""
    content = bytearray(source.read_bytes())

    def change(header: container.Header) -> None:
        header.flags = flags

    _sealed(content, change)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_bytes(content)


def _sealed(content: bytearray, change: Callable[[container.Header], None]) -> None:
    header = container.unpack_head(bytes(content[: container.HEAD_BYTES]), len(content), "patched")
    change(header)
    elf_head = bytes(content[: container.ELF_HEAD_BYTES])
    content[: container.HEAD_BYTES] = container.pack_head(header, elf_head)
