"""The stable face: build, load, verify, serve. The only place where building and serving meet.

Each function imports what it needs when it is called, so that loading an executable never
imports the compiler, and building never starts a server.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    import pathlib
    import socket
    from collections.abc import Callable, Sequence
    from typing import Any

    from castiron.contract.model import Contract
    from castiron.executable.reader import ExecutableFile
    from castiron.registry import supply
    from castiron.runtime.instance import Device, Instance, Interpreter
    from castiron.runtime.pool import Usage
    from castiron.server.security.settings import Settings as SecuritySettings
    from castiron.server.settings import Settings
    from castiron.telemetry import tracer
    from castiron.telemetry.watched import Watched
    from castiron.tensor.signature import Signature

    Path = str | os.PathLike[str]
    Progress = Callable[[str, int, int], None]


def __getattr__(name: str) -> object:
    if name == "Instance":
        from castiron.runtime import instance

        return instance.Instance
    raise AttributeError(f"module 'castiron.api' has no attribute {name!r}")


class _Process:
    """What all instances of this process share; made on first use."""

    def __init__(self) -> None:
        import _thread

        self._devices: dict[int, Device] = {}
        self.arenas_bytes = 0
        """The most that arenas take; 0: three quarters of what this machine allows."""
        self._lock = _thread.allocate_lock()

    def device(self, threads: int | None) -> Device:
        """The device with that many threads, from any thread; all devices share one pool."""
        from castiron.machine import cpus

        count = cpus.cpu_budget(threads).cpus
        with self._lock:
            if count not in self._devices:
                self._devices[count] = self._new_device(count)
            return self._devices[count]

    def _new_device(self, count: int) -> Device:
        from castiron.machine import memory
        from castiron.runtime import instance, pool, team

        known = next(iter(self._devices.values()), None)
        # A run that is too large for the machine is refused, rather than the process killed.
        most = self.arenas_bytes or memory.tightest().size_bytes // 4 * 3
        rented = known.pool if known else pool.Pool(limit_bytes=most)
        shared = team.Shared().team if count > 1 else None
        return instance.Device(rented, count, shared)


_process = _Process()


def build(  # noqa: PLR0913  # limit: each option of building, by its name
    source: Any,
    out: Path | None = None,
    target: str | None = None,
    strict: bool = False,
    *,
    precision: str = "default",
    contract: Path | None = None,
    progress: Progress | None = None,
) -> str:
    """Compile an ONNX model to an executable file and give its path.

    ``source`` is a path, bytes, or a ModelProto; ``out`` defaults to the source's name with
    ``.cast``. ``target`` is "avx512", "avx2", "baseline" or "aarch64", by default this machine's.
    ``strict`` refuses a model with ops that would be interpreted. ``precision`` "strict" keeps
    convolutions to the accuracy of the direct form. ``contract`` is a ``contract.toml`` that the
    model must fit, by default the one beside the source if there is one; the executable holds
    its text. Raises LoadError, BuildError or ContractError.
    """
    from castiron.compiler import pipeline
    from castiron.compiler import target as targets
    from castiron.contract import check, document
    from castiron.executable import program, writer
    from castiron.loader import evaluator, onnx
    from castiron.runtime import instance

    path = _output_path(source, out)
    _check_output(path, source)
    options = pipeline.Options(
        target=targets.named(target) if target else targets.host(),
        evaluate=evaluator.evaluate_node,
        package=evaluator.package,
        strict=strict,
        precision=precision,
    )
    if progress is not None:
        import dataclasses

        options = dataclasses.replace(options, progress=progress)
    graph = onnx.load(source)
    declared = _declared(source, contract)
    if declared is not None:
        held = {document.METADATA_KEY: document.text(declared)}
        graph = graph.replace(metadata={**graph.metadata, **held})
    contents = pipeline.compile_graph(graph, options)
    if declared is not None:
        signature = instance.signature_of(program.decode(contents.plan))
        check.require(declared, signature, str(contract or source))
    writer.write(path, contents)
    return path


def _declared(source: Any, contract: Path | None) -> Contract | None:
    from castiron.contract import document

    if contract is None and (isinstance(source, str) or hasattr(source, "__fspath__")):
        contract = document.beside(source)
    return None if contract is None else document.load(contract)


def describe(path: Path) -> tuple[Signature, dict[str, str]]:
    """What an executable or an ONNX file takes and gives, and what it says about itself.

    Dims are as the compiler finds them. Raises LoadError, BuildError or ExecutableError.
    """
    from castiron.executable import program, reader
    from castiron.runtime import instance

    if str(path).endswith(".cast"):
        with reader.open(path) as file:
            written = program.decode(file.plan)
        return instance.signature_of(written), dict(written.metadata)
    from castiron.compiler import encode, pipeline
    from castiron.compiler import target as targets
    from castiron.loader import evaluator, onnx

    options = pipeline.Options(targets.host(), evaluator.evaluate_node, evaluator.package)
    written = encode.encode_slots(pipeline.lower_graph(onnx.load(path), options), ())
    return instance.signature_of(written), dict(written.metadata)


def contract(path: Path) -> Contract:
    """The contract of a model file or folder: the one beside it, inside it, or derived from it.

    ``path`` may be a contract's file itself. Raises ContractError, and what ``describe`` raises.
    """
    from castiron.contract import derive, document

    if str(path).endswith(".toml"):
        return document.load(path)
    model = document.model_in(path)
    for place in (path, model, model.parent):
        if (found := document.beside(place)) is not None:
            return document.load(found)
    return derive.derive(*describe(model), document.name_of(path))


def dashboard(models_dir: Path) -> dict[str, str]:
    """Grafana dashboards and Prometheus alert rules for a folder of models, by file name.

    Limits are what each model's contract says; a model without one is watched for failures and
    refusals alone. Raises ContractError, and CastironError when the folder is missing.
    """
    import json
    import pathlib

    from castiron import errors
    from castiron.telemetry import boards, rules, yaml_text

    folder = pathlib.Path(models_dir)
    if not folder.is_dir():
        raise errors.CastironError(f"expected a folder of models, found none at {folder}")
    found = sorted(each for each in folder.iterdir() if each.is_dir() and each.name[0] != ".")
    models = [_watched(each) for each in found]
    texts = {
        name: json.dumps(board, indent=1) + "\n" for name, board in boards.files(models).items()
    }
    texts[rules.RULES_FILE] = yaml_text.text(rules.document(models))
    texts[rules.TESTS_FILE] = yaml_text.text(rules.tests(models))
    return texts


def _watched(folder: pathlib.Path) -> Watched:
    """What is declared about the highest version of a model; nothing is built for it."""
    from castiron.contract import document
    from castiron.contract import model as contracts
    from castiron.telemetry import watched

    declared = contracts.Contract(folder.name)
    numbers = [int(each.name) for each in folder.iterdir() if each.name.isdecimal()]
    version = folder / str(max(numbers)) if numbers else folder
    for place in (version, *document.models_in(version), folder):
        if (beside := document.beside(place)) is not None:
            declared = document.load(beside)
            break
    else:
        for file in version.glob("*.cast"):
            if text := describe(file)[1].get(document.METADATA_KEY):
                declared = document.parse(text, f"the contract inside {file}")
    alerts, sla = declared.alerts, declared.sla
    p99_ms = alerts.p99_ms or sla.p99_ms
    spare = None if sla.availability is None else 1 - sla.availability
    return watched.Watched(
        model=folder.name,
        p99_s=None if p99_ms is None else p99_ms / 1e3,
        error_share=alerts.error_share or spare or 0.01,
        refused_share=alerts.refused_share or 0.05,
        queue_share=alerts.queue_share or 0.8,
        throughput_per_s=sla.throughput_per_s,
        window_s=alerts.window_s,
    )


def _output_path(source: Any, out: Path | None) -> str:
    if out is not None:
        return str(out)
    if isinstance(source, str) or hasattr(source, "__fspath__"):
        return str(source).removesuffix(".onnx") + ".cast"
    raise TypeError("build(source, out=...): a model given as bytes needs a path to write to")


def _check_output(path: str, source: Any) -> None:
    """Refuse at once what could not be written at the end."""
    import os

    from castiron import errors

    folder = os.path.dirname(path) or "."
    if not os.path.isdir(folder):
        raise errors.BuildError(
            f"{path}: expected a folder to write to, found none at {folder}; create it first"
        )
    if os.path.isdir(path):
        raise errors.BuildError(f"{path}: expected the name of a file to write, found a folder")
    is_path = isinstance(source, str) or hasattr(source, "__fspath__")
    if is_path and os.path.exists(path) and os.path.samefile(path, source):
        raise errors.BuildError(f"{path}: the executable would replace its own source")


def load(path: Path, *, threads: int | None = None) -> Instance:
    """Map an executable file, ready to run on ``threads`` threads (default: the CPU budget).

    Raises ExecutableError when the file is damaged or does not fit this machine.
    """
    from castiron.executable import reader
    from castiron.runtime import instance

    file = reader.open(path)
    try:
        return instance.Instance(file, device(threads), _interpreter)
    except BaseException:
        file.close()
        raise


def device(threads: int | None = None) -> Device:
    """This process's device with that many threads; one pool, shared by all instances."""
    return _process.device(threads)


