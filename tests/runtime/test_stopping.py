"""A run on a lane that nobody waits for any more: it is stopped, and the next one is whole."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import castiron
from bench.behaviour import models
from castiron import errors
from castiron.runtime import lane

X = {"x": np.full((1, 1), 3, np.float32)}
NUM_ROWS = 10
LONG = {"x": np.full((NUM_ROWS, 1), 3, np.float32)}
Ended = list[tuple[dict[str, Any] | None, Exception | None]]


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[castiron.Instance]:
    """A fifth of a second of a core for each row, over eighty steps and more."""
    folder = tmp_path_factory.mktemp("slow")
    castiron.build(models.save(folder, ["slow"])["slow"], out=folder / "slow.cast")
    instance = castiron.load(folder / "slow.cast", threads=1)
    yield instance
    instance.close()


def begin(
    instance: castiron.Instance, on: lane.Lane, ended: Ended, inputs: dict[str, np.ndarray] = X
) -> Any:
    return instance.start(inputs, on, lambda outputs, error: ended.append((outputs, error)))


def test_a_run_that_waits_is_stopped_before_it_begins(slow: castiron.Instance) -> None:
    own, ended = lane.Lane(slow.code), Ended()
    begin(slow, own, ended, LONG)
    begin(slow, own, ended)()
    assert own.drain(60)
    (outputs, none), (nothing, error) = ended
    assert none is None
    assert outputs is not None
    assert outputs["y"].tolist() == [[3.0]] * NUM_ROWS
    assert nothing is None
    assert isinstance(error, errors.ModelNotReady)
    assert own.stop(5)


def test_a_run_under_way_is_stopped_between_its_steps(slow: castiron.Instance) -> None:
    slow.run(X)
    begun_s = time.process_time()
    slow.run(X)
    whole_s = NUM_ROWS * (time.process_time() - begun_s)
    own, ended = lane.Lane(slow.code), Ended()
    stop = begin(slow, own, ended, LONG)
    time.sleep(0.01)
    begun_s = time.process_time()
    stop()
    assert own.drain(20)
    assert time.process_time() - begun_s < whole_s / 2
    assert isinstance(ended[0][1], errors.ModelNotReady)
    assert own.stop(5)


def test_the_run_after_a_stopped_one_is_whole(slow: castiron.Instance) -> None:
    own, ended = lane.Lane(slow.code), Ended()
    begin(slow, own, ended)()
    assert own.drain(20)
    begin(slow, own, ended)
    assert own.drain(20)
    outputs, error = ended[1]
    assert error is None
    assert outputs is not None
    assert outputs["y"].tolist() == [[3.0]]
    assert own.stop(5)
