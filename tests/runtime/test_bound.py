"""A bound run gives the bits of ``Instance.run``, run after run, and takes nothing meanwhile."""

from __future__ import annotations

import ctypes
import gc
import pathlib
import sys
import threading
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import castiron
from castiron import errors
from castiron.executable import abi, reader
from castiron.runtime import bound, pool
from castiron.runtime.instance import Device
from castiron.tensor import dtype as dtypes
from castiron.tensor import elements
from tests import built
from tests.loader import models

Arrays = Mapping[str, np.ndarray]
Build = Callable[[onnx.ModelProto], castiron.Instance]
BYTES = [dtype for dtype in dtypes.ALL if dtype.size_bytes]


@pytest.fixture(scope="module", params=[1, 2])
def network(request: pytest.FixtureRequest, folder: pathlib.Path) -> castiron.Instance:
    """Convolutions over [n, 3, h, w], in an arena, on one thread and on two."""
    threads = request.param
    return built.loaded(built.network(), folder, name=f"network{threads}", threads=threads)


@pytest.fixture
def build(folder: pathlib.Path, request: pytest.FixtureRequest) -> Build:
    return lambda model: built.loaded(model, folder, name=request.node.originalname)


def drawn(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def bind(instance: castiron.Instance, inputs: Arrays) -> bound.BoundRun:
    """A run for inputs of these shapes; a test that binds nothing would show nothing."""
    made = instance.bind({name: value.shape for name, value in inputs.items()})
    assert made is not None
    return made


def bits(outputs: Mapping[str, Any]) -> dict[str, bytes]:
    return {name: value.tobytes() for name, value in outputs.items()}


def answers(made: bound.BoundRun, inputs: Arrays) -> dict[str, bytes]:
    """What a bound run makes of these inputs."""
    for name, value in inputs.items():
        made.inputs[name][:] = value.tobytes()
    made.run()
    return bits(made.outputs)


def check(instance: castiron.Instance, inputs: Arrays) -> None:
    """Three runs, each into memory full of something else, are ``Instance.run`` bit for bit."""
    wanted = instance.run(inputs)
    made = bind(instance, inputs)
    assert made.output_shapes == {name: value.shape for name, value in wanted.items()}
    for before in (0x00, 0xFF, 0xA5):
        for view in made.outputs.values():
            view[:] = bytes([before]) * len(view)
        assert answers(made, inputs) == bits(wanted)


@pytest.mark.parametrize("rows", [0, 1, 2, 7, 333])
def test_a_bound_run_is_a_run_without_an_arena(added: castiron.Instance, rows: int) -> None:
    check(added, {"x0": drawn(1, rows, 4), "x1": drawn(2, rows, 4)})


@pytest.mark.parametrize("shape", [(1, 3, 8, 8), (2, 3, 5, 9), (1, 3, 1, 1), (0, 3, 4, 4)])
def test_a_bound_run_is_a_run_with_an_arena(
    network: castiron.Instance, shape: tuple[int, ...]
) -> None:
    check(network, {"x": drawn(3, *shape)})
    assert network._device.pool.usage().allocated == 0


def test_every_dtype_passes_through_bound_memory(build: Build) -> None:
    nodes, inputs = [], []
    for dtype in BYTES:
        inputs.append(models.value(dtype.name, ("n", 3), dtype.onnx_code))
        nodes.append(models.node("Concat", [dtype.name] * 2, [f"{dtype}_twice"], axis=0))
    instance = build(models.model(nodes, inputs, [f"{dtype}_twice" for dtype in BYTES]))
    for rows in (0, 1, 5):
        numbers = np.random.default_rng(rows).integers(0, 2, (rows, 3))
        check(instance, {d.name: numbers.astype(elements.numpy_dtype(d)) for d in BYTES})


def test_scalars_are_bound(build: Build) -> None:
    instance = build(built.one_op("Exp", ()))
    check(instance, {"x0": np.array(0.5, np.float32)})
    assert bind(instance, {"x0": np.array(0, np.float32)}).output_shapes == {"y": ()}


def test_no_kernel_leaves_a_byte_of_its_output_as_it_was(build: Build) -> None:
    nodes = [
        models.node("Softmax", ["x"], ["softmax"]),
        models.node("Transpose", ["x"], ["transposed"], perm=[2, 0, 1]),
        models.node("ReduceMean", ["x"], ["mean"], axes=[1]),
        models.node("ArgMax", ["x"], ["largest"], axis=2),
        models.node("CumSum", ["x", "axis"], ["sums"]),
        models.node("Pad", ["x", "pads"], ["padded"]),
        models.node("Tile", ["x", "repeats"], ["tiled"]),
        models.node("Slice", ["x", "starts", "ends", "axes"], ["sliced"]),
        models.node("Split", ["x"], ["first", "second"], axis=1),
        models.node("LayerNormalization", ["x", "scale"], ["normal"], axis=2),
        models.node("MatMul", ["x", "weights"], ["product"]),
        models.node("TopK", ["x", "k"], ["values", "places"], axis=2),
        models.node("Trilu", ["x"], ["upper"]),
        models.node("MaxPool", ["x"], ["pooled"], kernel_shape=[3], pads=[1, 1], strides=[2]),
        models.node("Shape", ["x"], ["shape"]),
        models.node("ConstantOfShape", ["shape"], ["zeros"]),
    ]
    constants = {
        "axis": np.array(1), "pads": np.array([0, 1, 2, 0, 0, 3]), "repeats": np.array([1, 2, 3]),
        "starts": np.array([1]), "ends": np.array([6]), "axes": np.array([2]),
        "scale": drawn(1, 7), "weights": drawn(2, 7, 5), "k": np.array([3]),
    }  # fmt: skip
    names = [name for node in nodes for name in node.output]
    model = models.model(nodes, [models.value("x", ["n", 6, 7])], names, constants)
    instance = build(model)
    for rows in (0, 1, 3):
        check(instance, {"x": drawn(rows, rows, 6, 7)})


def test_indices_of_all_kinds_leave_no_byte_as_it_was(build: Build) -> None:
    int64 = onnx.TensorProto.INT64
    nodes = [
        models.node("Gather", ["x", "i"], ["gathered"]),
        models.node("OneHot", ["i", "depth", "pair"], ["hot"]),
        models.node("Unsqueeze", ["i", "last"], ["rows"]),
        models.node("GatherND", ["x", "rows"], ["found"]),
        models.node("ScatterND", ["x", "rows", "gathered"], ["scattered"]),
    ]
    constants = {
        "depth": np.array(4), "pair": np.array([-1, 2], np.float32), "last": np.array([1]),
    }  # fmt: skip
    names = ["gathered", "hot", "found", "scattered"]
    inputs = [models.value("x", ["n", 3]), models.value("i", ["k"], int64)]
    instance = build(models.model(nodes, inputs, names, constants))
    for places in ([0, 1], [-1, 0], [10**12, -(10**12)], []):
        check(instance, {"x": drawn(4, 2, 3), "i": np.array(places, np.int64)})


def test_where_nothing_can_be_gathered_nothing_of_another_run_appears(build: Build) -> None:
    # One copy goes straight to an output, one through an arena that another run has left.
    nodes = [
        models.node("Gather", ["x", "i"], ["rows"]),
        models.node("Transpose", ["rows"], ["turned"], perm=[1, 0]),
        models.node("MatMul", ["turned", "rows"], ["products"]),
    ]
    inputs = [models.value("x", ["n", 3]), models.value("i", ["k"], onnx.TensorProto.INT64)]
    instance = build(models.model(nodes, inputs, ["rows", "products"]))
    full = {"x": drawn(1, 4, 3), "i": np.arange(4)}
    none = {"x": drawn(1, 0, 3), "i": np.arange(4)}
    made = bind(instance, none)
    answers(bind(instance, full), full)
    assert answers(made, none) == {"rows": bytes(48), "products": bytes(36)}
    check(instance, none)


def test_outputs_are_zero_before_the_first_run(added: castiron.Instance) -> None:
    for seed in range(8):
        x = drawn(seed, 30, 4)
        made = bind(added, {"x0": x, "x1": x})
        assert bytes(made.outputs["y"]) == bytes(480)
        answers(made, {"x0": x, "x1": x})


def test_outputs_that_are_inputs_constants_or_each_other_have_memory_of_their_own(
    build: Build,
) -> None:
    nodes = [
        models.node("Identity", ["x"], ["same"]),
        models.node("Identity", ["c"], ["constant"]),
        models.node("Reshape", ["x", "shape"], ["flat"]),
        models.node("Abs", ["x"], ["a"]),
        models.node("Identity", ["a"], ["b"]),
        models.node("Neg", ["a"], ["used"]),
    ]
    constants = {"c": np.arange(3, dtype=np.float32), "shape": np.array([-1])}
    names = ["same", "constant", "flat", "a", "b", "used"]
    instance = build(models.model(nodes, [models.value("x", ["n", 2])], names, constants))
    x = drawn(5, 3, 2)
    check(instance, {"x": x})
    made = bind(instance, {"x": x})
    wanted = answers(made, {"x": x})
    for view in made.outputs.values():
        view[:] = bytes([7]) * len(view)
    assert bytes(made.inputs["x"]) == x.tobytes()
    made.run()
    assert bits(made.outputs) == wanted


def test_an_input_that_is_an_output_by_name_has_memory_on_both_sides(build: Build) -> None:
    nodes = [models.node("Neg", ["x"], ["y"])]
    instance = build(models.model(nodes, [models.value("x", ["n"])], ["x", "y"]))
    x = drawn(6, 5)
    check(instance, {"x": x})
    made = bind(instance, {"x": x})
    assert answers(made, {"x": x}) == bits({"x": x, "y": -x})
    made.outputs["x"][:] = bytes(20)
    assert bytes(made.inputs["x"]) == x.tobytes()


def test_an_input_that_nothing_reads_is_there_to_be_filled(build: Build) -> None:
    inputs = [models.value("unread", ["n", 2]), models.value("x", [3])]
    instance = build(models.model([models.node("Neg", ["x"], ["y"])], inputs, ["y"]))
    check(instance, {"unread": drawn(1, 4, 2), "x": drawn(2, 3)})
    assert len(bind(instance, {"unread": drawn(1, 4, 2), "x": drawn(2, 3)}).inputs["unread"]) == 32


def test_runs_of_two_shapes_take_turns_with_ever_new_data(network: castiron.Instance) -> None:
    shapes = [(1, 3, 6, 6), (2, 3, 4, 7)]
    made = [bind(network, {"x": np.zeros(shape, np.float32)}) for shape in shapes]
    for seed in range(60):
        x = drawn(seed, *shapes[seed % 2])
        assert answers(made[seed % 2], {"x": x}) == bits(network.run({"x": x}))


def test_inputs_that_are_not_written_again_stay(added: castiron.Instance) -> None:
    x = drawn(1, 2, 4)
    made = bind(added, {"x0": x, "x1": x})
    answers(made, {"x0": x, "x1": x})
    for seed in range(5):
        other = drawn(seed, 2, 4)
        assert answers(made, {"x1": other}) == bits({"y": x + other})


def test_threads_with_bound_runs_of_their_own_do_not_meet(network: castiron.Instance) -> None:
    cases = [{"x": drawn(seed, 1, 3, 5 + seed, 6)} for seed in range(4)]
    wanted = [bits(network.run(case)) for case in cases]
    right: list[bool] = []

    def repeat(at: int) -> None:
        made = bind(network, cases[at])
        right.append(all(answers(made, cases[at]) == wanted[at] for _ in range(100)))

    workers = [threading.Thread(target=repeat, args=(at,)) for at in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert right == [True] * 4


def test_bound_memory_is_bytes_of_the_right_size_aligned_for_vectors(build: Build) -> None:
    inputs = [models.value("x", ["n", 3]), models.value("b", ["n", 3], onnx.TensorProto.BOOL)]
    nodes = [models.node("Where", ["b", "x", "x"], ["y"]), models.node("Not", ["b"], ["z"])]
    made = build(models.model(nodes, inputs, ["y", "z"])).bind({"x": (5, 3), "b": (5, 3)})
    assert made is not None
    views = [*made.inputs.values(), *made.outputs.values()]
    assert [len(view) for view in views] == [60, 15, 60, 15]
    for view in views:
        assert (view.format, view.contiguous, view.readonly) == ("B", True, False)
        assert ctypes.addressof(ctypes.c_char.from_buffer(view)) % 64 == 0
    assert 150 < made.size_bytes < 1500


def test_a_bound_run_outlives_the_binding_that_a_cache_forgets(network: castiron.Instance) -> None:
    x = drawn(9, 1, 3, 3, 200)
    made = bind(network, {"x": x})
    wanted = answers(made, {"x": x})
    for width in range(1, 80):
        network.run({"x": drawn(0, 1, 3, 2, width)})
    gc.collect()
    assert (3, 200) not in [key[1:] for key in network._caches[0]._kept]
    assert answers(made, {"x": x}) == wanted


def test_views_outlive_the_bound_run_that_they_came_from(added: castiron.Instance) -> None:
    x = drawn(1, 2, 4)
    made = bind(added, {"x0": x, "x1": x})
    answers(made, {"x0": x, "x1": x})
    view = made.outputs["y"]
    del made
    gc.collect()
    assert bytes(view) == (x + x).tobytes()


def test_ten_thousand_runs_take_no_memory(network: castiron.Instance) -> None:
    made = bind(network, {"x": drawn(1, 1, 3, 2, 2)})

    def repeat() -> int:
        for _ in range(10_000):
            made.run()
        return sys.getallocatedblocks()

    made.run()
    mapped = network._device.pool.usage().mapped
    before = sys.getallocatedblocks()
    assert repeat() - before < 50
    usage = network._device.pool.usage()
    assert (usage.mapped, usage.allocated) == (mapped, 0)


def test_a_run_is_a_handful_of_bytecodes(
    added: castiron.Instance, network: castiron.Instance
) -> None:
    x = np.zeros((1, 4), np.float32)
    assert 0 < count_bytecodes(bind(added, {"x0": x, "x1": x}).run) <= 15
    assert 0 < count_bytecodes(bind(network, {"x": drawn(1, 1, 3, 4, 4)}).run) <= 100


def count_bytecodes(call: Callable[[], None]) -> int:
    """Python instructions of a second call, of all that it calls too, except the pool's."""
    call()  # finds the pool without a warm block, perhaps
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        if frame.f_code.co_filename.endswith("pool.py"):
            return None
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    traced = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(traced)
    return count


def test_a_run_that_gets_no_arena_says_so_and_succeeds_once_there_is_room(
    network: castiron.Instance,
) -> None:
    size = 2 << 20
    small = pool.Pool(slab_bytes=size, start_bytes=0, limit_bytes=size)
    file = reader.open(network.path)
    limited = castiron.Instance(file, Device(small, 1, None), lambda _: pytest.fail("native"))
    x = drawn(1, 1, 3, 4, 4)
    made = bind(limited, {"x": x})
    with small.rent(size), pytest.raises(errors.ResourceError, match="limit"):
        made.run()
    assert answers(made, {"x": x}) == bits(network.run({"x": x}))
    assert small.usage().allocated == 0


def test_a_bound_run_tells_where_it_is_as_every_run_does(folder: pathlib.Path) -> None:
    instance = built.loaded(built.network(), folder, name="telling")
    word = ctypes.c_int64(77)
    instance.crash_address = ctypes.addressof(word)
    made = bind(instance, {"x": drawn(1, 1, 3, 4, 4)})
    made.run()
    assert word.value == abi.NO_STEP


@pytest.mark.parametrize("rows, is_bound", [(1365, True), (1366, False), (10**9, False)])
def test_inputs_and_outputs_up_to_64_kilobytes_are_bound(
    added: castiron.Instance, rows: int, is_bound: bool
) -> None:
    # Two inputs and an output of 16 bytes a row.
    assert (added.bind({"x0": (rows, 4), "x1": (rows, 4)}) is not None) == is_bound


def test_a_large_output_of_a_small_input_is_not_bound(build: Build) -> None:
    nodes = [models.node("Expand", ["x", "shape"], ["y"])]
    constants = {"shape": np.array([20_000, 1])}
    instance = build(models.model(nodes, [models.value("x", ["n"])], ["y"], constants))
    assert instance.bind({"x": (1,)}) is None
    assert instance.bind({"x": (0,)}) is not None


def test_models_with_interpreted_steps_are_not_bound(build: Build) -> None:
    assert build(built.interpreted_between()).bind({"x": (3,)}) is None


def test_strings_are_not_bound(build: Build) -> None:
    inputs = [models.value("text", ["n"], onnx.TensorProto.STRING), models.value("x", [3])]
    instance = build(models.model([models.node("Neg", ["x"], ["y"])], inputs, ["y"]))
    assert instance.is_native
    assert instance.bind({"text": (2,), "x": (3,)}) is None


@pytest.mark.parametrize(
    "shapes, message",
    [
        ({}, "found: missing x0, x1"),
        ({"x0": (2, 4), "x1": (2, 4), "z": (1,)}, "found: unknown z"),
        ({"x0": (-1, 4), "x1": (-1, 4)}, r"inputs.x0: expected x0: .*, found shape \[-1, 4\]$"),
        ({"x0": (2**63, 4), "x1": (2**63, 4)}, r"inputs.x0: expected .* shape \[9223372036854"),
        ({"x0": (0, 2**63), "x1": (0, 4)}, r"inputs.x0: expected .* shape \[0, 9223372036854"),
    ],
    ids=str,
)
def test_shapes_that_no_array_has_and_wrong_names_are_refused(
    added: castiron.Instance, shapes: dict[str, tuple[int, ...]], message: str
) -> None:
    with pytest.raises(errors.InputError, match=message):
        added.bind(shapes)
    assert added.bind({"x0": (1, 4), "x1": (1, 4)}) is not None


def outcome(call: Callable[[], dict[str, bytes]]) -> dict[str, bytes] | str:
    """What the call gives, or the words in which it refuses."""
    try:
        return call()
    except errors.InputError as refused:
        return str(refused)


SHAPES = st.lists(st.sampled_from([0, 1, 2, 4]), max_size=3).map(tuple)


@settings(deadline=None, max_examples=60)
@given(first=SHAPES, second=SHAPES)
def test_shapes_that_do_not_fit_are_refused_as_run_refuses_them(
    added: castiron.Instance, first: tuple[int, ...], second: tuple[int, ...]
) -> None:
    inputs = {"x0": np.ones(first, np.float32), "x1": np.ones(second, np.float32)}

    def run() -> dict[str, bytes]:
        return bits(added.run(inputs))

    def run_bound() -> dict[str, bytes]:
        return answers(bind(added, inputs), inputs)

    assert outcome(run_bound) == outcome(run)


def test_a_relation_that_the_model_relies_on_is_checked_when_binding(build: Build) -> None:
    nodes = [
        models.node("Concat", ["a", "b"], ["wide"], axis=1),
        models.node("MatMul", ["wide", "c"], ["y"]),
    ]
    shapes: dict[str, built.Shape] = {"a": (2, "m"), "b": (2, "n"), "c": ("k", 3)}
    instance = build(
        models.model(nodes, [models.value(name, shape) for name, shape in shapes.items()], ["y"])
    )
    check(instance, {"a": drawn(1, 2, 3), "b": drawn(2, 2, 4), "c": drawn(3, 7, 3)})
    with pytest.raises(errors.InputError, match="do not fit together"):
        instance.bind({"a": (2, 3), "b": (2, 4), "c": (6, 3)})
