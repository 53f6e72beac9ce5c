"""Random models of many ops, compiled and run at several shapes, beside onnxruntime."""

from __future__ import annotations

from pathlib import Path

import hypothesis
import hypothesis.strategies as st
import numpy as np
import onnx
import onnxruntime
import pytest

import castiron
from tests.compiler import random_graphs

_SHAPES = ((2, 10, 12), (1, 7, 9), (3, 16, 5))


def _reference(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


@st.composite
def _models(draw: st.DrawFn) -> onnx.ModelProto:
    return random_graphs.random_model(lambda low, high: draw(st.integers(low, high)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("random")


@hypothesis.settings(max_examples=30)
@hypothesis.given(model=_models())
def test_a_random_model_is_native_and_answers_what_onnxruntime_answers(
    model: onnx.ModelProto, folder: Path
) -> None:
    _check(model, folder, None)


@hypothesis.settings(max_examples=8)
@hypothesis.given(model=_models(), target=st.sampled_from(("avx2", "baseline")))
def test_a_random_model_is_right_on_every_instruction_set(
    model: onnx.ModelProto, target: str, folder: Path
) -> None:
    _check(model, folder, target)


def _answer(reference: onnxruntime.InferenceSession, x: np.ndarray) -> list[np.ndarray] | None:
    """What onnxruntime answers, or None where the drawn shape does not fit this model."""
    try:
        answer: list[np.ndarray] = reference.run(None, {"x": x})
    except Exception:  # noqa: BLE001  its errors have no class of their own
        return None
    return answer


def _check(model: onnx.ModelProto, folder: Path, target: str | None) -> None:
    reference = _reference(model)
    out = folder / "random.cast"
    instance = castiron.load(castiron.build(model.SerializeToString(), out, target), threads=2)
    assert instance.is_native
    channels = model.graph.input[0].type.tensor_type.shape.dim[1].dim_value
    for n, h, w in _SHAPES:
        x = np.random.default_rng(n).standard_normal((n, channels, h, w), dtype=np.float32)
        wanted = _answer(reference, x)
        if wanted is None:
            continue
        found = list(instance.run({"x": x}).values())
        for ours, theirs in zip(found, wanted, strict=True):
            largest = max(np.abs(theirs).max(initial=0.0), 1e-6)
            np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-4 * largest)
