"""One version of a model: where it stands between its file and answering requests.

States follow each other as building, loading, ready; failed can follow any. ``registry.py``
moves them; the server only reads.
"""

from __future__ import annotations

import os

from castiron.registry import supply
from castiron.registry.store import Found

BUILDING = "building"
LOADING = "loading"
READY = "ready"
FAILED = "failed"
CLOSED = "closed"


class Version:
    """A served version; ``instance`` is set exactly while it is ready."""

    __slots__ = ("_stamp", "found", "in_flight", "instance", "reason", "state")

    def __init__(self, found: Found) -> None:
        self.found = found
        self.state = LOADING
        self.reason = ""
        self.in_flight = 0
        self.instance: supply.Instance | None = None
        self._stamp = _stamp(found)
        if found.file is None:
            self.fail(found.problem)

    def __repr__(self) -> str:
        return f"{self.model}/{self.number}: {self.state}"

    @property
    def model(self) -> str:
        """The model's name."""
        return self.found.model

    @property
    def number(self) -> int:
        """The version's number; higher is newer."""
        return self.found.number

    @property
    def digest(self) -> str:
        """``sha256:`` and the digest of the executable that answers; empty while none does."""
        return "" if self.instance is None else f"sha256:{self.instance.digest}"

    @property
    def is_settled(self) -> bool:
        """Whether nothing more happens to it by itself."""
        return self.state not in {BUILDING, LOADING}

    @property
    def is_ready(self) -> bool:
        """Whether a request would be answered now; a dead process of its own makes it false."""
        return self.state == READY and getattr(self.instance, "is_alive", True)

    def is_current(self, found: Found) -> bool:
        """Whether what was found is still the file that this version was made of."""
        return found.file == self.found.file and _stamp(found) == self._stamp

    def admit(self, instance: supply.Instance) -> None:
        """It is ready."""
        self.instance = instance
        self.state = READY
        self.reason = ""

    def fail(self, reason: str) -> None:
        """It cannot be served; the reason is shown to operators."""
        self._give_back()
        self.state = FAILED
        self.reason = reason

    def close(self) -> None:
        """Give the instance back."""
        self._give_back()
        self.state = CLOSED

    def _give_back(self) -> None:
        instance, self.instance = self.instance, None
        if instance is not None:
            instance.close()


def _stamp(found: Found) -> tuple[int, int, int] | None:
    """What changes when a file is written or replaced; None when it is not there."""
    if found.file is None:
        return None
    try:
        held = os.stat(found.file)
    except OSError:
        return None
    return held.st_ino, held.st_size, held.st_mtime_ns
