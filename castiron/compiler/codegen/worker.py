"""A process that compiles kernels, and the pipe to it.

Plain subprocesses, not multiprocessing: that would run the user's own script again in every
worker. One request at a time per worker: target and text as a line of JSON, answered by one
length-prefixed reply. What compiling means is assemble's business.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import signal
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import BinaryIO, Self

from castiron import errors
from castiron.compiler import target as targets

Compile = Callable[[str, targets.Target], bytes]

_BOOT = (
    "import sys; sys.path[:] = sys.argv[1:]; "
    "from castiron.compiler.codegen import assemble; assemble.serve_parent()"
)
_REPLY = struct.Struct("<?Q")
_PATIENCE_S = 5


class Worker:
    """One compiling process, from `__enter__` to `__exit__`; used by one thread at a time."""

    def __init__(self) -> None:
        self._death = ""
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115 - closed in __exit__
        self._process = subprocess.Popen(
            [sys.executable, "-c", _BOOT, *sys.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
        )

    def compile(self, text: str, target: targets.Target, name: str) -> bytes:
        """The reply for one kernel. `name` is for messages.

        Raises the BuildError of the worker, or one that tells how the worker died.
        """
        if self._death:
            raise errors.BuildError(self._death)
        request = json.dumps([dataclasses.asdict(target), text]).encode() + b"\n"
        reply = b""
        with contextlib.suppress(BrokenPipeError):
            self._to.write(request)
            self._to.flush()
            reply = self._from.read(_REPLY.size)
        if len(reply) == _REPLY.size:
            is_code, size = _REPLY.unpack(reply)
            content = self._from.read(size)
            if len(content) == size:
                if is_code:
                    return content
                raise errors.BuildError(content.decode())
        # Kept, so that kernels sent later blame the one that did it.
        self._death = self._obituary(target, name)
        raise errors.BuildError(self._death)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._to.close()
        try:
            self._process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._from.close()
        self._complaints.close()

    @property
    def _to(self) -> BinaryIO:
        assert self._process.stdin is not None
        return self._process.stdin  # type: ignore[return-value]

    @property
    def _from(self) -> BinaryIO:
        assert self._process.stdout is not None
        return self._process.stdout  # type: ignore[return-value]

    def _obituary(self, target: targets.Target, name: str) -> str:
        code = self._process.wait()
        cause = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        self._complaints.seek(0)
        last = self._complaints.read()[-2000:].decode(errors="replace").strip()
        return (
            f"kernel {name}: expected machine code for {target.name}; found its compiling process "
            f"dead ({cause}): {last or 'no message'}. This is a fault of the kernel's generator, "
            "or of this installation if every kernel fails."
        )


def serve(compile_packed: Compile, requests: BinaryIO, replies: BinaryIO) -> None:
    """Answer requests with `compile_packed` until the parent closes the pipe."""
    for line in requests:
        fields, text = json.loads(line)
        fields["required_flags"] = tuple(fields["required_flags"])
        try:
            reply = True, compile_packed(text, targets.Target(**fields))
        except errors.BuildError as fault:
            reply = False, str(fault).encode()
        replies.write(_REPLY.pack(reply[0], len(reply[1])) + reply[1])
        replies.flush()
