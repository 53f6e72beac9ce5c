"""Measured processes: they answer with numbers that can be true, and fail aloud."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from bench import inputs, process, worker
from zoo import cases


@pytest.fixture
def alexa(
    model_file: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Path, Path]:
    model, _ = model_file("alexa"), model_file("beckett.wav")
    given = cases.cases("alexa")[0]
    monkeypatch.setenv("CASTIRON_CACHE", str(tmp_path))
    return model, inputs.folder("alexa", given)


@pytest.mark.realmodel
def test_latency_is_measured_in_milliseconds(alexa: tuple[Path, Path]) -> None:
    answer = process.ask("latency", "onnxruntime", *alexa, 1, 5)
    assert 0.001 < answer["processor_ms"] < 100
    assert answer["wall_ms"] <= answer["median_ms"]


@pytest.mark.realmodel
def test_the_first_output_comes_after_the_start(alexa: tuple[Path, Path]) -> None:
    begin = time.perf_counter()
    seconds = process.first_output_s("onnxruntime", *alexa)
    assert 0.01 < seconds <= time.perf_counter() - begin


@pytest.mark.realmodel
def test_memory_only_grows(alexa: tuple[Path, Path]) -> None:
    answer = process.ask("memory", "onnxruntime", *alexa, 1, 3)
    assert 1e6 < answer["before_bytes"] <= answer["once_bytes"] <= answer["peak_bytes"]


def test_a_failing_process_says_why(tmp_path: Path) -> None:
    with pytest.raises(process.WorkerError, match=r"missing\.onnx"):
        process.ask("first", "onnxruntime", tmp_path / "missing.onnx", tmp_path, 1)


def test_a_worker_is_pinned_to_as_many_cpus_as_it_has_threads() -> None:
    code = "import os; print('{\"cpus\": %d}' % len(os.sched_getaffinity(0)))"
    assert process._answer(["-c", code], threads=1) == {"cpus": 1}


def test_inputs_come_back_as_they_were_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CASTIRON_CACHE", str(tmp_path))
    given: cases.Inputs = {
        "a:0": np.arange(6, dtype=np.float32).reshape(2, 3),
        "ids": np.asarray([[1, -2]], np.int64),
        "mask": np.asarray([True, False]),
        "rate": np.asarray(7, np.int64),
    }
    place = str(inputs.folder("some", given))
    arrays, buffers = worker._arrays(place), worker._buffers(place)
    for name, array in given.items():
        assert arrays[name].dtype == array.dtype
        assert np.array_equal(arrays[name], array)
        assert buffers[name].tolist() == array.tolist()
