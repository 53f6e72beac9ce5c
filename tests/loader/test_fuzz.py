"""Damaged model files: a Graph or a LoadError, never anything else, and never long."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

import hypothesis
import onnx
import pytest
from hypothesis import strategies as st

from castiron import errors
from castiron.graph import verify
from castiron.loader import load
from tests.loader import models
from tests.loader.test_onnx import _branches

_LIMIT_S = 5.0


def _survives(data: bytes) -> bool:
    """Load it; whether it was a model. Fails on any other exception and on slowness."""
    start = time.monotonic()
    try:
        verify.verify(load(data), "load")
    except errors.LoadError:
        return False
    finally:
        assert time.monotonic() - start < _LIMIT_S
    return True


def _damaged(data: bytes, seed: int) -> bytes:
    """Some bytes changed, cut out, put in or copied from elsewhere."""
    dice = random.Random(seed)
    found = bytearray(data)
    for _ in range(dice.choice([1, 1, 2, 5, 20])):
        place = dice.randrange(len(found))
        match dice.randrange(5):
            case 0:
                found[place] = dice.randrange(256)
            case 1:
                found[place] ^= 1 << dice.randrange(8)
            case 2:
                del found[place : place + dice.randrange(1, 8)]
            case 3:
                found[place:place] = dice.randbytes(dice.randrange(1, 8))
            case _:
                other = dice.randrange(len(found))
                found[place : place + 4] = found[other : other + 4]
    return bytes(found)


def _models() -> list[bytes]:
    old = models.model(
        [
            models.node("Softmax", ["x"], ["s"], axis=1),
            models.node("Pad", ["s"], ["p"], pads=[0, 1, 0, 1], value=2.0),
            models.node("FusedMatMul", ["p", "p"], ["y"], domain="com.microsoft", transB=1),
        ],
        [models.value("x", ["n", 3])],
        ["y"],
        opset=9,
    )
    return [old.SerializeToString(), _branches(10).SerializeToString()]


@hypothesis.given(seed=st.integers(0, 2**32), which=st.sampled_from(_models()))
@hypothesis.settings(max_examples=max(200, hypothesis.settings().max_examples))
def test_a_damaged_small_model_is_read_or_refused(seed: int, which: bytes) -> None:
    _survives(_damaged(which, seed))


@hypothesis.given(data=st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    _survives(data)


@pytest.mark.realmodel
@pytest.mark.slow
def test_2000_damages_of_a_real_model_are_read_or_refused(
    model_file: Callable[[str], Path],
) -> None:
    whole = model_file("silero_16k").read_bytes()
    proto = onnx.ModelProto.FromString(whole)
    for tensor in proto.graph.initializer:
        if len(tensor.raw_data) > 4096:
            tensor.ClearField("raw_data")  # the weights would take all the hits
    light = proto.SerializeToString()
    read = sum(_survives(_damaged(light, seed)) for seed in range(1000))
    read += sum(_survives(_damaged(whole, seed)) for seed in range(1000))
    assert 0 < read < 2000
