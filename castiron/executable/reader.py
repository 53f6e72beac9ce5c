"""Opens an executable file: checks it, maps its code and weights, hands out its parts.

Imports next to nothing, since every served process passes here first. What the plan means is
the runtime's business. Every fault of a file is an ExecutableError; none can crash the process,
as long as the file is not cut short while it is mapped.
"""

from __future__ import annotations

import os
import struct

from castiron import errors
from castiron.executable import abi, container, cpu, mapping

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

_TYPE_MASK, _REGULAR = 0o170000, 0o100000
_REMEDY_ACCESS = "check the path and its permissions"


class ExecutableFile:
    """An open executable file: `header` and `plan` are checked, the rest on demand.

    Mapped addresses stay valid after `close`, until `unmap`: threads outside the interpreter
    may be running there.
    """

    __slots__ = ("_code", "_fd", "_head", "_weights", "header", "path", "plan")

    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self._fd = fd
        self._code = 0
        self._weights = 0
        status = os.fstat(fd)
        if status.st_mode & _TYPE_MASK != _REGULAR:
            raise container.fault(
                path, "file", "a regular file", f"mode {status.st_mode:#o}", _REMEDY_ACCESS
            )
        self._head = self._read(0, min(container.HEAD_BYTES, status.st_size), "header")
        self.header = container.unpack_head(self._head, status.st_size, path)
        self.plan = self._part("plan")

    @property
    def digest(self) -> str:
        """SHA-256 of the header, in hex; it covers the digest of every part."""
        return self._head[container.HEAD_BYTES - 32 : container.HEAD_BYTES].hex()

    def report(self) -> bytes:
        """The bytes of the build report, checked."""
        return self._part("report")

    def source(self) -> bytes:
        """The bytes that interpreted steps need, checked; empty if there are none."""
        return self._part("source")

    def symbols(self) -> dict[str, tuple[int, int]]:
        """Names of the functions in the image to their (offset, size in bytes)."""
        offset = self.header.parts["tables"].offset
        try:
            return container.symbols_of(self._head, self._part("tables"), offset)
        except (struct.error, IndexError, ValueError) as found:
            raise container.fault(
                self.path,
                "symbol table",
                "entries inside the part tables",
                str(found),
                "build the model again",
            ) from found

    def map_code(self) -> int:
        """The address of the image, executable and never writable; mapped at the first call.

        Before: ABI version, machine and CPU features are checked. After: the digest of the
        mapped bytes. Raises ExecutableError.
        """
        if not self._code:
            self._check_host()
            self._code = self._map_image()
        return self._code

    def map_weights(self) -> int:
        """The address of the weights, read-only and shared; 0 if there are none.

        Their digest is not checked here: it would take longer than all else. See `verify`.
        """
        part = self.header.parts["weights"]
        if not self._weights and part.size:
            try:
                self._weights = mapping.map_data(self._fd, part.offset, part.size)
            except OSError as found:
                raise self._unmappable("weights", found) from found
        return self._weights

    def verify(self) -> None:
        """Read the whole file and check every part. Raises ExecutableError."""
        for name in container.PARTS:
            if name != "weights":
                self._part(name)
        part = self.header.parts["weights"]
        was_mapped = bool(self._weights)
        address = self.map_weights()
        try:
            data = mapping.view(address, part.size) if address else b""
            container.check_digest(self.path, "part weights", part.digest, data)
        finally:
            if address and not was_mapped:
                self._weights = 0
                mapping.unmap(address, part.size)

    def unmap(self) -> None:
        """Give code and weights back. Nothing may run or read there any more."""
        for name, address in (("image", self._code), ("weights", self._weights)):
            if address:
                mapping.unmap(address, self.header.parts[name].size)
        self._code = self._weights = 0

    def close(self) -> None:
        """Close the file; what is mapped stays mapped. Further parts cannot be read."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _check_host(self) -> None:
        header = self.header
        if header.abi_version != abi.ABI_VERSION:
            raise container.fault(
                self.path,
                "header",
                f"ABI version {abi.ABI_VERSION}",
                f"version {header.abi_version}",
                "build the model again with this castiron",
            )
        if header.machine != cpu.machine():
            raise container.fault(
                self.path,
                "header",
                f"code for {cpu.machine()}, this machine",
                f"code for {header.machine} (target {header.target})",
                "build the model for this machine",
            )
        missing = sorted(set(header.flags) - cpu.flags()) if header.flags else []
        if missing:
            raise container.fault(
                self.path,
                "header",
                f"a processor with all that target {header.target} uses",
                f"one without {', '.join(missing)}",
                "build the model for a smaller target, or move to another machine",
            )

    def _map_image(self) -> int:
        part = self.header.parts["image"]
        try:
            address = mapping.map_code(self._fd, part.offset, part.size)
        except OSError as found:
            raise self._unmappable("image", found) from found
        try:
            data = mapping.view(address, part.size)
            container.check_digest(self.path, "part image", part.digest, data)
        except errors.ExecutableError:
            del data
            mapping.unmap(address, part.size)
            raise
        return address

    def _unmappable(self, name: str, found: OSError) -> errors.ExecutableError:
        size = self.header.parts[name].size
        return container.fault(
            self.path,
            f"part {name}",
            f"to map {size} bytes",
            str(found),
            "check memory limits, and policies on executable memory",
        )

    def _part(self, name: str) -> bytes:
        part = self.header.parts[name]
        data = self._read(part.offset, part.size, f"part {name}")
        container.check_digest(self.path, f"part {name}", part.digest, data)
        return data

    def _read(self, offset: int, size: int, where: str) -> bytes:
        try:
            data = os.pread(self._fd, size, offset)
            while data and len(data) < size:
                piece = os.pread(self._fd, size - len(data), offset + len(data))
                if not piece:
                    break
                data += piece
        except OSError as found:
            raise container.fault(
                self.path, where, f"to read {size} bytes", str(found), _REMEDY_ACCESS
            ) from found
        return data


def open(path: str | os.PathLike[str]) -> ExecutableFile:  # noqa: A001 - used as reader.open
    """Open and check the executable at `path`. Raises ExecutableError, and nothing else.

    The caller closes it; what was mapped from it outlives that.
    """
    name = os.fspath(path)
    try:
        # Non-blocking, or opening a pipe of that name would wait for ever.
        fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as found:
        raise container.fault(name, "file", "to open it", str(found), _REMEDY_ACCESS) from found
    try:
        return ExecutableFile(name, fd)
    except BaseException:
        os.close(fd)
        raise
