"""Reading executables: what is whole maps and runs, what is not is refused and never crashes."""

from __future__ import annotations

import os
import pathlib
import platform
import random
import shutil
import struct
import subprocess
import sys
import textwrap

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from castiron import errors
from castiron.executable import abi, container, cpu, digest, reader, writer

ROOT = pathlib.Path(__file__).parents[2]

# Functions that return 42, as machine code: no compiler is needed to test the file.
RETURN_42 = {
    "x86_64": bytes.fromhex("b82a000000c3"),
    "aarch64": struct.pack("<2I", 0x52800540, 0xD65F03C0),
}
CODE = RETURN_42[platform.machine()]
IMAGE = CODE.ljust(64, b"\xcc") + CODE + b"constants"
SYMBOLS = {"answer": (0, len(CODE)), "again": (64, len(CODE))}


def contents_with(**changes: object) -> writer.Contents:
    parts: dict[str, object] = {
        "target": "test",
        "machine": platform.machine(),
        "flags": tuple(sorted(cpu.flags()))[:3],
        "image": IMAGE,
        "text_bytes": 64 + len(CODE),
        "symbols": SYMBOLS,
        "plan": b"the plan" * 50,
        "report": b'{"kernels": 2}',
        "source": b"interpreted",
        "weights": [bytes(range(256)) * 8, memoryview(b"tail" * 5)],
    }
    return writer.Contents(**{**parts, **changes})  # type: ignore[arg-type]


@pytest.fixture
def path(tmp_path: pathlib.Path) -> pathlib.Path:
    place = tmp_path / "model.cast"
    writer.write(place, contents_with())
    return place


def refusal_of(path: pathlib.Path) -> str:
    """What opening, mapping and verifying says of a file that is not right."""
    with pytest.raises(errors.ExecutableError) as caught:
        check_fully(path)
    return str(caught.value)


def check_fully(path: pathlib.Path) -> None:
    with reader.open(path) as file:
        try:
            file.map_code()
            file.verify()
            file.symbols()
        finally:
            file.unmap()


def changed(path: pathlib.Path, offset: int, data: bytes) -> pathlib.Path:
    content = bytearray(path.read_bytes())
    content[offset : offset + len(data)] = data
    other = path.with_name("changed.cast")
    other.write_bytes(content)
    return other


def test_every_part_is_read_back(path: pathlib.Path) -> None:
    with reader.open(str(path)) as file:
        assert file.plan == b"the plan" * 50
        assert file.report() == b'{"kernels": 2}'
        assert file.source() == b"interpreted"
        assert file.symbols() == SYMBOLS
        assert file.header.target == "test"
        assert file.header.abi_version == abi.ABI_VERSION
        file.verify()


def test_mapped_weights_are_the_bytes_written(path: pathlib.Path) -> None:
    import ctypes

    file = reader.open(path)
    address = file.map_weights()
    assert address % 4096 == 0
    assert ctypes.string_at(address, 2068) == bytes(range(256)) * 8 + b"tail" * 5
    assert file.map_weights() == address
    file.unmap()
    file.close()


def test_code_runs_where_it_is_mapped_and_after_the_file_is_closed(path: pathlib.Path) -> None:
    import ctypes

    with reader.open(path) as file:
        base = file.map_code()
        symbols = file.symbols()
    for offset, _ in symbols.values():
        assert ctypes.CFUNCTYPE(ctypes.c_int)(base + offset)() == 42
    file.unmap()


def test_a_file_without_weights_maps_and_verifies(tmp_path: pathlib.Path) -> None:
    place = tmp_path / "small.cast"
    for size in (0, 64, 65536 - 64 - 704, 65536):
        writer.write(place, contents_with(weights=(), report=b"", source=b"s" * size))
        with reader.open(place) as file:
            assert file.map_weights() == 0
            assert file.source() == b"s" * size
            file.verify()


