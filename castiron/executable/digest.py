"""SHA-256 of a buffer, chosen so that loading a small executable never loads OpenSSL.

Importing hashlib costs over 2 ms, more than opening and mapping a file; the interpreter's own
SHA-256 is there at once but several times slower per byte. Both give the same digest.
"""

from __future__ import annotations

import sys

DIGEST_BYTES = 32

# Above this, OpenSSL's speed repays its import.
_SMALL_BYTES = 3 << 18

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def sha256(data: bytes | memoryview) -> bytes:
    """The 32-byte SHA-256 of `data`."""
    if len(data) <= _SMALL_BYTES and "hashlib" not in sys.modules:
        own = _own_sha256()
        if own is not None:
            return bytes(own(data).digest())
    import hashlib

    return hashlib.sha256(data).digest()


def _own_sha256() -> Callable[..., Any] | None:
    """The constructor of the interpreter's own SHA-256, under its name in this version."""
    for name in ("_sha2", "_sha256"):
        try:
            found: Callable[..., Any] = __import__(name).sha256
        except ImportError:
            continue
        return found
    return None
