"""Relocation arithmetic at its limits; what is in reach is judged by GNU ld in test_link."""

from __future__ import annotations

import struct

import pytest

from castiron.compiler.codegen import elf_objects, relocate

X86, AARCH64 = elf_objects.MACHINE_X86_64, elf_objects.MACHINE_AARCH64
BRANCH = 283
PAGE = 275
ADDRESS = 274


def patched(machine: int, kind: int, place: int, meant: int, size: int = 64) -> bytearray:
    image = bytearray(size)
    patch = relocate.patch_for(machine, kind)
    assert patch is not None
    patch(image, place, meant)
    return image


def test_x86_distances_are_symbol_plus_addend_minus_place() -> None:
    assert struct.unpack_from("<i", patched(X86, 2, 8, 100 - 5), 8) == (87,)
    assert struct.unpack_from("<i", patched(X86, 4, 40, 3), 40) == (-37,)
    assert struct.unpack_from("<q", patched(X86, 24, 16, 1 << 40), 16) == ((1 << 40) - 16,)


@pytest.mark.parametrize(
    "kind, meant",
    [
        (BRANCH, 1 << 27),
        (BRANCH, 2),
        (280, 1 << 20),
        (279, 1 << 15),
        (ADDRESS, 1 << 20),
        (PAGE, 1 << 32),
        (286, 4),
        (299, 8),
    ],
)
def test_what_does_not_fit_is_out_of_reach(kind: int, meant: int) -> None:
    with pytest.raises(relocate.OutOfReachError):
        patched(AARCH64, kind, 0, meant)


def test_x86_reach_is_two_gigabytes() -> None:
    patched(X86, 2, 0, (1 << 31) - 1)
    with pytest.raises(relocate.OutOfReachError, match="does not fit 4 bytes"):
        patched(X86, 2, 0, 1 << 31)


@pytest.mark.parametrize(
    "kind, place, meant, word",
    [
        (BRANCH, 8, 0, 0x03FFFFFE),
        (BRANCH, 0, (1 << 27) - 4, 0x01FFFFFF),
        (280, 4, 12, 2 << 5),
        (279, 8, 0, 0x0007FFC0),
        (ADDRESS, 0, 7, 3 << 29 | 1 << 5),
        (PAGE, 4, 0x5008, 1 << 29 | 1 << 5),
        (277, 0, 0x1234, 0x234 << 10),
        (286, 0, 0x1238, 0x47 << 10),
        (299, 0, 0x1230, 0x23 << 10),
    ],
)
def test_aarch64_fields_hold_the_value_where_the_supplement_says(
    kind: int, place: int, meant: int, word: int
) -> None:
    assert struct.unpack_from("<I", patched(AARCH64, kind, place, meant), place) == (word,)


def test_other_bits_of_an_instruction_are_kept() -> None:
    image = bytearray(struct.pack("<I", 0x94000000))
    patch = relocate.patch_for(AARCH64, BRANCH)
    assert patch is not None
    patch(image, 0, 64)
    assert image == struct.pack("<I", 0x94000010)


def test_kinds_that_depend_on_the_address_have_no_patch() -> None:
    for kind in (1, 9, 10, 11, 41, 42):
        assert relocate.patch_for(X86, kind) is None
        assert relocate.kind_name(X86, kind).startswith("R_X86_64_")
    assert relocate.patch_for(AARCH64, 257) is None
    assert relocate.kind_name(AARCH64, 999) == "relocation kind 999"
