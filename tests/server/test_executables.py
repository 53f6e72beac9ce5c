"""``castiron serve`` from its command line over real ONNX files, built, mapped and run."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tritonclient.http as triton
from onnx import TensorProto, helper

pytestmark = pytest.mark.xdist_group("executables")  # one server, and the last test ends it

WEIGHTS = np.random.default_rng(7).standard_normal((8, 3)).astype(np.float32)


def save(path: Path, nodes: list[Any], dims: list[Any], out_dims: list[Any]) -> None:
    """A model from x to y with the weights w, at this path."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, dims)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, out_dims)],
        [onnx.numpy_helper.from_array(WEIGHTS, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    path.parent.mkdir(parents=True)
    onnx.save(model, path)


@contextlib.contextmanager
def served(folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], Any]]:
    """The process and a client, once every version has settled."""
    command = [sys.executable, "-m", "castiron", "serve", str(folder / "models"), "--port", "0",
               "--cache-dir", str(folder / "cache"), "--threads", "2"]  # fmt: skip
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log)
    assert process.stdout is not None
    address = process.stdout.readline().decode().strip().removeprefix("serving on http://")
    client = triton.InferenceServerClient(address, concurrency=4)
    try:
        end = time.monotonic() + 120
        while any(entry["state"] == "LOADING" for entry in client.get_model_repository_index()):
            assert time.monotonic() < end, (folder / "log").read_text()
            time.sleep(0.1)
        yield process, client
    finally:
        client.close()
        if process.poll() is None:
            process.kill()
        process.wait(20)
        process.stdout.close()


def given(values: np.ndarray) -> list[Any]:
    made = triton.InferInput("x", list(values.shape), "FP32")
    made.set_data_from_numpy(values)
    return [made]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A native model, one with an interpreted op, and a broken source."""
    folder = tmp_path_factory.mktemp("executables")
    matmul = [
        helper.make_node("MatMul", ["x", "w"], ["t"]),
        helper.make_node("Relu", ["t"], ["y"]),
    ]
    save(folder / "models/dense/1/model.onnx", matmul, ["rows", 8], ["rows", 3])
    save(
        folder / "models/determinant/1/model.onnx",
        [helper.make_node("Neg", ["x"], ["t"]), helper.make_node("Det", ["t"], ["y"])],
        ["n", 3, 3],
        ["n"],
    )
    broken = folder / "models/broken/1/model.onnx"
    broken.parent.mkdir(parents=True)
    broken.write_bytes(b"no model at all")
    with served(folder) as (process, client):
        yield folder, process, client


def test_a_native_model_answers_for_any_number_of_rows_and_many_at_once(running: Any) -> None:
    _, _, client = running
    sizes = [1, 7, 300, 0, 2, 64, 1, 1000]
    inputs = [np.random.default_rng(n).standard_normal((n, 8)).astype(np.float32) for n in sizes]
    calls = [client.async_infer("dense", given(x)) for x in inputs]
    for x, call in zip(inputs, calls, strict=True):
        found = call.get_result().as_numpy("y")
        np.testing.assert_allclose(found, np.maximum(x @ WEIGHTS, 0), rtol=1e-4, atol=1e-4)


def test_a_model_with_an_interpreted_op_answers_from_its_own_process(running: Any) -> None:
    _, _, client = running
    x = np.random.default_rng(1).standard_normal((5, 3, 3)).astype(np.float32)
    found = client.infer("determinant", given(x)).as_numpy("y")
    np.testing.assert_allclose(found, np.linalg.det(-x.astype(np.float64)), rtol=1e-4, atol=1e-5)


def test_a_wrong_shape_is_refused_with_what_was_expected(running: Any) -> None:
    _, _, client = running
    for model in ("dense", "determinant"):
        with pytest.raises(triton.InferenceServerException, match=r"expected .*float32") as refused:
            client.infer(model, given(np.zeros((2, 2), np.float32)))
        assert refused.value.status() == "400"


def test_a_source_that_is_no_model_stops_no_other(running: Any) -> None:
    folder, _, client = running
    assert client.is_server_ready()
    assert not client.is_model_ready("broken")
    states = {entry["name"]: entry for entry in client.get_model_repository_index()}
    assert states["broken"]["state"] == "UNAVAILABLE"
    assert "broken/1 failed" in (folder / "log").read_text()


def test_the_serving_process_holds_no_compiler_even_with_interpreted_models(running: Any) -> None:
    _, process, _ = running
    maps = Path(f"/proc/{process.pid}/maps").read_text()
    assert ".cast" in maps
    assert "llvmlite" not in maps
    assert "/onnx" not in maps


def test_it_ends_with_status_0_and_starts_from_its_cache(running: Any) -> None:
    folder, process, _ = running
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0
    (folder / "models/broken/1/model.onnx").unlink()
    built = sorted((folder / "cache").iterdir())
    begun = time.monotonic()
    with served(folder) as (_, client):
        assert client.is_model_ready("dense")
        x = np.ones((1, 8), np.float32)
        found = client.infer("dense", given(x)).as_numpy("y")
        np.testing.assert_allclose(found, np.maximum(x @ WEIGHTS, 0), rtol=1e-4, atol=1e-4)
    assert sorted((folder / "cache").iterdir()) == built
    assert time.monotonic() - begun < 20
