"""Relocation kinds the linker resolves, and the arithmetic of each.

Only kinds whose value does not change when the whole image moves by a multiple of 4 KB: that is
what makes an image flat. Any other kind is refused by link. Source: the ELF supplements of the
two architectures.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from castiron.compiler.codegen import elf_objects

Patch = Callable[[bytearray, int, int], None]


class OutOfReachError(ValueError):
    """The value does not fit its field, or breaks the field's alignment."""


def kind_name(machine: int, kind: int) -> str:
    """The name of a relocation kind as readelf prints it, or its number."""
    names = _X86_NAMES if machine == elf_objects.MACHINE_X86_64 else _AARCH64_NAMES
    return names.get(kind, f"relocation kind {kind}")


def patch_for(machine: int, kind: int) -> Patch | None:
    """The function that patches that kind, or None if the kind cannot be in a flat image.

    A patch takes the image, the place's offset in it, and the offset meant (symbol + addend).
    """
    table = _X86 if machine == elf_objects.MACHINE_X86_64 else _AARCH64
    return table.get(kind)


def _store_relative(shape: str) -> Patch:
    field = struct.Struct(shape)

    def patch(image: bytearray, place: int, meant: int) -> None:
        try:
            field.pack_into(image, place, meant - place)
        except struct.error as fault:
            raise OutOfReachError(
                f"distance {meant - place} does not fit {field.size} bytes"
            ) from fault

    return patch


def _signed(value: int, num_bits: int) -> int:
    limit = 1 << (num_bits - 1)
    if not -limit <= value < limit:
        raise OutOfReachError(f"value {value} does not fit {num_bits} bits")
    return value & (2 * limit - 1)


def _words(distance: int) -> int:
    if distance & 3:
        raise OutOfReachError(f"distance {distance} is no multiple of 4")
    return distance >> 2


def _set_bits(image: bytearray, place: int, bits: int, mask: int) -> None:
    (word,) = struct.unpack_from("<I", image, place)
    struct.pack_into("<I", image, place, word & ~mask & 0xFFFFFFFF | bits)


def _branch26(image: bytearray, place: int, meant: int) -> None:
    _set_bits(image, place, _signed(_words(meant - place), 26), 0x03FFFFFF)


def _branch19(image: bytearray, place: int, meant: int) -> None:
    _set_bits(image, place, _signed(_words(meant - place), 19) << 5, 0x00FFFFE0)


def _branch14(image: bytearray, place: int, meant: int) -> None:
    _set_bits(image, place, _signed(_words(meant - place), 14) << 5, 0x0007FFE0)


def _split21(image: bytearray, place: int, value: int) -> None:
    bits = _signed(value, 21)
    _set_bits(image, place, (bits & 3) << 29 | bits >> 2 << 5, 0x60FFFFE0)


def _address21(image: bytearray, place: int, meant: int) -> None:
    _split21(image, place, meant - place)


def _page21(image: bytearray, place: int, meant: int) -> None:
    _split21(image, place, (meant >> 12) - (place >> 12))


def _low12(shift: int) -> Patch:
    def patch(image: bytearray, place: int, meant: int) -> None:
        low = meant & 0xFFF
        if low & ((1 << shift) - 1):
            raise OutOfReachError(f"offset {meant:#x} is no multiple of {1 << shift}")
        _set_bits(image, place, low >> shift << 10, 0x003FFC00)

    return patch


_X86: dict[int, Patch] = {
    2: _store_relative("<i"),
    4: _store_relative("<i"),
    24: _store_relative("<q"),
}

_AARCH64: dict[int, Patch] = {
    260: _store_relative("<q"),
    261: _store_relative("<i"),
    273: _branch19,
    274: _address21,
    275: _page21,
    277: _low12(0),
    278: _low12(0),
    279: _branch14,
    280: _branch19,
    282: _branch26,
    283: _branch26,
    284: _low12(1),
    285: _low12(2),
    286: _low12(3),
    299: _low12(4),
}

_X86_NAMES = {
    1: "R_X86_64_64",
    2: "R_X86_64_PC32",
    4: "R_X86_64_PLT32",
    9: "R_X86_64_GOTPCREL",
    10: "R_X86_64_32",
    11: "R_X86_64_32S",
    19: "R_X86_64_TLSGD",
    22: "R_X86_64_GOTTPOFF",
    24: "R_X86_64_PC64",
    25: "R_X86_64_GOTOFF64",
    26: "R_X86_64_GOTPC32",
    29: "R_X86_64_GOTPC64",
    41: "R_X86_64_GOTPCRELX",
    42: "R_X86_64_REX_GOTPCRELX",
}

_AARCH64_NAMES = {
    257: "R_AARCH64_ABS64",
    258: "R_AARCH64_ABS32",
    260: "R_AARCH64_PREL64",
    261: "R_AARCH64_PREL32",
    263: "R_AARCH64_MOVW_UABS_G0",
    264: "R_AARCH64_MOVW_UABS_G0_NC",
    266: "R_AARCH64_MOVW_UABS_G1_NC",
    268: "R_AARCH64_MOVW_UABS_G2_NC",
    269: "R_AARCH64_MOVW_UABS_G3",
    273: "R_AARCH64_LD_PREL_LO19",
    274: "R_AARCH64_ADR_PREL_LO21",
    275: "R_AARCH64_ADR_PREL_PG_HI21",
    277: "R_AARCH64_ADD_ABS_LO12_NC",
    278: "R_AARCH64_LDST8_ABS_LO12_NC",
    279: "R_AARCH64_TSTBR14",
    280: "R_AARCH64_CONDBR19",
    282: "R_AARCH64_JUMP26",
    283: "R_AARCH64_CALL26",
    284: "R_AARCH64_LDST16_ABS_LO12_NC",
    285: "R_AARCH64_LDST32_ABS_LO12_NC",
    286: "R_AARCH64_LDST64_ABS_LO12_NC",
    299: "R_AARCH64_LDST128_ABS_LO12_NC",
    311: "R_AARCH64_ADR_GOT_PAGE",
    312: "R_AARCH64_LD64_GOT_LO12_NC",
}
