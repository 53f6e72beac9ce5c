"""Strings of any bytes survive packing; damaged packings are refused, never misread."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from castiron.tensor import dtype, elements


@given(st.lists(st.binary()))
def test_any_byte_strings_come_back_as_they_were(items: list[bytes]) -> None:
    packed = elements.pack_strings(np.array(items, object))
    strings = elements.unpack_strings(packed, (len(items),))
    assert elements.pack_strings(strings) == packed
    assert [text.encode("utf-8", "surrogateescape") for text in strings] == items


@given(st.binary(), st.integers(0, 4))
def test_bytes_from_outside_are_read_exactly_or_refused(data: bytes, count: int) -> None:
    try:
        strings = elements.unpack_strings(data, (count,))
    except ValueError:
        return
    assert elements.pack_strings(strings) == data


@pytest.mark.parametrize(
    "data, shape, message",
    [
        (b"\x05\0\0\0ab", (1,), "string 0 needs 5 bytes, 2 are left"),
        (b"\x01\0\0\0a\0\0\0", (2,), "the length of string 1 is cut off"),
        (b"\0\0\0\0x", (1,), "1 bytes are left after the last string"),
        (b"", (2**62,), "strings need at least"),
    ],
)
def test_a_damaged_packing_names_the_string(
    data: bytes, shape: tuple[int, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        elements.unpack_strings(data, shape)


def test_every_dtype_has_an_array_type_of_its_own_size() -> None:
    for kind in dtype.ALL:
        if kind is not dtype.STRING:
            assert elements.numpy_dtype(kind).itemsize == kind.size_bytes
