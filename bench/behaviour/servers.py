"""Castiron and its peers, each started on loopback over the same models, in its own environment.

A peer's environment is made under ``.cache/peers`` from ``peers/NAME.txt``, which pins it. Models
are served plain under their name, and as NAME_batched with merging of calls on. What is asked of
them is ``probes.py``, ``ending.py`` and ``loading.py``.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.behaviour import models, processes
from castiron.contract import document, model

_HERE = Path(__file__).resolve().parent
_ROOT = _HERE.parent.parent
_PEERS = _HERE / "peers"
_START_S = 120.0

# How long a peer that waits for calls to merge is told to wait, and how many it may merge.
WINDOW_S = 0.05
MAX_BATCH = 8
# How long castiron, which can do so, says that it goes before it takes no more calls.
DRAIN_DELAY_S = 0.5
# Which models are served how, the same for all.
SERVED = ("quick", "quick_batched", "slow", "slow_batched", "picky_batched")


@dataclass(frozen=True, slots=True)
class Server:
    """A running server. ``speaks`` is ``oip`` or the name of a dialect of its own."""

    name: str
    speaks: str
    group: processes.Group
    http_port: int
    grpc_port: int | None = None
    runs: Path | None = None
    """The file in which a peer counts the rows that it computes, one byte for each."""
    folder: Path = Path()

    @property
    def url(self) -> str:
        """Where it speaks HTTP."""
        return f"http://127.0.0.1:{self.http_port}"

    @property
    def ready_path(self) -> str:
        """The path that tells whether it is ready."""
        return _STARTS[self.name][1]

    @property
    def load_path(self) -> str | None:
        """The path under which a model's ``load`` and ``unload`` are asked for, if it has such."""
        return "/v2/repository/models" if self.speaks == "oip" else None

    @property
    def description_path(self) -> str:
        """Where it lists its calls."""
        return "/docs.json" if self.speaks == "bentoml" else "/openapi.json"

    def file_of(self, name: str) -> Path:
        """The file that a load of the model reads."""
        if self.name == "castiron":
            return self.folder / "models" / name / "1" / "model.onnx"
        return self.folder / "files" / f"{name.removesuffix('_batched')}.onnx"

    def num_computing(self) -> int:
        """How many processes would compute an answer now."""
        if self.name != "castiron":
            return len(self.workers())
        with urllib.request.urlopen(f"{self.url}{self.ready_path}", timeout=2) as answer:
            return int(json.load(answer)["workers"]["ready"])

    def workers(self) -> list[int]:
        """The processes that were started to compute; a peer's have said so."""
        found = self.group.processes()
        if self.name == "castiron":
            return [pid for pid in found if pid != self.group.first] or found
        return [pid for pid in found if (self.folder / f"computes-{pid}").exists()]


@dataclass(frozen=True, slots=True)
class Setup:
    """How a server is started, where not as the probes of behaviour want it."""

    served: tuple[str, ...] = SERVED
    """The models. BentoML, whose models are methods of one class, has them plain or merged as there."""
    num_workers: int = 1
    """The processes that compute, of each server; MLServer's may be told apart."""
    cpu: int | None = None
    """The CPU that all its processes share; none: they may use all."""
    counts_rows: bool = True
    """Whether peers count the rows that they compute, which costs them a write for each run."""
    mlserver_workers: int | None = None
    """The processes in which MLServer computes; 0: the one that serves."""


NAMES = ("castiron", "MLServer", "LitServe", "BentoML")
_AS_PROBED = Setup()


@contextlib.contextmanager
def running(name: str, folder: Path, setup: Setup = _AS_PROBED) -> Iterator[Server]:
    """The named server, ready; ended at the end."""
    folder.mkdir(parents=True, exist_ok=True)
    start, ready = _STARTS[name]
    server = start(folder, setup)
    try:
        _wait_ready(server, ready)
        yield server
    finally:
        server.group.stop()


def version(name: str) -> str:
    """The version of a server that is measured."""
    if name == "castiron":
        import castiron

        return castiron.__version__
    command = [peer_python(name), "-c",
               f"import importlib.metadata as m; print(m.version({name.lower()!r}))"]  # fmt: skip
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def peer_python(name: str) -> str:
    """The interpreter of the peer's environment, which is made if there is none of today."""
    wanted = _PEERS / f"{name.lower()}.txt"
    place = _ROOT / ".cache" / "peers" / name.lower()
    python, stamp = place / "bin" / "python", place / "installed.txt"
    if not stamp.is_file() or stamp.read_text() != wanted.read_text():
        subprocess.run([sys.executable, "-m", "venv", "--clear", place], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "-r", wanted], check=True)
        stamp.write_text(wanted.read_text())
    return str(python)


def _castiron(folder: Path, setup: Setup) -> Server:
    files = _files(folder, setup)
    for name in setup.served:
        kind = name.removesuffix("_batched")
        place = folder / "models" / name / "1" / "model.onnx"
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(files[kind], place)
        (place.parent / document.FILE_NAME).write_text(document.text(_contract(name)))
    command = [sys.executable, "-m", "castiron", "serve", str(folder / "models"), "--threads", "1",
               "--cache-dir", str(folder / "cache")]  # fmt: skip
    http, grpc = processes.free_port(), None
    command += ["--port", str(http), "--drain-delay-s", str(DRAIN_DELAY_S)]
    if speaks_grpc():
        grpc = processes.free_port()
        command += ["--grpc-port", str(grpc)]
    if setup.num_workers > 1:
        command += ["--workers", str(setup.num_workers)]
    group = _started(command, folder, setup, {})
    return Server("castiron", "oip", group, http, grpc, folder=folder)