LOAD_ALONE = """
    import importlib.abc, sys

    class Refuse(importlib.abc.MetaPathFinder):
        def find_spec(self, name, path, target=None):
            words = ("llvmlite", "onnx", "numpy", "json", "re", "dataclasses", "enum", "typing")
            if name.partition(".")[0] in words:
                raise AssertionError("the load path imported " + name)

    sys.meta_path.insert(0, Refuse())
    for name in ("json", "re", "dataclasses", "enum", "typing"):
        sys.modules.pop(name, None)
    sys.path.insert(0, {root!r})
    from castiron.executable import reader
    file = reader.open({path!r})
    file.map_code(), file.map_weights()
    lines = [line for line in open("/proc/self/maps") if line.rstrip().endswith({path!r})]
    print([line.split()[1] for line in lines])
    print(any(line.split()[1].startswith("rwx") for line in open("/proc/self/maps")))
    print("hashlib" in sys.modules)
"""


def run_python(text: str) -> str:
    command = [sys.executable, "-I", "-S", "-c", textwrap.dedent(text)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_loading_imports_next_to_nothing_and_maps_no_writable_code(path: pathlib.Path) -> None:
    output = run_python(LOAD_ALONE.format(root=str(ROOT), path=str(path)))
    kinds, writable, has_openssl = output.splitlines()
    assert sorted(eval(kinds)) == ["r--p", "r-xp"]  # noqa: S307 - our own output
    assert writable == "False"
    assert has_openssl == "False"


def test_a_store_into_mapped_code_is_a_segmentation_fault(path: pathlib.Path) -> None:
    text = f"""
        import ctypes, sys
        sys.path.insert(0, {str(ROOT)!r})
        from castiron.executable import reader
        base = reader.open({str(path)!r}).map_code()
        ctypes.memset(base, 0, 1)
    """
    command = [sys.executable, "-I", "-S", "-c", textwrap.dedent(text)]
    done = subprocess.run(command, capture_output=True, timeout=60, check=False)
    assert done.returncode == -11


def test_a_change_in_any_part_is_named(path: pathlib.Path) -> None:
    with reader.open(path) as file:
        parts = {name: part.offset for name, part in file.header.parts.items()}
    content = path.read_bytes()
    for name, offset in parts.items():
        other = changed(path, offset, bytes([content[offset] ^ 0x10]))
        message = refusal_of(other)
        assert f"changed.cast: part {name}: expected sha256" in message
        assert "found sha256" in message
        assert "What to do: " in message


def test_changed_weights_still_map_since_only_verify_reads_them(path: pathlib.Path) -> None:
    with reader.open(path) as file:
        offset = file.header.parts["weights"].offset
    file = reader.open(changed(path, offset, b"\xff"))
    assert file.map_weights()
    with pytest.raises(errors.ExecutableError, match="part weights: expected sha256"):
        file.verify()
    file.unmap()
    file.close()


def resigned(path: pathlib.Path, change: struct.Struct, offset: int, value: object) -> pathlib.Path:
    """The file with one header field set and the header's digest made right again."""
    head = bytearray(path.read_bytes()[: container.HEAD_BYTES])
    change.pack_into(head, container.HEADER_OFFSET + offset, value)
    head[-digest.DIGEST_BYTES :] = digest.sha256(bytes(head[: -digest.DIGEST_BYTES]))
    return changed(path, 0, bytes(head))


WORD = struct.Struct("<I")


def test_another_format_version_is_refused(path: pathlib.Path) -> None:
    message = refusal_of(resigned(path, WORD, 8, 7))
    assert "header: expected format version 1; found version 7" in message


def test_another_abi_version_is_refused(path: pathlib.Path) -> None:
    message = refusal_of(resigned(path, WORD, 12, 99))
    assert f"expected ABI version {abi.ABI_VERSION}; found version 99" in message


def test_code_for_another_machine_is_refused_but_can_be_inspected(path: pathlib.Path) -> None:
    foreign = "aarch64" if platform.machine() == "x86_64" else "x86_64"
    writer.write(path, contents_with(machine=foreign))
    with reader.open(path) as file:
        assert file.report() == b'{"kernels": 2}'
        with pytest.raises(errors.ExecutableError, match=f"found code for {foreign}"):
            file.map_code()


def test_a_missing_cpu_feature_is_named_before_code_is_mapped(path: pathlib.Path) -> None:
    writer.write(path, contents_with(flags=(*sorted(cpu.flags())[:2], "avx4096")))
    file = reader.open(path)
    with file, pytest.raises(errors.ExecutableError, match="found one without avx4096"):
        file.map_code()
    assert str(path) not in pathlib.Path("/proc/self/maps").read_text()


def test_an_elf_file_of_another_program_is_refused() -> None:
    message = refusal_of(pathlib.Path(shutil.which("true") or "/bin/true"))
    assert "b'CASTIRON' at byte 256" in message


@pytest.mark.parametrize("size", [0, 1, 255, 256, 300, 887, 888, 65535, 65536, 66000, -1])
def test_a_file_cut_short_is_refused(path: pathlib.Path, size: int) -> None:
    other = path.with_name("short.cast")
    other.write_bytes(path.read_bytes()[:size])
    assert "short.cast: " in refusal_of(other)


def test_what_is_not_a_file_is_refused(tmp_path: pathlib.Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert "expected a regular file" in refusal_of(pipe)
    assert "expected a regular file" in refusal_of(tmp_path)
    assert "No such file" in refusal_of(tmp_path / "absent")
    with pytest.raises(errors.ExecutableError, match="embedded null byte"):
        reader.open("a\0b")


def use_fully(path: pathlib.Path) -> bool:
    """True if the file opens, maps and verifies; False if it is refused; else it raises."""
    try:
        check_fully(path)
    except errors.ExecutableError:
        return False
    return True


# In a process of its own: reading a missing page would kill the process, not raise.
DAMAGE = """
    import pathlib, random, sys
    sys.path[:0] = [{root!r}, {tests!r}]
    from castiron.executable import reader
    from test_reader import damage, use_fully
    path = pathlib.Path({path!r})
    content = path.read_bytes()
    with reader.open(path) as file:
        parts = [(part.offset, part.size) for part in file.header.parts.values()]
    chance = random.Random(7)
    other = path.with_name("damaged.cast")
    worked = 0
    for turn in range(2000):
        damaged, must_refuse = damage(content, parts, chance, turn)
        other.write_bytes(damaged)
        was_used = use_fully(other)
        assert was_used is not must_refuse, (turn, was_used)
        worked += was_used
    print(worked)
"""


def damage(
    content: bytes, parts: list[tuple[int, int]], chance: random.Random, turn: int
) -> tuple[bytes, bool]:
    """`content` cut short or with one bit turned, and whether reading it must be refused."""
    if turn % 4 == 0:
        return content[: chance.randrange(len(content))], True
    covered = [(0, container.HEAD_BYTES), *parts]
    start, size = chance.choice(covered) if turn % 4 > 1 else (0, len(content))
    position = start + chance.randrange(size)
    damaged = bytearray(content)
    damaged[position] ^= 1 << chance.randrange(8)
    return bytes(damaged), any(s <= position < s + n for s, n in covered)


def test_two_thousand_damaged_files_are_refused_or_work(path: pathlib.Path) -> None:
    script = DAMAGE.format(root=str(ROOT), tests=str(pathlib.Path(__file__).parent), path=str(path))
    command = [sys.executable, "-c", textwrap.dedent(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    # Some bits lie in the gaps between parts, where nothing is read.
    assert 0 < int(done.stdout) < 500


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    place = tmp_path_factory.mktemp("signed") / "whole.cast"
    writer.write(place, contents_with())
    return place


@settings(max_examples=300, deadline=None)
@given(
    field=st.integers(0, (container.HEADER_BYTES - 40) // 8),
    value=st.one_of(st.integers(0, 2**64 - 1), st.integers(0, 200_000)),
)
def test_a_header_signed_with_wrong_numbers_never_crashes(
    whole: pathlib.Path, field: int, value: int
) -> None:
    use_fully(resigned(whole, struct.Struct("<Q"), field * 8, value))