def _interpreter(source: bytes) -> Interpreter:
    from castiron.loader import evaluator

    return evaluator.Interpreter(source)


def verify(path: Path) -> None:
    """Check every digest of an executable file, its weights too. Raises ExecutableError."""
    from castiron.executable import reader

    with reader.open(path) as file:
        file.verify()


def judge(path: Path, source: Path | None = None, previous: Path | None = None) -> None:
    """Whether an executable may answer: digests, its contract beside ``source``, golden cases,
    and that clients of the executable ``previous`` are understood.

    Raises ExecutableError, ContractError, InputError or AdmissionError.
    """
    import pathlib

    from castiron.registry import trial

    run = (lambda file: load(file, threads=1), describe)
    before = None if previous is None else pathlib.Path(previous)
    trial.run(pathlib.Path(path), pathlib.Path(source or path), before, run)
    # Imported only here, and not by a server: it is the last of what could end a process.
    from castiron.server import probe

    probe.try_out(load(path, threads=1))


def open_file(path: Path) -> ExecutableFile:
    """The executable file itself, for looking inside it."""
    from castiron.executable import reader

    return reader.open(path)


def serve(
    models_dir: Path,
    settings: Settings | None = None,
    *,
    security: SecuritySettings | None = None,
    cache_dir: Path | None = None,
    threads: int | None = None,
    build_options: Sequence[str] = (),
) -> int:
    """Serve a folder of models over HTTP until a signal; give the exit status.

    Each sub-folder is a model, each numbered folder in it a version holding ``model.onnx`` or
    ``model.cast``. Sources are built by processes of their own into ``cache_dir``;
    ``build_options`` are further words for ``castiron build``. Raises CastironError when the
    folder is missing or the address cannot be listened on, or is not guarded by ``security``.
    """
    import pathlib

    from castiron.machine import cpus, memory
    from castiron.registry import supply
    from castiron.server import life, shares
    from castiron.server import settings as server_settings
    from castiron.server.security import settings as security_settings

    cache = pathlib.Path(cache_dir) if cache_dir is not None else cache_folder() / "models"
    budget, limit = cpus.cpu_budget(threads), memory.tightest()
    chosen = shares.fitted(settings or server_settings.Settings(), budget, limit)
    _process.arenas_bytes = shares.arenas_bytes(limit, chosen.workers)

    def begin(counts: tracer.Counts) -> tracer.Spool | None:
        shares.tell(chosen, budget, limit)
        return _spool(chosen.traces, counts) if chosen.traces else None

    return life.serve(
        pathlib.Path(models_dir),
        _supply(threads, list(build_options), is_placed=chosen.place_lane),
        supply.Settings(cache, memory_budget_bytes=chosen.memory_budget_bytes),
        chosen,
        security or security_settings.Settings(),
        begin,
    )


