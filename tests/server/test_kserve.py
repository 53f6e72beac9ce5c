"""KServe's own clients, a second reading of the protocol, infer over REST and gRPC."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from bench.behaviour import processes, servers
from tests.server import real


@pytest.mark.slow
@pytest.mark.realmodel
def test_the_clients_of_kserve_infer_over_both_protocols(tmp_path: Path) -> None:
    node = helper.make_node("Neg", ["x"], ["y"])
    infos = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 3]) for name in ("x", "y")
    ]
    graph = helper.make_graph([node], "negate", infos[:1], infos[1:])
    file = tmp_path / "models" / "negate" / "1" / "model.onnx"
    file.parent.mkdir(parents=True)
    opset = [helper.make_opsetid("", 18)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), file)
    port = processes.free_port()
    options = ("--grpc-port", str(port))
    with real.serving(tmp_path / "models", tmp_path / "cache", *options) as server:
        script = Path(__file__).with_name("kserve_calls.py")
        command = [servers.peer_python("KServe"), str(script)]
        command += [f"http://127.0.0.1:{server.port}", f"127.0.0.1:{port}", "negate"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    answers = json.loads(done.stdout.splitlines()[-1])
    expected = [[0.0, -1.0, -2.0], [-3.0, -4.0, -5.0]]
    assert answers.pop("live") is True
    assert answers.pop("ready") is True
    assert list(answers.values()) == [expected] * 4
