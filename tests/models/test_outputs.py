"""Real models, compiled and run: outputs as onnxruntime's, golden facts, the same bits each time.

Every model of the zoo on its real inputs, which bind each symbolic dim at least three ways, and
on noise of the same shapes, with one thread and with two. Slow: `make realmodels` runs it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
import pytest

from castiron import api
from zoo import cases, golden, light, made

pytestmark = [pytest.mark.realmodel, pytest.mark.slow]

Outputs = Mapping[str, npt.NDArray[Any]]
Built = Callable[[str], Path]

# No op of these may be interpreted.
NATIVE = frozenset(
    {
        "ocr_det",
        "ocr_rec",
        "ocr_cls",
        "orientation",
        "nsfw",
        "nudenet",
        "isbnx",
        "silero_sequence",
        "ddddocr",
        "basic_pitch",
        "speech_embedding",
        "melspectrogram",
        "alexa",
        *light.NAMES,
    }
)


def grouped(names: Iterable[str]) -> list[Any]:
    """Names as parameters; all tests of one model run in one process, which builds it once."""
    return [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in names]


def source_of(name: str, model_file: Callable[[str], Path]) -> Path:
    if name == "nudenet_nms":
        model_file("nudenet")
    return made.path(name) if name in made.NAMES else model_file(name)


@pytest.fixture(scope="session")
def built(model_file: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Built:
    """A function from a model of the zoo to its executable, built once in a process."""
    folder, done = tmp_path_factory.mktemp("built"), dict[str, Path]()

    def build(name: str) -> Path:
        if name not in done:
            out = folder / f"{name}.cast"
            api.build(source_of(name, model_file), out)
            done[name] = out
        return done[name]

    return build


def reference(file: Path) -> Callable[[cases.Inputs], Outputs]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # exporters' wrong shape hints are no news
    options.intra_op_num_threads = 1
    running = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in running.get_outputs()]
    return lambda inputs: dict(zip(names, running.run(names, inputs), strict=True))


def assert_alike(found: Outputs, wanted: Outputs) -> None:
    """Within 1e-3 of each value, and 1e-4 of the largest; integers and truth values equal."""
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        assert found[name].shape == array.shape, name
        assert found[name].dtype == array.dtype, name
        if not np.issubdtype(array.dtype, np.floating):
            assert np.array_equal(found[name], array), name
            continue
        largest = float(np.abs(array).max(initial=0))
        np.testing.assert_allclose(found[name], array, rtol=1e-3, atol=1e-4 * largest, err_msg=name)


@pytest.mark.parametrize("name", grouped(cases.names()))
@pytest.mark.parametrize("threads", [1, 2])
def test_outputs_are_those_of_onnxruntime(
    name: str, threads: int, built: Built, model_file: Callable[[str], Path]
) -> None:
    instance = api.load(built(name), threads=threads)
    expected = reference(source_of(name, model_file))
    for inputs in cases.cases(name):
        for given in (inputs, cases.noise_like(inputs, seed=1)):
            found = instance.run(given)
            assert_alike(found, expected(given))
            again = instance.run(given)
            for output, array in found.items():
                assert array.tobytes() == again[output].tobytes(), f"{output} changed its bits"


@pytest.mark.parametrize(
    "fact",
    [
        pytest.param(fact, id=fact.name, marks=pytest.mark.xdist_group(fact.model))
        for fact in golden.FACTS
    ],
)
def test_a_golden_fact_holds(fact: golden.Fact, built: Built) -> None:
    golden.check(fact, api.load(built(fact.model)).run)


@pytest.mark.parametrize("name", grouped(sorted(NATIVE)))
def test_nothing_is_interpreted(name: str, built: Built) -> None:
    assert api.load(built(name)).is_native
