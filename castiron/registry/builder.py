"""From a model.onnx to an executable in the cache, built by a process of its own.

The key is the content of every file of the version's folder and whatever else decides the bytes,
so an executable is never stale and needs no lock: two builders write the same bytes and the last
rename wins. What the compiler is, nothing here knows.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import signal
from collections import deque
from pathlib import Path

from castiron import errors
from castiron.registry import supply

log = logging.getLogger("castiron.registry")

_PIECE_BYTES = 1 << 20
_SHOWN_LINES = 12


async def content_key(source: Path, extra: str) -> str:
    """SHA-256 over the names and bytes of all files beside ``source``, and ``extra``.

    External data lies beside the model. Reads in pieces and lets the loop run between them.
    """
    digest = hashlib.sha256(extra.encode())
    for path in sorted(path for path in source.parent.rglob("*") if path.is_file()):
        name = str(path.relative_to(source.parent))
        digest.update(f"\0{name}\0{path.stat().st_size}\0".encode("utf-8", "surrogateescape"))
        with path.open("rb") as file:
            while piece := file.read(_PIECE_BYTES):
                digest.update(piece)
                await asyncio.sleep(0)
    return digest.hexdigest()


async def build(
    name: str, source: Path, supplied: supply.Supply, settings: supply.Settings
) -> Path:
    """The executable of ``source``: from the cache, or built now. BuildError says why not."""
    key = await content_key(source, supplied.build_key)
    out = settings.cache_dir / f"{key}.cast"
    if out.is_file():
        log.info("%s: built before, %s", name, out.name)
        return out
    settings.cache_dir.mkdir(parents=True, exist_ok=True)
    log.info("%s: building %s", name, source)
    command = supplied.build_command(source, out)
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(settings.build_timeout_s):
            last_lines = await _follow(name, process)
    except TimeoutError:
        raise errors.BuildError(
            f"{source}: the build took longer than {settings.build_timeout_s:g} s and was ended"
        ) from None
    finally:
        await _end(process)
    if process.returncode != 0 or not out.is_file():
        shown = "\n".join(last_lines)
        raise errors.BuildError(
            f"{source}: the build ended with status {process.returncode}: {shown}"
        )
    return out


async def _follow(name: str, process: asyncio.subprocess.Process) -> list[str]:
    """Pass the build's lines on to the log until it ends; return the last ones."""
    last: deque[str] = deque(maxlen=_SHOWN_LINES)
    assert process.stdout is not None
    rest = b""
    while piece := await process.stdout.read(65536):
        # A progress bar repaints its line after a carriage return.
        *lines, rest = (rest + piece).replace(b"\r", b"\n").split(b"\n")
        for line in [*lines, rest] if len(rest) > 65536 else lines:
            text = line.decode(errors="replace").strip()
            if text:
                last.append(text)
                log.info("%s: %s", name, text)
    if rest.strip():
        last.append(rest.decode(errors="replace").strip())
    await process.wait()
    return list(last)


async def _end(process: asyncio.subprocess.Process) -> None:
    """End the build and the processes it started, if it still runs."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
