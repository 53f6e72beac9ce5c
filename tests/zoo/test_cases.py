"""The zoo itself, judged by onnxruntime: every model loads, every input fits, every fact holds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from zoo import cases, encoder, fetch, golden, light, made, mobilenet

HEAVY = {"bvlc_alexnet", "vgg19", "zfnet512"}  # hundreds of megabytes each

ModelFile = Callable[[str], Path]


def reference(file: Path) -> golden.Run:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # exporters' wrong shape hints are no news
    options.intra_op_num_threads = 1
    running = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in running.get_outputs()]
    return lambda inputs: dict(zip(names, running.run(names, inputs), strict=True))


def file_of(name: str, model_file: ModelFile) -> Path:
    if name == "nudenet_nms":
        model_file("nudenet")
    return made.path(name) if name in made.NAMES else model_file(name)


def test_every_model_has_cases() -> None:
    fetched = {name for name, entry in fetch.entries().items() if entry.member.endswith(".onnx")}
    assert fetched | set(made.NAMES) == set(cases.names())


@pytest.mark.realmodel
@pytest.mark.slow
@pytest.mark.parametrize("name", cases.names())
def test_a_model_accepts_its_cases_and_their_noise(name: str, model_file: ModelFile) -> None:
    run = reference(file_of(name, model_file))
    for inputs in cases.cases(name):
        for each in (inputs, cases.noise_like(inputs, seed=1)):
            for output in run(each).values():
                assert np.isfinite(output).all()


@pytest.mark.realmodel
@pytest.mark.parametrize("fact", golden.FACTS, ids=lambda fact: fact.name)
def test_a_golden_fact_holds(fact: golden.Fact, model_file: ModelFile) -> None:
    golden.check(fact, reference(file_of(fact.model, model_file)))


def test_a_wrong_answer_breaks_a_fact() -> None:
    fact = next(fact for fact in golden.FACTS if fact.model == "nsfw")
    with pytest.raises(AssertionError, match="an astronaut and a cat"):
        golden.check(fact, lambda _: {"outputs": np.full((2, 2), 0.5, np.float32)})


@pytest.mark.parametrize("name", sorted({*light.NAMES} - HEAVY))
def test_a_light_model_gives_each_class_another_score(name: str) -> None:
    (inputs,) = cases.cases(name)
    (scores,) = reference(made.path(name))(inputs).values()
    assert len(np.unique(scores)) > 500  # squeezenet clips the lower half at zero
    assert scores.max() < 0.9 or scores.min() < 0  # a softmax that is not saturated, or logits


def test_the_encoder_and_the_mobilenet_are_the_same_every_time() -> None:
    for make in (encoder.model, mobilenet.model):
        assert make().SerializeToString() == make().SerializeToString()


@pytest.mark.realmodel
def test_noise_keeps_shapes_dtypes_and_small_settings(model_file: ModelFile) -> None:
    model_file("piper_config")
    inputs = cases.sentence_ids("tˈɛst.")  # noqa: RUF001  phonetic letters
    noise = cases.noise_like(inputs, seed=3)
    assert {n: (a.shape, a.dtype) for n, a in noise.items()} == {
        n: (a.shape, a.dtype) for n, a in inputs.items()
    }
    assert (noise["scales"] == inputs["scales"]).all()
    assert (np.sort(noise["input"], None) == np.sort(inputs["input"], None)).all()
