"""Heads that were read before: the same answers as by reading them again, and nothing kept for ever."""

from __future__ import annotations

import json
import weakref
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from castiron import errors
from castiron.server import inference, reply
from castiron.tensor import dtype as dtypes

VERSION: Any = SimpleNamespace(model="m", number=3, digest="sha256:0")


def interface() -> inference.Interface:
    return inference.Interface(
        {"x": dtypes.FLOAT32, "s": dtypes.STRING}, {"y": dtypes.FLOAT32, "t": dtypes.STRING}
    )


def one_input() -> inference.Interface:
    return inference.Interface({"x": dtypes.FLOAT32}, {"y": dtypes.FLOAT32})


def message(values: np.ndarray, **more: Any) -> tuple[bytes, int]:
    data = values.astype("<f4").tobytes()
    item = {"name": "x", "datatype": "FP32", "shape": list(values.shape),
            "parameters": {"binary_data_size": len(data)}}  # fmt: skip
    head = json.dumps({"inputs": [item], "parameters": {"binary_data_output": True}, **more})
    return head.encode() + data, len(head)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.booleans()), max_size=20))
def test_a_head_read_again_gives_the_same_request_and_the_same_answer(
    calls: list[tuple[int, int, bool]],
) -> None:
    kept = one_input()
    for index, (rows, width, has_id) in enumerate(calls):
        values = np.arange(rows * width, dtype=np.float32).reshape(rows, width) + index
        more = {"id": f"{index}"} if has_id else {}
        body, json_bytes = message(values, **more)
        fresh = one_input()
        inference.parse(body, json_bytes, kept)
        known = inference.parse(body, json_bytes, kept)
        assert (known.template is None) == (has_id or not values.size)
        read = inference.parse(body, json_bytes, fresh)
        assert read.template is None
        np.testing.assert_array_equal(known.inputs["x"], values)
        assert (known.id, known.wanted, known.timeout_s, known.priority) == (
            read.id, read.wanted, read.timeout_s, read.priority,
        )  # fmt: skip
        assert known.size_bytes == read.size_bytes == values.nbytes
        outputs = {"y": values[:, :1] * 2}
        assert reply.render(outputs, known, kept, VERSION) == reply.render(
            outputs, read, fresh, VERSION
        )


def test_another_number_of_bytes_behind_a_known_head_is_refused() -> None:
    kept = one_input()
    body, json_bytes = message(np.ones((2, 2), np.float32))
    inference.parse(body, json_bytes, kept)
    assert inference.parse(body, json_bytes, kept).template is not None
    for wrong in (body[:-4], body + b"\0\0\0\0"):
        with pytest.raises(errors.InputError, match="bytes"):
            inference.parse(wrong, json_bytes, kept)


def test_heads_with_an_id_or_strings_or_values_in_their_json_are_read_each_time() -> None:
    kept = one_input()
    body, json_bytes = message(np.ones((1, 1), np.float32), id="7")
    for _ in range(2):
        asked = inference.parse(body, json_bytes, kept)
        assert asked.template is None
        assert asked.id == "7"
    both = interface()
    text = b"\x02\0\0\0hi"
    inputs = [
        {"name": "x", "datatype": "FP32", "shape": [1], "data": [1.5]},
        {"name": "s", "datatype": "BYTES", "shape": [1],
         "parameters": {"binary_data_size": len(text)}},
    ]  # fmt: skip
    head = json.dumps({"inputs": inputs}).encode()
    for _ in range(2):
        asked = inference.parse(head + text, len(head), both)
        assert asked.template is None
        assert asked.inputs["s"].tolist() == ["hi"]


def test_string_outputs_are_never_answered_from_what_is_kept() -> None:
    kept = inference.Interface({"x": dtypes.FLOAT32}, {"t": dtypes.STRING})
    body, json_bytes = message(np.ones((1, 1), np.float32))
    inference.parse(body, json_bytes, kept)
    for text in ("a", "longer"):
        asked = inference.parse(body, json_bytes, kept)
        assert asked.template is not None
        found = reply.render({"t": np.array([text], object)}, asked, kept, VERSION)
        head = json.loads(bytes(found.parts[0])[: int(dict(found.headers)[_LENGTH])])
        assert head["outputs"][0]["parameters"]["binary_data_size"] == 4 + len(text)


_LENGTH = b"inference-header-content-length"


def test_what_is_kept_holds_no_body() -> None:
    kept = one_input()
    body, json_bytes = message(np.ones((5000, 4), np.float32))
    for _ in range(2):
        memory = np.frombuffer(body, np.uint8).copy()  # as a large body has one of its own
        held = weakref.ref(memory)
        asked = inference.parse(memory.data, json_bytes, kept)
        reply.render({"y": np.ones((1, 1), np.float32)}, asked, kept, VERSION)
        del asked, memory
        assert held() is None
    assert len(kept.templates) == 1


def test_only_so_many_are_kept() -> None:
    kept = one_input()
    for rows in range(1000):
        inference.parse(*message(np.ones((rows, 1), np.float32)), kept)
    assert len(kept.templates) <= 64
    long = {"parameters": {"binary_data_output": True, "note": "x" * 5000}}
    before = len(kept.templates)
    inference.parse(*message(np.ones((7, 7), np.float32), **long), kept)
    assert len(kept.templates) == before
