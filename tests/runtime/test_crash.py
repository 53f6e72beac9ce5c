"""The crash block: what one process writes, another reads, also after the writer's death."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from castiron import errors
from castiron.executable import abi
from castiron.runtime import crash

ROOT = Path(__file__).parents[2]
DIGEST = bytes(range(32))

DYING = """
import sys
from castiron.runtime import crash, lane
from tests.runtime import native

code = native.compile_code()
block = crash.CrashBlock.attach(int(sys.argv[1]))
block.claim("quiet/1", b"q" * 32)
slot = block.claim("ocr/7", bytes(range(32)), 4096)
steps = [native.Step(code[name], 1, 0) for name in ("nothing", "nothing", "crash")]
run = native.Run([], steps, crash=slot.step_address)
made = lane.Lane(code)
made.submit(run.address(), int)
made.drain(20.0)
"""


def test_the_reader_sees_what_the_writer_claims() -> None:
    block = crash.CrashBlock.create(2)
    writer = crash.CrashBlock.attach(block.fd)
    slot = writer.claim("ocr/1", DIGEST, 0x7000)
    (trace,) = block.traces()
    assert (trace.model, trace.digest, trace.image, trace.step) == ("ocr/1", DIGEST, 0x7000, None)
    assert block.process == os.getpid()
    slot.release()
    assert block.traces() == []


def test_a_full_block_refuses_and_a_released_slot_is_used_again() -> None:
    block = crash.CrashBlock.create(2)
    first = block.claim("a", DIGEST)
    block.claim("b", DIGEST)
    with pytest.raises(errors.ResourceError, match="found all 2 taken"):
        block.claim("c", DIGEST)
    first.release()
    block.claim("c", DIGEST)
    assert [trace.model for trace in block.traces()] == ["c", "b"]


@pytest.mark.parametrize("name", ["", "x" * 2000, "größe" * 200])
def test_names_are_cut_to_fit(name: str) -> None:
    block = crash.CrashBlock.create(2)
    block.claim(name, DIGEST)
    block.claim("after", DIGEST)
    first, second = block.traces()
    assert second.model == "after"
    cut = first.model.rstrip("\ufffd")
    assert name.startswith(cut)
    assert len(cut.encode()) >= min(len(name.encode()), abi.CRASH_MODEL_ROOM - 1)


@pytest.mark.parametrize("content", [b"", b"x" * 10, b"x" * 5000, b"CSCRASH1" + b"\xff" * 600])
def test_a_file_that_is_no_crash_block_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with path.open("r+b") as file, pytest.raises(errors.ResourceError, match="crash block"):
        crash.CrashBlock.attach(file.fileno())


def test_the_supervisor_names_the_model_and_step_that_killed_a_process() -> None:
    block = crash.CrashBlock.create()
    process = subprocess.run(
        [sys.executable, "-c", DYING, str(block.fd)], cwd=ROOT, pass_fds=[block.fd], check=False
    )
    assert process.returncode == -signal.SIGSEGV
    assert [trace.model for trace in block.traces()] == ["quiet/1", "ocr/7"]
    (suspect,) = block.suspects()
    assert (suspect.model, suspect.step, suspect.digest) == ("ocr/7", 2, DIGEST)
