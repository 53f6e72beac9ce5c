"""Is a candidate fit to answer? A process of its own finds out, so that a bad one leaves nothing.

The process maps the file, checks every digest, compares it with its contract and with the version
before it, and runs the golden cases, on one thread at the lowest priority; a kernel that traps
ends that process and no other. A good verdict is remembered by content, so that workers that
start later need not judge again.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import signal
from pathlib import Path

from castiron import errors
from castiron.registry import store, supply

log = logging.getLogger("castiron.registry")

_NICE = 19
_SUFFIX = ".judged"
_SHOWN_BYTES = 4000
_KEPT_VERDICTS = 4096


async def judge(
    found: store.Found,
    path: Path,
    previous: Path | None,
    supplied: supply.Supply,
    settings: supply.Settings,
) -> None:
    """Raise AdmissionError when the executable at ``path`` must not answer for ``found``."""
    if supplied.judge_command is None:
        return
    assert found.file is not None
    key = _key(found.file, path, previous)
    verdict = settings.cache_dir / "verdicts" / f"{key}{_SUFFIX}"
    if key and verdict.exists():
        return
    name = f"{found.model}/{found.number}"
    await _ask(supplied.judge_command(path, found.file, previous), name, settings.judge_timeout_s)
    if key and key == _key(found.file, path, previous):
        _remember(verdict)


async def _ask(command: list[str], name: str, timeout_s: float) -> None:
    process = await asyncio.create_subprocess_exec(
        "nice", "-n", str(_NICE), *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )  # fmt: skip
    try:
        async with asyncio.timeout(timeout_s):
            _, said = await process.communicate()
    except TimeoutError:
        raise errors.AdmissionError(
            f"{name}: judging it took longer than {timeout_s:g} s; it is not admitted"
        ) from None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    status = process.returncode
    assert status is not None
    if status == 0:
        return
    text = said[-_SHOWN_BYTES:].decode(errors="replace").strip()
    if status < 0:
        how = signal.Signals(-status).name
        raise errors.AdmissionError(
            f"{name}: it ended the process that tried it with {how}; {text}"
        )
    raise errors.AdmissionError(f"{name} is not admitted: {text}")


def _key(source: Path, path: Path, previous: Path | None) -> str:
    """What a verdict depends on: the files as they lie there now; empty when one is gone."""
    digest = hashlib.sha256()
    beside = sorted(each for each in source.parent.iterdir() if each.is_file())
    for each in [*beside, path, *([previous] if previous else [])]:
        try:
            held = each.stat()
        except OSError:
            return ""
        stamp = (held.st_ino, held.st_size, held.st_mtime_ns, held.st_ctime_ns)
        digest.update(f"{each.resolve()}\0{stamp}\0".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def _remember(verdict: Path) -> None:
    """Keep it, and not too many; that it cannot be kept only costs time."""
    with contextlib.suppress(OSError):
        verdict.parent.mkdir(parents=True, exist_ok=True)
        verdict.touch()
        held = sorted(verdict.parent.iterdir(), key=lambda each: each.stat().st_mtime_ns)
        for old in held[:-_KEPT_VERDICTS]:
            old.unlink(missing_ok=True)
