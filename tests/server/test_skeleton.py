"""JSON that was read before, but for its numbers: the same as reading it whole, whatever comes."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from castiron import errors
from castiron.server import inference
from castiron.tensor import dtype as dtypes

KNOWN = {"x": dtypes.FLOAT32, "n": dtypes.INT64, "b": dtypes.BOOL, "s": dtypes.STRING}
NAMES = {"x": "FP32", "n": "INT64", "b": "BOOL", "s": "BYTES"}


def interface(*names: str) -> inference.Interface:
    return inference.Interface({name: KNOWN[name] for name in names}, {"y": dtypes.FLOAT32})


def text(values: dict[str, list[Any]], indent: int | None = None, **more: Any) -> bytes:
    inputs = [{"name": name, "datatype": NAMES[name], "shape": [len(data)], "data": data}
              for name, data in values.items()]  # fmt: skip
    return json.dumps({"inputs": inputs, **more}, indent=indent).encode()


def outcome(body: bytes, kept: inference.Interface) -> Any:
    """What reading gives: all of the request, or the error."""
    try:
        asked = inference.parse(body, None, kept)
    except errors.InputError as fault:
        return str(fault)
    arrays = {name: (str(a.dtype), a.shape, a.tobytes() if a.dtype != object else a.tolist())
              for name, a in asked.inputs.items()}  # fmt: skip
    return arrays, asked.id, asked.wanted, asked.timeout_s, asked.priority, asked.size_bytes


_FLOATS = st.one_of(
    st.floats(width=32, allow_nan=False, allow_infinity=False),
    st.integers(-9, 9),
    st.sampled_from(["NaN", "Infinity", True, None, 1e300, "word"]),
)
_INTS = st.one_of(st.integers(-(1 << 63), (1 << 63) - 1), st.sampled_from([1 << 63, 1.5, "1"]))


@given(st.lists(st.tuples(st.lists(_FLOATS, max_size=4), st.lists(_INTS, max_size=3)), max_size=12),
       st.sampled_from([None, 1]))  # fmt: skip
def test_numbers_of_all_kinds_are_read_as_by_reading_all(
    calls: list[tuple[list[Any], list[Any]]], indent: int | None
) -> None:
    kept = interface("x", "n")
    for floats, integers in calls:
        body = text({"x": floats, "n": integers}, indent)
        assert outcome(body, kept) == outcome(body, interface("x", "n"))


@given(st.data())
def test_a_text_that_was_tampered_with_is_read_as_by_reading_all(data: st.DataObject) -> None:
    kept = interface("x", "n")
    body = text({"x": [1.5, 2], "n": [3]}, parameters={"timeout": 5_000_000, "priority": 1})
    assert not isinstance(outcome(body, kept), str)
    assert len(kept.skeletons) == 1
    for _ in range(4):
        at = data.draw(st.integers(0, len(body)))
        gone = data.draw(st.integers(0, 6))
        put = data.draw(st.one_of(
            st.binary(max_size=3),
            st.sampled_from([b"]", b"[", b"],", b'"', b"1,2", b"[1]", b'],"data":[7', b"}", b"{}"]),
        ))  # fmt: skip
        damaged = body[:at] + put + body[at + gone :]
        assert outcome(damaged, kept) == outcome(damaged, interface("x", "n"))


def test_one_that_came_before_is_not_read_whole_again(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = interface("x")
    inference.parse(text({"x": [1.0, 2.0]}), None, kept)
    monkeypatch.setattr(inference, "decoded", None)
    asked = inference.parse(text({"x": [3.25, -0.0]}), None, kept)
    assert asked.inputs["x"].tolist() == [3.25, 0.0]
    assert math.copysign(1, asked.inputs["x"][1]) == -1


@pytest.mark.parametrize(
    "body",
    [
        text({"x": [1.0]}, id="7"),
        text({"s": ["a]", "b"]}),
        text({"x": [1.0]}, note={"data": [1]}),
        text({"x": [1.0]}).replace(b'"data"', b'"data": [9], "data"'),
        text({"x": [1.0]}).replace(b'"data"', b'"d\\u0061ta"'),
        text({"x": [1.0]}).replace(b"[1.0]}", b"[[1.0]]}").replace(b'"shape": [1]', b'"shape": [1,1]'),
        text({"x": [1.0]}, parameters={"note": "x" * 5000}),
        text({"x": [1.0] * 20000}),
    ],
)  # fmt: skip
def test_what_cannot_be_taken_apart_is_read_whole_each_time(body: bytes) -> None:
    """And none of them gets a run of its own, which would be made anew each time."""
    kept = interface("s" if b'"s"' in body else "x")
    wanted = outcome(body, interface(*kept.inputs))
    for _ in range(3):
        assert outcome(body, kept) == wanted
        assert inference.parse(body, None, kept).template is None
    assert len(kept.skeletons) == 0


@pytest.mark.parametrize(
    "first, second",
    [
        ('"data":[9, 9],"data":[%d, 2]', r'"d\u0061ta":[]'),
        ('"data":[%d, 2]', r'"note":{"data":[%d]},"d\u0061ta":[]'),
    ],
)
def test_words_that_stand_twice_or_with_escapes_never_move_values(first: str, second: str) -> None:
    """As many lists as inputs follow the word, but one of them is another's or nobody's."""
    kept = interface("x", "n")
    pattern = ('{"inputs":[{"name":"x","datatype":"FP32","shape":[2],' + first + '},'
               '{"name":"n","datatype":"INT64","shape":[0],' + second + "}]}")  # fmt: skip
    empty = pattern.replace("[%d]", "[]")
    for sent in (empty % 1, empty % 3, pattern.replace("%d", "5")):
        body = sent.encode()
        read = outcome(body, interface("x", "n"))
        assert not isinstance(read, str)
        assert outcome(body, kept) == read


def test_nested_lists_and_special_words_of_a_known_text_are_read_whole() -> None:
    kept = interface("x")
    flat = text({"x": [1.0, 2.0]})
    inference.parse(flat, None, kept)
    for wrong in (b"[[1.0, 2.0]]", b"[NaN, 2.0]", b"[Infinity, -Infinity]", b"[1.0, 2.0"):
        body = flat.replace(b"[1.0, 2.0]", wrong)
        assert outcome(body, kept) == outcome(body, interface("x"))
    assert np.isnan(inference.parse(flat.replace(b"1.0", b"NaN"), None, kept).inputs["x"][0])


def test_only_so_many_are_kept() -> None:
    kept = interface("x")
    for number in range(500):
        inference.parse(text({"x": [0.0] * number}), None, kept)
        assert len(kept.skeletons) <= 32
