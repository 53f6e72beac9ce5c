"""Everything once, with one small model: build, look, verify, load, run, serve, ask, stop."""

from __future__ import annotations

import http.client
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

import castiron
from tests import built

_LIMIT_S = 10.0


@pytest.fixture(scope="module")
def models_dir(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("tiny") / "models"
    (folder / "net" / "1").mkdir(parents=True)
    return folder


def test_everything_once_in_under_ten_seconds(models_dir: pathlib.Path) -> None:
    """Of processors, this process's and the server's: others may want the machine too."""
    start_s = _spent_s()
    model, x = built.network(), np.linspace(-1, 1, 60, dtype=np.float32).reshape(1, 3, 4, 5)
    wanted: Any = ReferenceEvaluator(_typed(model)).run(None, {"x": x})

    path = castiron.build(model, models_dir / "net" / "1" / "model.cast")
    castiron.verify(path)
    instance = castiron.load(path)
    assert repr(instance.signature) == "(x: float32[n, 3, h, w]) -> (y: float32[n, 5])"
    np.testing.assert_allclose(instance.run({"x": x})["y"], wanted[0], rtol=1e-5, atol=1e-6)
    instance.close()

    shape, numbers = _served(models_dir, x)
    assert shape == [1, 5]
    np.testing.assert_allclose(numbers, np.ravel(wanted[0]), rtol=1e-5, atol=1e-6)
    assert _spent_s() - start_s < _LIMIT_S


def _spent_s() -> float:
    """By this process and all that it has waited for."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _typed(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with the dtype of its output said, which the evaluator wants."""
    typed = onnx.ModelProto()
    typed.CopyFrom(model)
    typed.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    return typed


def _served(models_dir: pathlib.Path, x: np.ndarray) -> tuple[list[int], list[float]]:
    """What a server of the folder answers; it ends with 0 when it is told to stop."""
    command = [sys.executable, "-m", "castiron", "serve", str(models_dir), "--port", "0"]
    cache = str(models_dir.parent / "cache")
    path = models_dir.parent / "log"
    with (
        path.open("w") as log,
        subprocess.Popen(
            [*command, "--cache-dir", cache], stdout=subprocess.PIPE, stderr=log
        ) as server,
    ):
        try:
            assert server.stdout is not None
            line = server.stdout.readline().decode()
            assert line.startswith("serving on http://127.0.0.1:"), path.read_text()
            answer = _ask(int(line.rsplit(":", 1)[1]), x)
        finally:
            server.send_signal(signal.SIGTERM)
        assert server.wait(timeout=20) == 0
    (output,) = answer["outputs"]
    assert (output["name"], output["datatype"]) == ("y", "FP32")
    return output["shape"], output["data"]


def _ask(port: int, x: np.ndarray) -> dict[str, Any]:
    tensor = {"name": "x", "shape": x.shape, "datatype": "FP32", "data": x.ravel().tolist()}
    end = time.monotonic() + 20
    while True:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        connection.request("POST", "/v2/models/net/infer", json.dumps({"inputs": [tensor]}))
        response = connection.getresponse()
        body = json.loads(response.read())
        connection.close()
        if response.status == 200:
            return dict(body)
        assert time.monotonic() < end, body
        time.sleep(0.05)
