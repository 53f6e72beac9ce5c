"""Small requests of one kind: the bytes of each answer are those of the long way."""

from __future__ import annotations

import json
import pathlib
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import castiron
from castiron.server import fixed, inference, reply
from castiron.server.http import exchange
from castiron.tensor import elements
from tests import built

VERSION: Any = SimpleNamespace(model="m", number=3, digest="sha256:0")


@pytest.fixture(scope="module")
def added(tmp_path_factory: pytest.TempPathFactory) -> castiron.Instance:
    """y = x0 + x1 over [n, 4]."""
    folder = tmp_path_factory.mktemp("fixed")
    return built.loaded(built.one_op("Add", ("n", 4), ("n", 4)), folder, name="added")


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> castiron.Instance:
    """Convolutions over [n, 3, h, w], in an arena."""
    return built.loaded(built.network(), tmp_path_factory.mktemp("fixed"), name="network")


def body(
    instance: castiron.Instance, arrays: dict[str, np.ndarray], *, is_raw: bool, wants_raw: bool
) -> tuple[bytes, int | None]:
    inputs = []
    for spec in instance.signature.inputs:
        array = arrays[spec.name]
        item: dict[str, Any] = {
            "name": spec.name, "datatype": spec.dtype.oip, "shape": list(array.shape),
        }  # fmt: skip
        if is_raw:
            item["parameters"] = {"binary_data_size": array.nbytes}
        else:
            item["data"] = [_word(value) for value in array.ravel().tolist()]
        inputs.append(item)
    head = {"inputs": inputs, "parameters": {"binary_data_output": wants_raw}}
    text = json.dumps(head).encode()
    if not is_raw:
        return text, None
    return text + b"".join(array.tobytes() for array in arrays.values()), len(text)


def _word(value: float) -> float | str:
    if np.isfinite(value):
        return value
    return "NaN" if np.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def whole(given: reply.Reply) -> bytes:
    return exchange.written(given.headers) + given.lines + b"".join(given.parts)


class Both:
    """The long way, and the run that requests of one kind share, if there is one."""

    def __init__(self, instance: castiron.Instance) -> None:
        self.instance = instance
        self.interface = inference.Interface.of(instance.signature)

    def answers(
        self, arrays: dict[str, np.ndarray], *, is_raw: bool, wants_raw: bool
    ) -> tuple[bytes, bytes | None]:
        text, json_bytes = body(self.instance, arrays, is_raw=is_raw, wants_raw=wants_raw)
        read = inference.parse(text, json_bytes, inference.Interface.of(self.instance.signature))
        outputs = self.instance.run(read.inputs)
        long = whole(reply.render(outputs, read, self.interface, VERSION))
        for _ in range(2):
            asked = inference.parse(text, json_bytes, self.interface)
        known = asked.template
        if known is None:
            return long, None
        if known.fixed is None:
            known.fixed = fixed.of(self.instance, self.interface, known, 1)
        own = known.fixed
        if own is None:
            return long, None
        made = own.run_raw(asked.raw) if asked.raw else own.run(asked.inputs)
        return long, whole(reply.render(made, asked, self.interface, VERSION))


_VALUES = st.one_of(
    st.floats(width=32, allow_subnormal=False), st.sampled_from([0.0, -0.0, 1e-7, 16777217.0])
)


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.booleans(), _VALUES), max_size=12))
def test_each_answer_is_the_one_of_the_long_way(
    added: castiron.Instance, calls: list[tuple[int, bool, bool, float]]
) -> None:
    """Shapes, JSON and raw in turn; NaN, infinities and signed zeros among the values."""
    both = Both(added)
    for num_rows, is_raw, wants_raw, value in calls:
        one = np.arange(4 * num_rows, dtype=np.float32).reshape(num_rows, 4)
        arrays = {"x0": one, "x1": np.full_like(one, value)}
        long, short = both.answers(arrays, is_raw=is_raw, wants_raw=wants_raw)
        assert short == (long if num_rows or not is_raw else None)  # no bytes: read each time


