"""Running a loaded executable: what it accepts, what it refuses in words, and who may run it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import castiron
from castiron import errors
from castiron.runtime import lane
from tests import built
from tests.loader import models


@pytest.fixture(scope="module")
def network(folder: pathlib.Path) -> castiron.Instance:
    return built.loaded(built.network(), folder, name="network", threads=2)


def ones(*shape: int, dtype: str = "float32") -> np.ndarray:
    return np.ones(shape, dtype)


def image(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def answering(
    future: asyncio.Future[dict[str, Any] | None],
) -> Callable[[dict[str, Any] | None, Exception | None], None]:
    """What a run on a lane calls when it is over."""

    def on_done(outputs: dict[str, Any] | None, error: Exception | None) -> None:
        assert error is None
        future.set_result(outputs)

    return on_done


def test_outputs_come_by_name_as_arrays(added: castiron.Instance) -> None:
    (name, y), *rest = added.run({"x0": ones(2, 4), "x1": ones(2, 4)}).items()
    assert (name, rest) == ("y", [])
    np.testing.assert_array_equal(y, np.full((2, 4), 2, np.float32))


def test_outputs_belong_to_the_caller_alone(added: castiron.Instance) -> None:
    inputs = {"x0": ones(2, 4), "x1": ones(2, 4)}
    first = added.run(inputs)["y"]
    first[:] = 7
    assert added.run(inputs)["y"].max() == 2
    assert first.min() == 7
    assert inputs["x0"].max() == 1


def test_an_instance_says_what_it_is(added: castiron.Instance) -> None:
    described = repr(added.signature)
    assert described == "(x0: float32[n, 4], x1: float32[n, 4]) -> (y: float32[n, 4])"
    assert added.is_native
    assert len(added.digest) == 64


@pytest.mark.parametrize(
    "inputs, message",
    [
        ({}, "inputs: expected inputs x0: .*, x1: .*, found: missing x0, x1"),
        ({"x0": ones(2, 4)}, "found: missing x1"),
        (
            {"x0": ones(2, 4), "z": ones(2, 4)},
            "expected inputs x0: .*, found: missing x1; unknown z",
        ),
        ({"x0": ones(2, 4), "x1": ones(2, 4), "z": 1}, "found: unknown z"),
        (
            {"x0": ones(2, 4), "x1": ones(2, 4, dtype="float64")},
            "inputs.x1: expected dtype float32, found float64",
        ),
        (
            {"x0": ones(4), "x1": ones(2, 4)},
            r"inputs.x0: expected x0: float32\[n, 4\], found shape \[4\]$",
        ),
        (
            {"x0": ones(2, 5), "x1": ones(2, 4)},
            r"inputs.x0: expected x0: float32\[n, 4\], found shape \[2, 5\] with n=2",
        ),
        (
            {"x0": ones(2, 4), "x1": ones(3, 4)},
            r"inputs.x1: expected x1: float32\[n, 4\], found shape \[3, 4\] with n=2",
        ),
        ({"x0": [[1.0]], "x1": ones(1, 4)}, "inputs.x0: expected a numpy array or a buffer"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_inputs_that_do_not_fit_are_refused_in_words(
    added: castiron.Instance, inputs: dict[str, Any], message: str
) -> None:
    with pytest.raises(errors.InputError, match=message):
        added.run(inputs)
    # And a refusal leaves nothing behind.
    assert added.run({"x0": ones(1, 4), "x1": ones(1, 4)})["y"].max() == 2


def test_a_relation_that_the_model_relies_on_is_checked(folder: pathlib.Path) -> None:
    nodes = [
        models.node("Concat", ["a", "b"], ["wide"], axis=1),
        models.node("MatMul", ["wide", "c"], ["y"]),
    ]
    shapes: dict[str, built.Shape] = {"a": (2, "m"), "b": (2, "n"), "c": ("k", 3)}
    inputs = [models.value(name, shape) for name, shape in shapes.items()]
    instance = built.loaded(models.model(nodes, inputs, ["y"]), folder, name="relation")
    given = {"a": ones(2, 3), "b": ones(2, 4)}
    assert instance.run({**given, "c": ones(7, 3)})["y"].max() == 7
    with pytest.raises(
        errors.InputError, match=r"do not fit together: .*(6 against 7|7 against 6)"
    ):
        instance.run({**given, "c": ones(6, 3)})


def test_scalars_and_empty_tensors_run(folder: pathlib.Path) -> None:
    scalar = built.loaded(built.one_op("Exp", ()), folder, name="scalar")
    y = scalar.run({"x0": np.array(0.0, np.float32)})["y"]
    assert (y.shape, float(y)) == ((), 1.0)
    assert scalar.run({"x0": np.float32(0.0)})["y"] == 1.0
    with_rows = built.loaded(built.one_op("Exp", ("n", 3)), folder, name="rows")
    assert with_rows.run({"x0": ones(0, 3)})["y"].shape == (0, 3)


def test_a_network_runs_on_no_pictures(network: castiron.Instance) -> None:
    assert network.run({"x": ones(0, 3, 8, 8)})["y"].shape == (0, 5)


def test_threads_of_the_caller_and_of_ours_change_no_bit(
    network: castiron.Instance, folder: pathlib.Path
) -> None:
    alone = castiron.load(network.path, threads=1)
    cases = [image(seed, 1 + seed % 3, 3, 5 + seed, 9) for seed in range(8)]
    wanted = [alone.run({"x": x})["y"].tobytes() for x in cases]

    def answers(start: int) -> list[bool]:
        order = [(start + step) % len(cases) for step in range(40)]
        return [network.run({"x": cases[at]})["y"].tobytes() == wanted[at] for at in order]

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert all(all(found) for found in pool.map(answers, range(8)))


def test_many_shapes_in_many_threads_forget_the_oldest_and_fail_never(
    added: castiron.Instance,
) -> None:
    def run(start: int) -> None:
        for n in range(start, start + 400):
            x = ones(n % 777, 4)
            assert added.run({"x0": x, "x1": x})["y"].shape == x.shape

    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        list(pool.map(run, range(0, 600, 100)))


def test_a_thousand_widths_take_no_more_memory_than_ten(network: castiron.Instance) -> None:
    widths = np.random.default_rng(1).permutation(np.arange(4, 1004))
    usage = network._device.pool.usage

    def run(width: int) -> None:
        network.run({"x": np.zeros((1, 3, 2, width), np.float32)})

    run(1004)
    for width in widths[:10]:
        run(int(width))
    early = usage().mapped
    for width in widths[10:]:
        run(int(width))
    assert usage().mapped == early
    assert usage().allocated == 0
    assert [len(cache) for cache in network._caches] == [64]
    assert len(network._learned) <= 256


def test_closing_the_file_takes_nothing_from_those_who_run(folder: pathlib.Path) -> None:
    instance = built.loaded(built.network(), folder, name="closed")
    x = image(1, 1, 3, 6, 6)
    before = instance.run({"x": x})["y"]
    instance.close()
    np.testing.assert_array_equal(instance.run({"x": x})["y"], before)
    instance.close()


def test_a_file_that_is_replaced_goes_on_running_as_it_was(folder: pathlib.Path) -> None:
    instance = built.loaded(built.one_op("Abs", ("n",)), folder, name="replaced")
    built.loaded(built.one_op("Neg", ("n",)), folder, name="replaced")
    assert instance.run({"x0": ones(1)})["y"] == 1
    pathlib.Path(instance.path).unlink()
    assert instance.run({"x0": ones(1)})["y"] == 1


def test_a_profile_times_every_step_and_changes_no_answer(network: castiron.Instance) -> None:
    x = image(2, 1, 3, 16, 16)
    wanted = network.run({"x": x})["y"]
    (ticks,) = network.profile({"x": x})
    assert len(ticks) == network._program.stages[0].num_steps  # type: ignore[union-attr]
    assert all(tick > 0 for tick in ticks)
    np.testing.assert_array_equal(network.run({"x": x})["y"], wanted)


def test_the_arena_grows_with_the_picture(network: castiron.Instance) -> None:
    small, large = (network.arena_bytes({"x": ones(1, 3, n, n)}) for n in (8, 64))
    # Eight channels of float32, two of them alive at once at most.
    assert 64 * 64 * 8 * 4 <= large <= 4 * 64 * 64 * 8 * 4 + 500_000
    assert small < large


def test_symbols_are_read_from_the_inputs(network: castiron.Instance) -> None:
    assert network.symbols({"x": ones(2, 3, 7, 9)}) == {"n": 2, "h": 7, "w": 9}


def test_a_run_on_a_lane_answers_on_the_loop(network: castiron.Instance) -> None:
    x = image(3, 2, 3, 12, 12)
    wanted = network.run({"x": x})["y"]

    async def start() -> list[dict[str, Any] | None]:
        loop = asyncio.get_running_loop()
        made = lane.Lane(network.code, loop)
        futures: list[asyncio.Future[dict[str, Any] | None]] = []
        for _ in range(5):
            futures.append(loop.create_future())
            network.start({"x": x}, made, answering(futures[-1]))
        found = await asyncio.gather(*futures)
        made.stop()
        return list(found)

    found = asyncio.run(start())
    assert len(found) == 5
    for outputs in found:
        assert outputs is not None
        np.testing.assert_array_equal(outputs["y"], wanted)
    assert network._device.pool.usage().allocated == 0


def test_a_start_that_a_lane_refuses_gives_its_arena_back(network: castiron.Instance) -> None:
    made = lane.Lane(network.code)
    made.stop()
    with pytest.raises(errors.ResourceError, match="lane"):
        network.start({"x": ones(1, 3, 8, 8)}, made, lambda *_: None)
    assert network._device.pool.usage().allocated == 0


def test_interpreted_steps_run_between_native_ones(folder: pathlib.Path) -> None:
    instance = built.loaded(built.interpreted_between(), folder, name="between")
    assert not instance.is_native
    assert [type(stage).__name__ for stage in instance._program.stages] == [
        "NativeStage",
        "InterpretedStage",
        "NativeStage",
    ]
    for values in ([1, -1, 2], [-1, -2], [3], []):
        x = np.array(values, np.float32)
        np.testing.assert_array_equal(instance.run({"x": x})["y"], 2 * x[x > 0])
    with pytest.raises(errors.ModelNotReady, match="interpreted steps, which cannot run on a lane"):
        instance.start({"x": ones(1)}, lane.Lane(instance.code), lambda *_: None)


def test_outputs_no_node_makes_are_copies_also_beside_interpreted_ones(
    folder: pathlib.Path,
) -> None:
    nodes = [
        models.node("Abs", ["x"], ["a"]),
        models.node("NonZero", ["a"], ["y"]),
        models.node("Identity", ["x"], ["same"]),
        models.node("Identity", ["c"], ["constant"]),
    ]
    names = ["y", "same", "constant"]
    constants = {"c": np.arange(3, dtype=np.float32)}
    model = models.model(nodes, [models.value("x", ["n"])], names, constants)
    instance = built.loaded(model, folder, name="loose")
    assert not instance.is_native
    x = np.array([0, -1], np.float32)
    found = instance.run({"x": x})
    assert found["y"].tolist() == [[1]]
    found["same"][:] = 5
    assert x.tolist() == [0, -1]
    assert found["constant"].tolist() == [0, 1, 2]


def test_outputs_that_are_inputs_constants_or_each_other_are_copies(folder: pathlib.Path) -> None:
    nodes = [
        models.node("Identity", ["x"], ["same"]),
        models.node("Identity", ["c"], ["constant"]),
        models.node("Reshape", ["x", "shape"], ["flat"]),
        models.node("Abs", ["x"], ["a"]),
        models.node("Identity", ["a"], ["b"]),
    ]
    constants = {"c": np.arange(3, dtype=np.float32), "shape": np.array([-1])}
    names = ["same", "constant", "flat", "a", "b"]
    model = models.model(nodes, [models.value("x", ["n", 2])], names, constants)
    instance = built.loaded(model, folder, name="copies")
    x = np.array([[-1, 2]], np.float32)
    found = instance.run({"x": x})
    expected = {"same": x, "constant": constants["c"], "flat": x[0], "a": abs(x), "b": abs(x)}
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)
        found[name][:] = 99
    assert x.min() == -1
    again = instance.run({"x": x})
    assert again["constant"].tolist() == [0, 1, 2]
    assert again["b"].max() == 2
