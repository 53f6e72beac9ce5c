"""A piece of memory that two processes share, and how tensors lie in it.

A region starts with a description of its tensors (JSON: names, dtypes, shapes, places) and goes
on with their bytes, each 64-byte aligned. It grows and never shrinks. Which side writes when is
agreed in ``interpreted.py``; there is no lock here.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from castiron.tensor import dtype as dtypes
from castiron.tensor import elements

if TYPE_CHECKING:
    import numpy as np

_ALIGN_BYTES = 64
_SMALLEST_BYTES = 1 << 16


class Region:
    """Shared memory behind the file descriptor of a memfd, mapped as far as it is needed."""

    __slots__ = ("_map", "fd")

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._map: mmap.mmap | None = None

    @classmethod
    def create(cls, name: str) -> Region:
        """A new, empty region; the name is shown in /proc."""
        return cls(os.memfd_create(name, os.MFD_CLOEXEC))

    def close(self) -> None:
        """Let go of the memory; arrays taken from it keep their pages."""
        self._map = None
        os.close(self.fd)

    def write(self, tensors: Mapping[str, np.ndarray], names: Mapping[str, str]) -> int:
        """Put the tensors in, each of the dtype that ``names`` tells; return the bytes used."""
        packed = [(name, names[name], value.shape, _packed(value, names[name]))
                  for name, value in tensors.items()]  # fmt: skip
        described: list[Any] = []
        offset = 0
        for name, dtype_name, shape, data in packed:
            described.append([name, dtype_name, shape, offset, data.nbytes])
            offset = _aligned(offset + data.nbytes)
        head = json.dumps(described).encode()
        start = _aligned(8 + len(head))
        area = self._mapped(start + offset)
        area[:8] = len(head).to_bytes(8, "little")
        area[8 : 8 + len(head)] = head
        for (*_, place, size), (*_, data) in zip(described, packed, strict=True):
            area[start + place : start + place + size] = data
        return start + offset

    def read(self, used_bytes: int) -> dict[str, np.ndarray]:
        """The tensors that ``write`` put in on the other side, as views of the region."""
        area = memoryview(self._mapped(used_bytes))
        end = 8 + int.from_bytes(area[:8], "little")
        start = _aligned(end)
        return {
            name: _unpacked(area[start + offset : start + offset + size], dtype_name, tuple(shape))
            for name, dtype_name, shape, offset, size in json.loads(bytes(area[8:end]))
        }

    def _mapped(self, size_bytes: int) -> mmap.mmap:
        if self._map is None or len(self._map) < size_bytes:
            length = _SMALLEST_BYTES
            while length < size_bytes:
                length *= 2
            if os.fstat(self.fd).st_size < length:
                os.ftruncate(self.fd, length)
            # The old map stays as long as arrays look into it.
            self._map = mmap.mmap(self.fd, length)
        return self._map


def _packed(value: np.ndarray, dtype_name: str) -> memoryview:
    import numpy as np

    if dtype_name == "string":
        return memoryview(elements.pack_strings(value))
    return np.ascontiguousarray(value).reshape(-1).view(np.uint8).data


def _unpacked(data: memoryview, dtype_name: str, shape: tuple[int, ...]) -> np.ndarray:
    import numpy as np

    if dtype_name == "string":
        return elements.unpack_strings(data, shape)
    return np.frombuffer(data, elements.numpy_dtype(dtypes.named(dtype_name))).reshape(shape)


def _aligned(offset: int) -> int:
    return -(-offset // _ALIGN_BYTES) * _ALIGN_BYTES
