"""Mapping: the copy for file systems that forbid executable mappings, and honest failures."""

from __future__ import annotations

import ctypes
import os
import pathlib
import platform
import struct

import pytest

from castiron.executable import mapping

RETURN_7 = {
    "x86_64": bytes.fromhex("b807000000c3"),
    "aarch64": struct.pack("<2I", 0x528000E0, 0xD65F03C0),
}
CODE = RETURN_7[platform.machine()]


def kind_at(address: int) -> str:
    for line in pathlib.Path("/proc/self/maps").read_text().splitlines():
        start, _, end = line.split()[0].partition("-")
        if int(start, 16) <= address < int(end, 16):
            return line.split()[1]
    return "nothing"


@pytest.fixture
def code_file(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "code"
    path.write_bytes(bytes(65536) + CODE + bytes(3_000_000))
    return path


def test_a_copy_of_code_runs_and_cannot_be_written(code_file: pathlib.Path) -> None:
    fd = os.open(code_file, os.O_RDONLY)
    size = len(CODE) + 3_000_000
    address = mapping.copy_code(fd, 65536, size)
    os.close(fd)
    assert kind_at(address) == "r-xp"
    assert ctypes.CFUNCTYPE(ctypes.c_int)(address)() == 7
    assert bytes(mapping.view(address, size)) == CODE + bytes(3_000_000)
    mapping.unmap(address, size)
    assert kind_at(address) == "nothing"


def test_a_file_system_without_exec_gets_the_copy(
    code_file: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = mapping.map_pages

    def forbid_exec(size: int, protection: int, flags: int, fd: int, offset: int) -> int:
        if fd >= 0 and protection & 4:
            raise PermissionError(1, "Operation not permitted")
        return real(size, protection, flags, fd, offset)

    monkeypatch.setattr(mapping, "map_pages", forbid_exec)
    fd = os.open(code_file, os.O_RDONLY)
    address = mapping.map_code(fd, 65536, len(CODE))
    os.close(fd)
    assert kind_at(address) == "r-xp"
    assert ctypes.CFUNCTYPE(ctypes.c_int)(address)() == 7
    mapping.unmap(address, len(CODE))


def test_a_file_that_ends_early_is_an_error_and_leaves_no_mapping(
    code_file: pathlib.Path,
) -> None:
    before = len(pathlib.Path("/proc/self/maps").read_text().splitlines())
    fd = os.open(code_file, os.O_RDONLY)
    with pytest.raises(OSError, match="ended 1000 bytes early"):
        mapping.copy_code(fd, 65536, len(CODE) + 3_001_000)
    os.close(fd)
    assert len(pathlib.Path("/proc/self/maps").read_text().splitlines()) <= before + 1


def test_mapping_nothing_or_too_much_is_an_error(code_file: pathlib.Path) -> None:
    fd = os.open(code_file, os.O_RDONLY)
    for offset, size in ((0, 0), (1, 10), (0, 1 << 60)):
        with pytest.raises(OSError, match="cannot map memory"):
            mapping.map_data(fd, offset, size)
    os.close(fd)
