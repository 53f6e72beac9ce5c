"""Compiled kernels on disk, by content.

One file for each kernel: a digest, then the packed object. Bounded in bytes, least recently used
out first. Losing it costs time only; a damaged entry is dropped and compiled again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pathlib
import tempfile
from dataclasses import dataclass, field

import llvmlite

from castiron.compiler import target as targets
from castiron.compiler.codegen import elf_objects

# Raise when the packed form, or anything assemble does to a text, changes.
FORMAT = 1

_DIGEST_BYTES = 32
_DEFAULT_LIMIT_BYTES = 1 << 30


def key(text: str, target: targets.Target, llvm_version: tuple[int, ...] = ()) -> str:
    """The content name of a kernel: everything its machine code depends on."""
    parts = (
        str(FORMAT),
        llvmlite.__version__,
        ".".join(map(str, llvm_version)),
        target.triple,
        target.cpu,
        target.features,
        text,
    )
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


@dataclass(slots=True)
class KernelCache:
    """Kernels under `folder`, at most `limit_bytes` of them after each `trim`."""

    folder: pathlib.Path
    limit_bytes: int = _DEFAULT_LIMIT_BYTES
    added_bytes: int = field(default=0, init=False)

    @classmethod
    def default(cls) -> KernelCache:
        """The user's cache: $CASTIRON_CACHE/kernels, else ~/.cache/castiron/kernels."""
        chosen = os.environ.get("CASTIRON_CACHE")
        top = pathlib.Path(chosen) if chosen else pathlib.Path.home() / ".cache" / "castiron"
        return cls(top / "kernels")

    def get(self, key: str) -> elf_objects.KernelObject | None:
        """The kernel of that key, or None if absent, unreadable or damaged."""
        path = self._path(key)
        try:
            data = path.read_bytes()
        except OSError:
            return None
        packed = data[_DIGEST_BYTES:]
        if hashlib.sha256(key.encode() + packed).digest() != data[:_DIGEST_BYTES]:
            with contextlib.suppress(OSError):
                path.unlink()
            return None
        with contextlib.suppress(OSError):
            os.utime(path)
        return elf_objects.unpack(packed)

    def put(self, key: str, packed: bytes) -> elf_objects.KernelObject:
        """Keep a packed object under `key`, and return it unpacked.

        A full or read-only disk is no error.
        """
        digest = hashlib.sha256(key.encode() + packed).digest()
        with contextlib.suppress(OSError):
            self._write(self._path(key), digest + packed)
            self.added_bytes += len(packed)
        return elf_objects.unpack(packed)

    def trim(self) -> None:
        """Drop the least recently used kernels until the rest fit; looks only after a `put`."""
        if not self.added_bytes:
            return
        self.added_bytes = 0
        entries = sorted(self._entries(), reverse=True)
        total = 0
        for _, size, path in entries:
            total += size
            if total > self.limit_bytes:
                with contextlib.suppress(OSError):
                    path.unlink()

    def _entries(self) -> list[tuple[int, int, pathlib.Path]]:
        found = []
        for path in self.folder.glob("??/*"):
            with contextlib.suppress(OSError):
                status = path.stat()
                found.append((status.st_mtime_ns, status.st_size, path))
        return found

    def _path(self, key: str) -> pathlib.Path:
        return self.folder / key[:2] / key[2:]

    def _write(self, path: pathlib.Path, data: bytes) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            pathlib.Path(temporary).replace(path)
        except OSError:
            with contextlib.suppress(OSError):
                pathlib.Path(temporary).unlink()
            raise
