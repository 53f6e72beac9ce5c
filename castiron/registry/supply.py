"""What ``api`` hands to serving, so that this half imports no loader and no compiler.

Only types and records: what an Instance offers, the functions that open, build and start things,
and the settings of the registry. ``store.py`` finds models, ``registry.py`` uses all of this.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from castiron.tensor import signature

if TYPE_CHECKING:
    import numpy as np

    from castiron.runtime.bound import BoundRun

    Arrays = Mapping[str, np.ndarray]
    OnDone = Callable[["Arrays | None", "Exception | None"], None]


class Instance(Protocol):
    """An executable ready to run: ``runtime.instance.Instance``, or one in another process."""

    @property
    def signature(self) -> signature.Signature:
        """Names, dtypes and dims of inputs and outputs."""

    @property
    def metadata(self) -> Mapping[str, str]:
        """What the model says about itself."""

    @property
    def digest(self) -> str:
        """SHA-256 of the executable, in hex."""

    @property
    def is_native(self) -> bool:
        """False when it holds interpreted steps, which must not run beside the event loop."""

    def run(self, inputs: Arrays) -> Arrays:
        """Run now, on the caller's thread; only for native ones. Raises InputError."""

    def start(self, inputs: Arrays, lane: Any, on_done: OnDone) -> Callable[[], None] | None:
        """Prepare a run now (may raise InputError), then call ``on_done`` on the loop.

        What is returned, if anything, stops the run; it must not be called after ``on_done``.
        """

    def bind(self, shapes: Mapping[str, tuple[int, ...]]) -> BoundRun | None:
        """A run with memory of its own for inputs of these shapes, for one thread at a time.

        None where there can be none, so for every model in another process. Raises InputError.
        """

    def close(self) -> None:
        """Give everything back."""


@dataclass(frozen=True, slots=True)
class Supply:
    """The functions that ``api`` hands in."""

    open_instance: Callable[[Path], Instance]
    """Map the executable at this path."""

    build_command: Callable[[Path, Path], list[str]]
    """The command (source, out) that builds an executable in a process of its own."""

    interpret_command: Callable[[Path], list[str]]
    """The command that runs an executable with interpreted steps in a process of its own."""

    open_lane: Callable[[asyncio.AbstractEventLoop], Any]
    """The native lane on this loop; called once, when the first native instance is open."""

    judge_command: Callable[[Path, Path, Path | None], list[str]] | None = None
    """The command (executable, source, executable of the version before) that tries a candidate in
    a process of its own, and ends with 0 when it may answer; None: candidates are not tried."""

    build_key: str = ""
    """All that decides a build's bytes besides the source: castiron's version, the target."""

    memory: Callable[[], Mapping[str, float]] = dict
    """Sizes of the device's pool by name, in bytes; names become metrics."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How models are found and made ready."""

    cache_dir: Path
    """Where executables built from ONNX files are kept, named by content."""

    build_timeout_s: float = 3600.0
    """A build that takes longer is ended, and its version has failed."""

    judge_timeout_s: float = 600.0
    """A candidate that is not judged by then is not admitted."""

    memory_budget_bytes: int = 0
    """The most that weights, code and arenas of all versions may hold; 0: there is no limit."""

    start_timeout_s: float = 120.0
    """How long a process for interpreted steps may take until it answers."""

    run_timeout_s: float = 300.0
    """How long one run of interpreted steps may take before its process is replaced."""
