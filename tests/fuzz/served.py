"""The server under fire: the real command over compiled models, with short patience.

Limits are small, so that requests meet them; what is slow is given up on soon, so that many slow
requests fit into a run.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import onnx
from onnx import TensorProto, helper
from prometheus_client import parser

from castiron.contract import document, model

MAX_BODY_BYTES, MAX_HEAD_BYTES = 1 << 18, 1 << 14
# Longer than any connection can last that the server treats as it says: head, body at the least
# rate, answer, idling, and the grain of its sweeps; with room for a busy machine.
DEADLINE_S = 25.0
# How long a head may take, and a body besides its rate.
PATIENCE_S = 0.5
_START_S = 120.0

OPTIONS: dict[str, int | float] = {
    "max-body-bytes": MAX_BODY_BYTES,
    "max-json-bytes": 1 << 17,
    "max-head-bytes": MAX_HEAD_BYTES,
    "max-in-flight": 64,
    "head-timeout-s": PATIENCE_S,
    "body-timeout-s": PATIENCE_S,
    "keep-alive-s": 0.5,
    "request-timeout-s": 5,
}

# One input and output of each, as the protocol names them.
DTYPES = {
    "BOOL": int(TensorProto.BOOL),
    "INT8": int(TensorProto.INT8),
    "INT16": int(TensorProto.INT16),
    "INT32": int(TensorProto.INT32),
    "INT64": int(TensorProto.INT64),
    "UINT8": int(TensorProto.UINT8),
    "UINT16": int(TensorProto.UINT16),
    "UINT32": int(TensorProto.UINT32),
    "UINT64": int(TensorProto.UINT64),
    "FP16": int(TensorProto.FLOAT16),
    "BF16": int(TensorProto.BFLOAT16),
    "FP32": int(TensorProto.FLOAT),
    "FP64": int(TensorProto.DOUBLE),
}


_ROWS = (model.Tensor("x", "FP32", ("rows", 4)), model.Tensor("y", "FP32", ("rows", 4)))
TABLE = model.Contract(
    name="table",
    input=_ROWS[:1],
    output=_ROWS[1:],
    schema=model.Schema(
        (
            model.Entry("cells", "table", "x", max_rows=16,
                        columns=tuple(model.Column(name, (-100, 100)) for name in "abcd")),
            model.Entry("note", "text", optional=True, languages=("en", "de"), max_chars=50),
            model.Entry("scale", "number", optional=True, range=(0, 1)),
            model.Entry("flag", "flag", optional=True),
        ),
        (model.Entry("sums", "tensor", "y"),),
    ),
)  # fmt: skip


class Server:
    """A running one."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process = process
        self._log = log
        self.port = self._port("http")
        self.grpc_port = self._port("grpc")

    def _port(self, scheme: str) -> int:
        """From the line in which it says that it listens."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline().decode()
        assert line.startswith(f"serving on {scheme}://127.0.0.1:"), (line, self.log())
        return int(line.rsplit(":", 1)[1])

    @property
    def is_alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    def log(self) -> str:
        """What it wrote to its error stream."""
        return self._log.read_text(errors="replace")

    def rss_bytes(self) -> int:
        """Resident memory now."""
        pages = Path(f"/proc/{self._process.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def get(self, path: str) -> bytes:
        """The body of an answer; OSError unless it is 200."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as answer:
            body: bytes = answer.read()
        return body

    def counts(self) -> dict[str, float]:
        """Requests accepted, in flight and ended, over all models and outcomes."""
        found = {"accepted": 0.0, "in_flight": 0.0, "ended": 0.0}
        names = {
            "castiron_requests_accepted_total": "accepted",
            "castiron_requests_in_flight": "in_flight",
            "castiron_requests_total": "ended",
        }
        for family in parser.text_string_to_metric_families(self.get("/metrics").decode()):
            for sample in family.samples:
                if sample.name in names:
                    found[names[sample.name]] += sample.value
        return found

    def stop(self) -> int:
        """SIGTERM; the exit status."""
        self._process.terminate()
        return self._process.wait(30)


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[Server]:
    """A server over models that add one and that give everything back, ready.

    ``spare`` is there to be loaded and unloaded, ``table`` answers predict, ``words`` gives strings
    back.
    """
    _save(folder / "models")
    command = [sys.executable, "-m", "castiron", "serve", str(folder / "models"), "--port", "0", "--grpc-port", "0",
               "--threads", "1", "--cache-dir", str(folder / "cache"),
               "--log-level", "WARNING"]  # fmt: skip
    for name, value in OPTIONS.items():
        command += [f"--{name}", str(value)]
    with (folder / "log.txt").open("wb") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log)
    try:
        server = Server(process, folder / "log.txt")
        wait_ready(server)
        yield server
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(30)
        if process.stdout is not None:
            process.stdout.close()


def wait_ready(server: Server) -> None:
    """Until every model has settled and one is ready."""
    end = time.monotonic() + _START_S
    while time.monotonic() < end:
        with contextlib.suppress(OSError):
            if json.loads(server.get("/v2/health/ready"))["ready"]:
                return
        time.sleep(0.1)
    raise AssertionError(server.log())


def _save(folder: Path) -> None:
    add = helper.make_node("Add", ["x", "one"], ["y"])
    one = helper.make_tensor("one", TensorProto.FLOAT, [1], [1.0])
    rows: list[int | str] = ["rows", 4]
    sides = {name: (int(TensorProto.FLOAT), rows) for name in "xy"}
    for name in ("add_one", "spare", "table"):
        _write(folder / name, [add], sides, [one])
    (folder / "table" / "1" / "contract.toml").write_text(document.text(TABLE))
    text: tuple[int, list[int | str]] = (int(TensorProto.STRING), ["n"])
    same = helper.make_node("Identity", ["w"], ["v"])
    _write(folder / "words", [same], {"w": text, "v": text}, [])
    nodes = [helper.make_node("Identity", [name], [f"{name}_out"]) for name in DTYPES]
    each: dict[str, tuple[int, list[int | str]]] = {}
    for suffix in ("", "_out"):
        each |= {f"{name}{suffix}": (kind, ["n"]) for name, kind in DTYPES.items()}
    _write(folder / "every", nodes, each, [])


def _write(
    folder: Path,
    nodes: list[onnx.NodeProto],
    values: dict[str, tuple[int, list[int | str]]],
    constants: list[onnx.TensorProto],
) -> None:
    """A model whose inputs are the first half of the values, its outputs the others."""
    described = [helper.make_tensor_value_info(name, *each) for name, each in values.items()]
    half = len(described) // 2
    graph = helper.make_graph(nodes, folder.name, described[:half], described[half:], constants)
    opsets = [helper.make_opsetid("", 20)]
    (folder / "1").mkdir(parents=True)
    made = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    onnx.save(made, folder / "1" / "model.onnx")