def _spool(endpoint: str, counts: tracer.Counts) -> tracer.Spool:
    """What feeds the exporter's process, which is started here and ends after the server has."""
    import castiron
    from castiron.telemetry import tracer
    from castiron.telemetry.exporters import otlp

    def start() -> socket.socket:
        return otlp.start(endpoint, castiron.__version__)[1]

    return tracer.Spool(start(), counts, start)


def cache_folder() -> pathlib.Path:
    """Where kernels and built models are kept: $CASTIRON_CACHE, else ~/.cache/castiron."""
    import os
    import pathlib

    chosen = os.environ.get("CASTIRON_CACHE")
    return pathlib.Path(chosen) if chosen else pathlib.Path.home() / ".cache" / "castiron"


def _supply(
    threads: int | None, build_options: list[str], *, is_placed: bool = False
) -> supply.Supply:
    """The functions by which the serving half opens and builds."""
    import sys

    import castiron
    from castiron.compiler import target
    from castiron.executable import reader
    from castiron.registry import supply
    from castiron.runtime import instance, lane

    castiron_command = [sys.executable, "-m", "castiron"]
    code: dict[str, int] = {}

    def open_instance(path: pathlib.Path) -> Instance:
        if not code:
            # Threads live in the code they started from, which stays mapped when this model goes.
            host = instance.Instance(reader.open(path), device(threads), _Elsewhere)
            code.update(host.code)
            host.close()
        return instance.Instance(reader.open(path), device(threads), _Elsewhere)

    def judge_command(
        path: pathlib.Path, source: pathlib.Path, previous: pathlib.Path | None
    ) -> list[str]:
        before = ["--previous", str(previous)] if previous else []
        return [*castiron_command, "admit", str(path), "--source", str(source), *before]

    return supply.Supply(
        open_instance=open_instance,
        build_command=lambda source, out: [
            *castiron_command, "build", str(source), "--out", str(out), *build_options,
        ],
        interpret_command=lambda path: [*castiron_command, "interpret", str(path)],
        open_lane=lambda loop: lane.Lane(code, loop, cpus=_lane_cpus() if is_placed else None),
        judge_command=judge_command,
        build_key=" ".join([castiron.__version__, target.host().name, *build_options]),
        memory=lambda: _memory(device(threads).pool.usage()),
    )  # fmt: skip


def _lane_cpus() -> list[int] | None:
    """All CPUs but the first, which is left to the event loop; None when there is only one."""
    import os

    return sorted(os.sched_getaffinity(0))[1:] or None


class _Elsewhere:
    """No interpreter: a server runs models with interpreted steps in processes of their own."""

    def __init__(self, source: bytes) -> None:
        del source

    def run(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Never called, since the registry keeps such an Instance only for its description."""
        raise AssertionError(f"interpreted steps do not run in a serving process: {list(inputs)}")


def _memory(usage: Usage) -> dict[str, float]:
    sizes = ("mapped", "allocated", "requested", "idle", "free", "high_water", "returned")
    found: dict[str, float] = {f"{name}_bytes": getattr(usage, name) for name in sizes}
    found["internal_waste_ratio"] = usage.internal_waste
    found["fragmentation_ratio"] = usage.external_fragmentation
    return found
