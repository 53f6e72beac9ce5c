"""Writing executables: deterministic, whole or not at all, and readable by the usual tools."""

from __future__ import annotations

import os
import pathlib
import platform
import shutil
import subprocess

import pytest

from castiron import errors
from castiron.executable import reader, writer

IMAGE = (bytes.fromhex("b82a000000c3") + b"\xcc" * 58) * 2 + b"constants"


def contents_with(**changes: object) -> writer.Contents:
    parts: dict[str, object] = {
        "target": "baseline",
        "machine": "x86_64",
        "flags": ("sse2",),
        "image": IMAGE,
        "text_bytes": 128,
        "symbols": {"gemm_f32_6x16": (0, 6), "relu_f32": (64, 6)},
        "plan": b"plan",
        "report": b"{}",
        "source": b"",
        "weights": [b"w" * 70_000],
    }
    return writer.Contents(**{**parts, **changes})  # type: ignore[arg-type]


def test_the_same_contents_give_the_same_bytes(tmp_path: pathlib.Path) -> None:
    writer.write(tmp_path / "a.cast", contents_with())
    writer.write(tmp_path / "b.cast", contents_with(weights=[b"w" * 30_000, b"w" * 40_000]))
    assert (tmp_path / "a.cast").read_bytes() == (tmp_path / "b.cast").read_bytes()


def test_the_file_is_read_only_and_alone_in_its_folder(tmp_path: pathlib.Path) -> None:
    writer.write(tmp_path / "a.cast", contents_with())
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.cast"]
    assert (tmp_path / "a.cast").stat().st_mode & 0o777 == 0o444


def test_replacing_a_file_leaves_its_mapped_bytes_alone(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "a.cast"
    writer.write(path, contents_with())
    with reader.open(path) as file:
        writer.write(path, contents_with(report=b'{"new": 1}', plan=b"other"))
        assert file.plan == b"plan"
        assert file.report() == b"{}"
        file.verify()
    with reader.open(path) as file:
        assert file.plan == b"other"


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.cast"
    writer.write(path, contents_with())
    before = path.read_bytes()

    def fail(_handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        writer.write(path, contents_with(plan=b"other"))
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.cast"]


def test_flags_that_do_not_fit_the_header_are_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(errors.BuildError, match="flags up to 256"):
        writer.write(tmp_path / "a.cast", contents_with(flags=("avx512",) * 40))
    assert list(tmp_path.iterdir()) == []


def output_of(*command: str) -> str:
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed; it is the judge of this test")
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == ""
    return done.stdout


@pytest.fixture
def path(tmp_path: pathlib.Path) -> str:
    place = tmp_path / "model.cast"
    writer.write(place, contents_with())
    return str(place)


def test_readelf_sees_every_section_and_finds_nothing_wrong(path: str) -> None:
    output = output_of("readelf", "-W", "-a", path)
    for name in (".text", ".rodata", ".castiron.header", ".castiron.plan", ".castiron.weights"):
        assert name in output
    assert "DYN" in output
    lines = [line.split() for line in output.splitlines()]
    assert ["LOAD", "0x010000"] in [words[:2] for words in lines]
    functions = [words[-1] for words in lines if "FUNC" in words]
    assert functions == ["gemm_f32_6x16", "relu_f32"]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="objdump reads its own machine's code")
def test_objdump_disassembles_the_kernels_by_name(path: str) -> None:
    output = output_of("objdump", "-d", path)
    assert "<gemm_f32_6x16>:" in output
    assert "mov    $0x2a,%eax" in output
    assert "constants" not in output


def test_gdb_knows_the_kernels(path: str) -> None:
    output = output_of("gdb", "-nx", "-batch", "-ex", "info address relu_f32", path)
    assert 'Symbol "relu_f32" is at 0x10040' in output
