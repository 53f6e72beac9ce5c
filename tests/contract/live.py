"""``castiron serve`` over models that give back what they get, for the generated clients.

One model holds an Identity for every numeric datatype, so that one build serves all; strings have
a model of their own, since they are interpreted. Those of ``pictures.py`` answer predict.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

import onnx
from onnx import helper

from castiron.contract import derive, document, model
from castiron.tensor import dtype as dtypes
from castiron.tensor.signature import Signature, TensorSpec
from tests.contract import pictures

STRINGS = (dtypes.STRING,)
NUMBERS = tuple(dtype for dtype in dtypes.ALL if dtype is not dtypes.STRING)
MODELS = {"numbers": NUMBERS, "strings": STRINGS}
_START_S = 120.0


def contract(name: str) -> model.Contract:
    """The contract of one of MODELS; ``x_fp32`` comes back as ``y_fp32``."""
    inputs, outputs = (
        tuple(TensorSpec(f"{side}_{d.oip.lower()}", d, (f"N_{d.oip}", "M")) for d in MODELS[name])
        for side in "xy"
    )
    return derive.derive(Signature(inputs, outputs), {}, name)


def source(kinds: Sequence[dtypes.DType]) -> onnx.ModelProto:
    """The model: rows of any number for each datatype, columns of one number for all."""
    nodes: list[onnx.NodeProto] = []
    edges: dict[str, list[onnx.ValueInfoProto]] = {"x": [], "y": []}
    for dtype in kinds:
        name = dtype.oip.lower()
        nodes.append(helper.make_node("Identity", [f"x_{name}"], [f"y_{name}"]))
        for side, infos in edges.items():
            shape = [f"N_{dtype.oip}", "M"]
            infos.append(helper.make_tensor_value_info(f"{side}_{name}", dtype.onnx_code, shape))
    graph = helper.make_graph(nodes, "identities", edges["x"], edges["y"])
    opset = helper.make_opsetid("", 21)
    return helper.make_model(graph, opset_imports=[opset], ir_version=10)


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[str]:
    """A server over MODELS; its address."""
    for name, kinds in MODELS.items():
        onnx.save(source(kinds), _place(folder, name))
    for each in (pictures.PICTURES, pictures.THUMBS):
        path = _place(folder, each.name)
        onnx.save(pictures.source(), path)
        path.with_name("contract.toml").write_text(document.text(each))
    command = [sys.executable, "-m", "castiron", "serve", str(folder / "models"), "--port", "0",
               "--cache-dir", str(folder / "cache"), "--strict-readiness"]  # fmt: skip
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log)
    assert process.stdout is not None
    try:
        line = process.stdout.readline().decode()
        assert line.startswith("serving on "), (folder / "log").read_text()
        address = line.removeprefix("serving on ").strip()
        _wait_ready(address, folder / "log")
        yield address
    finally:
        process.terminate()
        process.wait(30)
        process.stdout.close()


def _place(folder: Path, name: str) -> Path:
    path = folder / "models" / name / "1" / "model.onnx"
    path.parent.mkdir(parents=True)
    return path


def _wait_ready(address: str, log: Path) -> None:
    end = time.monotonic() + _START_S
    while time.monotonic() < end:
        try:
            with urllib.request.urlopen(f"{address}/v2/health/ready", timeout=5):  # noqa: S310
                return
        except urllib.error.HTTPError as answer:
            answer.close()
        time.sleep(0.05)
    raise AssertionError(log.read_text())
