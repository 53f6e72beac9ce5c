"""The stable face: build, load, verify, serve. The only place where building and serving meet.

Each function imports what it needs when it is called, so that loading an executable never
imports the compiler, and building never starts a server.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from collections.abc import Callable
    from typing import Any

    from castiron.executable.reader import ExecutableFile
    from castiron.runtime.instance import Device, Instance, Interpreter

    Path = str | os.PathLike[str]
    Progress = Callable[[str, int, int], None]


class _Process:
    """What all instances of this process share; made on first use."""

    def __init__(self) -> None:
        self._devices: dict[int, Device] = {}

    def device(self, threads: int | None) -> Device:
        from castiron.runtime import budget, instance, pool, team

        count = budget.cpu_budget(threads).cpus
        if count not in self._devices:
            known = next(iter(self._devices.values()), None)
            memory = known.pool if known else pool.Pool()
            shared = team.Shared().team if count > 1 else None
            self._devices[count] = instance.Device(memory, count, shared)
        return self._devices[count]


_process = _Process()


def build(
    source: Any,
    out: Path | None = None,
    target: str | None = None,
    strict: bool = False,
    *,
    precision: str = "default",
    progress: Progress | None = None,
) -> str:
    """Compile an ONNX model to an executable file and give its path.

    ``source`` is a path, bytes, or a ModelProto; ``out`` defaults to the source's name with
    ``.cast``. ``target`` is "avx512", "avx2", "baseline" or "aarch64", by default this machine's.
    ``strict`` refuses a model with ops that would be interpreted. ``precision`` "strict" keeps
    convolutions to the accuracy of the direct form. Raises LoadError or BuildError.
    """
    from castiron.compiler import pipeline
    from castiron.compiler import target as targets
    from castiron.executable import writer
    from castiron.loader import evaluator, onnx

    path = _output_path(source, out)
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
    contents = pipeline.compile_graph(onnx.load(source), options)
    writer.write(path, contents)
    return path


def _output_path(source: Any, out: Path | None) -> str:
    if out is not None:
        return str(out)
    if isinstance(source, str) or hasattr(source, "__fspath__"):
        return str(source).removesuffix(".onnx") + ".cast"
    raise TypeError("build(source, out=...): a model given as bytes needs a path to write to")


def load(path: Path, *, threads: int | None = None) -> Instance:
    """Map an executable file, ready to run on ``threads`` threads (default: the CPU budget).

    Raises ExecutableError when the file is damaged or does not fit this machine.
    """
    from castiron.executable import reader
    from castiron.runtime import instance

    file = reader.open(path)
    return instance.Instance(file, device(threads), _interpreter)


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


def open_file(path: Path) -> ExecutableFile:
    """The executable file itself, for looking inside it."""
    from castiron.executable import reader

    return reader.open(path)
