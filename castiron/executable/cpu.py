"""What this machine's processor can do, for the check before foreign code is mapped."""

from __future__ import annotations

import os

_CHUNK_BYTES = 8192
_LIMIT_BYTES = 1 << 16


def machine() -> str:
    """The word for this machine's instruction set, as in `uname -m`."""
    return os.uname().machine


def flags(path: str = "/proc/cpuinfo") -> frozenset[str]:
    """The feature words of the first processor listed in `path`; empty if it lists none.

    Reads no further than the first processor: the whole text takes long with many of them.
    """
    text = b"\n"
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while len(text) < _LIMIT_BYTES:
            piece = os.read(handle, _CHUNK_BYTES)
            text += piece
            found = _flags_in(text)
            if found is not None or not piece:
                return found or frozenset()
    finally:
        os.close(handle)
    return frozenset()


def _flags_in(text: bytes) -> frozenset[str] | None:
    """The words of the first whole line of flags, or None if there is none yet."""
    for key in (b"\nflags", b"\nFeatures"):
        start = text.find(key)
        end = text.find(b"\n", start + 1)
        if start >= 0 and end >= 0:
            return frozenset(text[start:end].partition(b":")[2].decode("ascii", "replace").split())
    return None
