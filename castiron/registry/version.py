"""One version of a model: where it stands between its file and answering requests.

States follow each other as building, loading, staged, ready; failed can follow any. A ready one
that another replaced may rest, and comes back at once. ``registry.py`` moves them; the server
only reads.
"""

from __future__ import annotations

import os

from castiron.contract import document
from castiron.registry import supply
from castiron.registry.store import Found

BUILDING = "building"
LOADING = "loading"
STAGED = "staged"
RESTING = "resting"
READY = "ready"
FAILED = "failed"
CLOSED = "closed"


class Version:
    """A served version; ``instance`` is set exactly while it is staged, ready or resting."""

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
        """Whether what was found, and the contract beside it, are still what it was made of."""
        return found.file == self.found.file and _stamp(found) == self._stamp

    def stage(self, instance: supply.Instance) -> None:
        """It could answer, and waits for the switch."""
        self.instance = instance
        self.state = STAGED
        self.reason = ""

    def admit(self) -> None:
        """From its place in waiting or at rest, it answers from now on."""
        assert self.instance is not None
        self.state = READY
        self.reason = ""

    def rest(self) -> None:
        """It answers no more and stays mapped."""
        assert self.state == READY
        self.state = RESTING
        self.reason = "kept for a return"

    def fail(self, reason: str) -> None:
        """It cannot be served; the reason is shown to operators."""
        self._give_back()
        self.state = FAILED
        self.reason = reason

    def close(self) -> None:
        """Give the instance back."""
        self._give_back()
        self.state = CLOSED

    def unmap(self) -> None:
        """As ``close``, and its memory too: nothing of it may run any more."""
        instance = self.instance
        self.close()
        unmap = getattr(instance, "unmap", None)
        if unmap is not None:
            unmap()

    @property
    def held_bytes(self) -> int:
        """The measured size of what it holds in memory."""
        return int(getattr(self.instance, "held_bytes", 0))

    def _give_back(self) -> None:
        instance, self.instance = self.instance, None
        if instance is not None:
            instance.close()


def _stamp(found: Found) -> tuple[tuple[int, int, int], ...] | None:
    """What changes when the file or its contract is written or replaced; None without a file."""
    if found.file is None:
        return None
    try:
        contract = document.beside(found.file)
        held = [os.stat(path) for path in (found.file, contract) if path is not None]
    except OSError:
        return None
    return tuple((each.st_ino, each.st_size, each.st_mtime_ns) for each in held)