def _files(folder: Path, setup: Setup) -> dict[str, Path]:
    kinds = {name.removesuffix("_batched") for name in setup.served}
    return models.save(folder / "files", kinds)


def speaks_grpc() -> bool:
    """Whether ``castiron serve`` of this checkout has an option for it."""
    command = [sys.executable, "-m", "castiron", "serve", "--help"]
    told = subprocess.run(command, check=True, capture_output=True, text=True, cwd=_ROOT)
    return "--grpc-port" in told.stdout


def _contract(name: str) -> model.Contract:
    """Whether calls merge; and which rows the failing model has, which onnxruntime finds out."""
    kind, _, merged = name.partition("_")
    taken, given, width = models.COLUMNS[kind]
    most_rows = models.MOST_ROWS if kind == "shapes" else 1
    allowed = (0, models.NUM_ROWS - 1) if kind == "picky" else None
    return model.Contract(
        name=name,
        input=(model.Tensor("x", taken, ("rows", width[0]), range=allowed),),
        output=(model.Tensor("y", given, ("rows", width[1])),),
        limits=model.Limits(batch_rows=MAX_BATCH if merged else most_rows),
    )


def _mlserver(folder: Path, setup: Setup) -> Server:
    files = _files(folder, setup)
    http, grpc = processes.free_port(), processes.free_port()
    settings = {"debug": False, "host": "127.0.0.1", "http_port": http, "grpc_port": grpc,
                "metrics_endpoint": None}  # fmt: skip
    is_apart = setup.mlserver_workers is not None
    settings["parallel_workers"] = setup.mlserver_workers if is_apart else setup.num_workers
    (folder / "settings.json").write_text(json.dumps(settings))
    for name in setup.served:
        own: dict[str, object] = {
            "name": name,
            "implementation": "mlserver_onnx.OnnxModel",
            "parameters": {"uri": str(files[name.removesuffix("_batched")])},
        }
        if name.endswith("_batched"):
            own |= {"max_batch_size": MAX_BATCH, "max_batch_time": WINDOW_S}
        (folder / name).mkdir(exist_ok=True)
        (folder / name / "model-settings.json").write_text(json.dumps(own))
    command = [str(Path(peer_python("MLServer")).with_name("mlserver")), "start", str(folder)]
    group = _started(command, folder, setup, {"PYTHONPATH": str(_PEERS)})
    return Server("MLServer", "oip", group, http, grpc, folder / "runs", folder)


def _litserve(folder: Path, setup: Setup) -> Server:
    _files(folder, setup)
    port = processes.free_port()
    command = [peer_python("LitServe"), str(_PEERS / "litserve_onnx.py"), str(folder / "files"),
               str(port), str(WINDOW_S), str(setup.num_workers), *setup.served]  # fmt: skip
    group = _started(command, folder, setup, {})
    return Server("LitServe", "litserve", group, port, None, folder / "runs", folder)


def _bentoml(folder: Path, setup: Setup) -> Server:
    _files(folder, setup)
    port = processes.free_port()
    program = Path(peer_python("BentoML")).with_name("bentoml")
    command = [str(program), "serve", "bentoml_onnx:Models", "--host", "127.0.0.1",
               "--port", str(port), "--working-dir", str(_PEERS)]  # fmt: skip
    extra = {
        "BEHAVIOUR_MODELS": str(folder / "files"),
        "BEHAVIOUR_WORKERS": str(setup.num_workers),
        "BENTOML_HOME": str(folder / "home"),
        "DO_NOT_TRACK": "1",  # it would send statistics to its makers
        "BENTOML_DO_NOT_TRACK": "True",
        "PYTHONPATH": str(_PEERS),
    }
    group = _started(command, folder, setup, extra)
    return Server("BentoML", "bentoml", group, port, None, folder / "runs", folder)


def _started(
    command: list[str], folder: Path, setup: Setup, extra: dict[str, str]
) -> processes.Group:
    settings = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    if setup.counts_rows:
        settings["BEHAVIOUR_RUNS"] = str(folder / "runs")
    own = _ROOT if "castiron" in command else folder
    if setup.cpu is not None:
        command = ["taskset", "--cpu-list", str(setup.cpu), *command]
    return processes.Group(command, folder / "log.txt", settings | extra, own)


def _wait_ready(server: Server, path: str) -> None:
    url = f"{server.url}{path}"
    end = time.monotonic() + _START_S
    while time.monotonic() < end and server.group.is_alive:
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=2) as answer:
            if answer.status == 200:
                return
        time.sleep(0.2)
    raise RuntimeError(f"{server.name} is not ready:\n{server.group.log()}")


_STARTS: dict[str, tuple[Callable[[Path, Setup], Server], str]] = {
    "castiron": (_castiron, "/v2/health/ready"),
    "MLServer": (_mlserver, "/v2/health/ready"),
    "LitServe": (_litserve, "/health"),
    "BentoML": (_bentoml, "/readyz"),
}
assert tuple(_STARTS) == NAMES