@pytest.mark.parametrize("is_raw", [False, True])
def test_models_with_an_arena_and_new_values_each_time(
    network: castiron.Instance, *, is_raw: bool
) -> None:
    both = Both(network)
    seen = set()
    for seed in range(5):
        drawn = np.random.default_rng(seed).standard_normal((1, 3, 4, 4)).astype(np.float32)
        long, short = both.answers({"x": drawn}, is_raw=is_raw, wants_raw=is_raw)
        assert short == long
        seen.add(long)
    assert len(seen) == 5


@pytest.mark.parametrize("kind", ["int64", "uint8", "float64", "int32"])
@pytest.mark.parametrize("is_raw", [False, True])
def test_every_width_of_numbers(tmp_path: pathlib.Path, kind: str, *, is_raw: bool) -> None:
    instance = built.loaded(built.one_op("Add", ("n",), ("n",), dtype=kind), tmp_path, name=kind)
    both = Both(instance)
    for value in (0, 1, 100):
        own = instance.signature.inputs[0].dtype
        array = np.array([value, 3, 7], elements.numpy_dtype(own))
        long, short = both.answers({"x0": array, "x1": array}, is_raw=is_raw, wants_raw=is_raw)
        assert short == long


@pytest.mark.parametrize("is_raw", [False, True])
def test_an_answer_that_is_still_to_be_sent_outlives_the_next_run(
    tmp_path: pathlib.Path, *, is_raw: bool
) -> None:
    """Also one so large that its parts would be sent as they lie, and also the first."""
    instance = built.loaded(built.one_op("Neg", ("n",)), tmp_path)
    interface = inference.Interface.of(instance.signature)
    sent, wanted = [], []
    for value in range(4):
        array = np.full(8192, value, np.float32)
        text, json_bytes = body(instance, {"x0": array}, is_raw=is_raw, wants_raw=True)
        asked = inference.parse(text, json_bytes, interface)
        if asked.template is None:
            continue
        if asked.template.fixed is None:
            asked.template.fixed = fixed.of(instance, interface, asked.template, 1)
        own = asked.template.fixed
        assert own is not None
        made = own.run_raw(asked.raw) if asked.raw else own.run(asked.inputs)
        sent.append(reply.render(made, asked, interface, VERSION))
        wanted.append((-array).tobytes())
    assert [b"".join(each.parts)[-len(wanted[0]) :] for each in sent] == wanted
    assert len(sent) > 1


def test_what_mixes_forms_or_is_large_or_has_bytes_to_check_goes_the_long_way(
    added: castiron.Instance, tmp_path: pathlib.Path
) -> None:
    both = Both(added)
    large = np.zeros((5000, 4), np.float32)
    assert both.answers({"x0": large, "x1": large}, is_raw=True, wants_raw=True)[1] is None
    logical = built.loaded(built.one_op("And", ("n",), ("n",), dtype="bool"), tmp_path, name="and")
    array = np.array([True, False])
    assert Both(logical).answers({"x0": array, "x1": array}, is_raw=True, wants_raw=True)[1] is None


def test_runs_of_all_kinds_together_take_no_more_than_so_much(added: castiron.Instance) -> None:
    """Of 200 kinds of 32 KB the last ones have a run of their own."""
    both, shelf, kinds = Both(added), fixed.Shelf(), []
    for num_rows in range(600, 800):
        one = np.zeros((num_rows, 4), np.float32)
        text, size = body(added, {"x0": one, "x1": one}, is_raw=True, wants_raw=True)
        known = inference.parse(text, size, both.interface).template
        assert known is not None
        made = fixed.of(added, both.interface, known, 1)
        assert made is not None
        known.is_tried = True
        shelf.put(known, made)
        kinds.append(known)
        held = [each.fixed.size_bytes for each in kinds if each.fixed is not None]
        assert sum(held) <= 1 << 20
    assert kinds[-1].fixed is not None
    assert kinds[0].fixed is None
    assert not kinds[0].is_tried
