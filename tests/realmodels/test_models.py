"""Real models, compiled and run, beside onnxruntime: the same numbers, on real input and noise.

Errors are relative to the largest magnitude of the output (rtol 1e-3, atol 1e-4 of it), at three
bindings or more of every symbolic dim, with one thread and two. Models of NATIVE hold no interpreted
step. What goes wrong with integers and labels is judged by the golden facts.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import castiron
from castiron.runtime.instance import Instance
from zoo import cases, golden, light, made

ModelFile = Callable[[str], Path]

NATIVE = (
    "ocr_det", "ocr_rec", "ocr_cls", "orientation", "nsfw", "nudenet", "isbnx", "silero_sequence",
    "ddddocr", "basic_pitch", "speech_embedding", "melspectrogram", "alexa", *light.NAMES,
)  # fmt: skip

# The reference's own sigmoid moves in steps of 6e-8: smaller outputs than that it does not have.
SIGMOID_STEP = 2.5e-7

# A part of every kind in each run of the tests; the rest in `make realmodels`.
QUICK = ("ocr_rec", "orientation", "alexa", "melspectrogram", "silero_sequence", "hey_jarvis")

# Dynamic quantisation rounds activations to 8 bits, and where a value lies on a rounding tie a
# difference in the last place of a sum moves a whole step, which recurrent layers spread. These
# are held to the direction of the answer (cosine) instead of its digits.
LEAST_COSINE = {
    "ddddocr_int8": 0.999, "smart_turn": 0.99, "tashkeel_bilstm": 0.999, "tashkeel_rawi": 0.999,
    "tashkeel_rawi_v2": 0.999, "tashkeel_rawi_v3": 0.999, "frspell": 0.999, "voicefilter": 0.8,
}  # fmt: skip


def _params(names: tuple[str, ...]) -> list[object]:
    return [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in names]


def _file_of(name: str, model_file: ModelFile) -> Path:
    if name == "nudenet_nms":
        model_file("nudenet")
    return made.path(name) if name in made.NAMES else model_file(name)


@functools.cache
def _built(file: Path) -> Path:
    from zoo import fetch

    out = fetch.cache_folder() / "built" / f"{file.stem}.cast"
    out.parent.mkdir(exist_ok=True)
    return Path(castiron.build(file, out))


def _reference(file: Path) -> golden.Run:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    running = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in running.get_outputs()]
    return lambda inputs: dict(zip(names, running.run(names, inputs), strict=True))


def _assert_close(name: str, found: golden.Outputs, wanted: golden.Outputs) -> None:
    assert set(found) == set(wanted)
    for output, expected in wanted.items():
        array = np.asarray(found[output])
        assert (array.dtype, array.shape) == (expected.dtype, expected.shape), output
        if array.dtype.kind != "f":
            np.testing.assert_array_equal(array, expected, err_msg=output)
        elif name in LEAST_COSINE:
            assert _cosine(array, expected) >= LEAST_COSINE[name], output
        elif name == "isbnx":
            _assert_same_boxes(array, expected)
        else:
            _assert_same_digits(array, expected)


def _assert_same_digits(found: np.ndarray, wanted: np.ndarray) -> None:
    atol = max(1e-4 * np.abs(wanted).max(initial=0.0), SIGMOID_STEP)
    np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=atol)


def _cosine(a: np.ndarray, b: np.ndarray) -> float:
    x, y = a.reshape(-1).astype(np.float64), b.reshape(-1).astype(np.float64)
    return float(x @ y) / max(float(np.sqrt((x @ x) * (y @ y))), 1e-30)


def _assert_same_boxes(found: np.ndarray, wanted: np.ndarray) -> None:
    """Rows are sorted by score (column 4): all scores, and the rows whose place is no near tie."""
    _assert_same_digits(found[..., 4], wanted[..., 4])
    for ours, theirs in zip(found, wanted, strict=True):
        gaps = np.abs(np.diff(theirs[:, 4])) > 1e-3 * theirs[:-1, 4] + 2 * SIGMOID_STEP
        apart = np.concatenate([[True], gaps]) & np.concatenate([gaps, [False]])
        _assert_same_digits(ours[apart], theirs[apart])


@pytest.mark.realmodel
@pytest.mark.parametrize("name", _params(NATIVE))
def test_a_model_of_the_list_is_fully_native(name: str, model_file: ModelFile) -> None:
    assert castiron.load(_built(_file_of(name, model_file)), threads=1).is_native


@pytest.mark.realmodel
@pytest.mark.parametrize("name", _params(tuple(sorted(cases.names()))))
def test_a_model_answers_what_onnxruntime_answers(name: str, model_file: ModelFile) -> None:
    file = _file_of(name, model_file)
    reference = _reference(file)
    one = castiron.load(_built(file), threads=1)
    two = castiron.load(_built(file), threads=2)
    for inputs in cases.cases(name):
        for each in (inputs, cases.noise_like(inputs, seed=2)):
            found = one.run(each)
            _assert_close(name, found, reference(each))
            _assert_same_bits(two.run(each), found)
            _assert_same_bits(one.run(each), found)


def _assert_same_bits(found: golden.Outputs, wanted: golden.Outputs) -> None:
    for name, expected in wanted.items():
        assert np.asarray(found[name]).tobytes() == np.asarray(expected).tobytes(), name


@functools.cache
def _loaded(file: Path) -> Instance:
    return castiron.load(_built(file), threads=1)


@pytest.mark.realmodel
@pytest.mark.parametrize(
    "fact",
    [
        pytest.param(f, id=f.name, marks=[] if f.model in QUICK else [pytest.mark.slow])
        for f in golden.FACTS
    ],
)
def test_a_golden_fact_holds(fact: golden.Fact, model_file: ModelFile) -> None:
    golden.check(fact, _loaded(_file_of(fact.model, model_file)).run)
