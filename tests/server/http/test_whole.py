"""A body's own memory: bytes land in order, the tensors behind the JSON are aligned."""

from __future__ import annotations

import asyncio

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from castiron.server.http import connection
from castiron.server.http import whole as wholes


@given(st.binary(min_size=1, max_size=3000), st.integers(0, 500), st.data())
def test_a_body_arrives_whole_in_pieces_of_any_size(
    body: bytes, json_bytes: int, data: st.DataObject
) -> None:
    whole = wholes.Whole(len(body), json_bytes)
    first = data.draw(st.integers(0, len(body) - 1))
    whole.add(body[:first])
    scratch = memoryview(bytearray(10))
    at, is_complete = first, False
    while at < len(body):
        room = whole.room(scratch)
        assert len(room) == len(body) - at
        size = data.draw(st.integers(1, len(room)))
        room[:size] = body[at : at + size]
        at += size
        is_complete = whole.advance(size)
        assert is_complete == (at == len(body))
    assert is_complete
    taken = whole.take()
    assert taken is not None
    assert bytes(taken) == body
    address = np.frombuffer(taken, np.uint8).ctypes.data
    assert (address + json_bytes) % 64 == 0


def test_what_is_dropped_is_counted_and_goes_to_the_scratch_buffer() -> None:
    whole = wholes.Whole(100, 0)
    whole.add(b"x" * 30)
    whole.drop()
    scratch = memoryview(bytearray(64))
    assert len(whole.room(scratch)) == 64
    assert not whole.advance(64)
    assert len(whole.room(scratch)) == 6
    assert whole.advance(6)
    assert whole.take() is None


def test_the_loop_is_given_what_it_needs_to_take_the_direct_path() -> None:
    assert issubclass(connection.Connection, asyncio.BufferedProtocol)
    assert not issubclass(connection.Connection, asyncio.Protocol)
