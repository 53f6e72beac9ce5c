"""The kernel cache: found by content, proof against damage, bounded."""

from __future__ import annotations

import os
import pathlib

import pytest

from castiron.compiler import target as targets
from castiron.compiler.codegen import elf_objects, kernel_cache

AVX512, AVX2, BASELINE, AARCH64 = targets.ALL


def object_of(size: int) -> elf_objects.KernelObject:
    return elf_objects.KernelObject(
        machine=62,
        sections=(
            elf_objects.Section(".text", 6, 64, bytes(size)),
            elf_objects.Section(".rodata", 2, 16, b"constants"),
        ),
        symbols=(
            elf_objects.Symbol("", elf_objects.UNDEFINED, 0, 0, False, False),
            elf_objects.Symbol("kernel", 0, 0, size, True, True),
        ),
        relocations=(elf_objects.Relocation(0, 3, 2, 1, -5),),
    )


def packed_object_of(size: int) -> bytes:
    return elf_objects.pack(object_of(size))


@pytest.fixture
def cache(tmp_path: pathlib.Path) -> kernel_cache.KernelCache:
    return kernel_cache.KernelCache(tmp_path / "kernels", limit_bytes=5000)


def key_of(number: int) -> str:
    return kernel_cache.key(f"text {number}", AVX2)


def files_of(cache: kernel_cache.KernelCache) -> list[pathlib.Path]:
    return sorted(path for path in cache.folder.rglob("*") if path.is_file())


def test_what_was_put_is_found(cache: kernel_cache.KernelCache) -> None:
    assert cache.get(key_of(1)) is None
    cache.put(key_of(1), packed_object_of(10))
    assert cache.get(key_of(1)) == object_of(10)
    assert cache.get(key_of(2)) is None


def test_the_key_names_everything_the_code_depends_on(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {kernel_cache.key("text", target) for target in targets.ALL}
    keys.add(kernel_cache.key("other", AVX2))
    keys.add(kernel_cache.key("text", AVX2, (99, 0, 0)))
    monkeypatch.setattr(kernel_cache, "FORMAT", kernel_cache.FORMAT + 1)
    keys.add(kernel_cache.key("text", AVX2))
    assert len(keys) == len(targets.ALL) + 3


def test_every_damage_is_noticed_and_the_entry_dropped(cache: kernel_cache.KernelCache) -> None:
    cache.put(key_of(1), packed_object_of(10))
    (path,) = files_of(cache)
    content = path.read_bytes()
    for position in range(len(content)):
        path.write_bytes(
            content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :]
        )
        assert cache.get(key_of(1)) is None
        assert not path.exists()
        path.write_bytes(content[:position])
        assert cache.get(key_of(1)) is None


def test_an_entry_under_a_wrong_name_is_not_believed(cache: kernel_cache.KernelCache) -> None:
    cache.put(key_of(1), packed_object_of(10))
    cache.put(key_of(2), packed_object_of(20))
    first = cache.folder / key_of(1)[:2] / key_of(1)[2:]
    second = cache.folder / key_of(2)[:2] / key_of(2)[2:]
    second.write_bytes(first.read_bytes())
    assert cache.get(key_of(2)) is None


def test_the_oldest_go_first_when_there_is_too_much(cache: kernel_cache.KernelCache) -> None:
    for number in range(8):
        cache.put(key_of(number), packed_object_of(900))
        path = cache.folder / key_of(number)[:2] / key_of(number)[2:]
        os.utime(path, (1000 + number, 1000 + number))
    assert cache.get(key_of(0)) is not None
    cache.trim()
    kept = [number for number in range(8) if cache.get(key_of(number)) is not None]
    assert kept == [0, 5, 6, 7]
    assert sum(path.stat().st_size for path in files_of(cache)) <= 5000


def test_a_folder_that_cannot_be_written_costs_only_time(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_text("in the way")
    cache = kernel_cache.KernelCache(tmp_path / "file" / "kernels")
    assert cache.put(key_of(1), packed_object_of(10)) == object_of(10)
    assert cache.get(key_of(1)) is None
    cache.trim()


def test_no_temporary_file_is_left(cache: kernel_cache.KernelCache) -> None:
    for number in range(3):
        cache.put(key_of(number), packed_object_of(10))
    assert {path.name for path in files_of(cache)} == {key_of(number)[2:] for number in range(3)}


def test_the_user_s_cache_follows_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    monkeypatch.setenv("CASTIRON_CACHE", str(tmp_path))
    assert kernel_cache.KernelCache.default().folder == tmp_path / "kernels"
    monkeypatch.delenv("CASTIRON_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    expected = tmp_path / ".cache" / "castiron" / "kernels"
    assert kernel_cache.KernelCache.default().folder == expected
