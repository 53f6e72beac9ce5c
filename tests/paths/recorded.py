"""Run a castiron command and write down which of some functions it called, in order.

``python -m tests.paths.recorded FILE NAMES COMMAND...``: NAMES are dotted, by comma, and stand
for a function, or for all functions of a class or module. Each call is one line in FILE.
"""

from __future__ import annotations

import inspect
import pathlib
import sys
import threading
from types import FrameType
from typing import Any

from castiron import cli

_PACKAGE = "castiron."


class Recorder:
    """A profile function that keeps the calls of the names asked for."""

    def __init__(self, path: pathlib.Path, names: list[str]) -> None:
        self._file = path.open("w", buffering=1)
        self._names = names
        self._known: dict[Any, str] = {}

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        """Called by Python for every call and return."""
        if event != "call":
            return
        code = frame.f_code
        if code not in self._known:
            module = str(frame.f_globals.get("__name__", ""))
            name = f"{module}.{code.co_qualname}".removeprefix(_PACKAGE)
            is_asked = any(f"{name}.".startswith(f"{asked}.") for asked in self._names)
            # Imports run bodies of modules and classes too, and what dataclasses make of text.
            is_function = bool(code.co_flags & inspect.CO_OPTIMIZED)
            is_function = is_function and code.co_filename != "<string>"
            is_ours = is_function and module.startswith(_PACKAGE)
            self._known[code] = name if is_asked and is_ours else ""
        if self._known[code]:
            self._file.write(self._known[code] + "\n")


def main(path: str, names: str, *words: str) -> int:
    """Run the command under the recorder; its exit code."""
    recorder = Recorder(pathlib.Path(path), names.split(","))
    threading.setprofile(recorder)
    sys.setprofile(recorder)
    try:
        return cli.main(words)
    finally:
        sys.setprofile(None)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
