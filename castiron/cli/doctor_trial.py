"""What ``castiron doctor`` tries out: packages, shared memory, folders, a port, a whole model.

The model is built and run in processes of their own, since what does not fit a machine may end
them by a signal.
"""

from __future__ import annotations

import base64
import contextlib
import importlib.metadata
import mmap
import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from castiron.cli.findings import Finding

_NEEDED = ("numpy", "llvmlite", "onnx", "protobuf", "ml_dtypes")
_FOR_SERVING = ("uvloop", "httptools", "orjson", "PyJWT", "cryptography", "grpcio")
_SHARED_BYTES = 1 << 20
_LITTLE_BYTES = 256 << 20
_TIMEOUT_S = 100.0
# y = Relu(MatMul(x, [[1, -1], [2, 0]])), as onnx.helper writes it.
_MODEL = (
    "CAg6cQoRCgF4CgF3EgFwIgZNYXRNdWwKDAoBcBIBeSIEUmVsdRIFdHJpYWwqGwgCCAIQAUIBd0oQAACAPwAAgL8AAABA"
    "AAAAAFoUCgF4Eg8KDQgBEgkKAxIBbgoCCAJiFAoBeRIPCg0IARIJCgMSAW4KAggCQgQKABAR"
)


def findings(host: str, port: int) -> Iterator[Finding]:
    """All but the model."""
    yield python()
    yield packages()
    yield shared_memory()
    yield folders()
    yield port_of(host, port)


def python() -> Finding:
    """The interpreter."""
    found = f"{platform.python_implementation()} {platform.python_version()} on {sys.platform}"
    if sys.platform != "linux" or platform.python_implementation() != "CPython":
        return Finding("Python", found, "castiron does not run here", "take CPython on Linux",
                       is_broken=True)  # fmt: skip
    libc = " ".join(platform.libc_ver()).strip() or "unknown libc"
    return Finding("Python", f"{found}, {libc}", "castiron runs here")


def packages() -> Finding:
    """What is installed, and what cannot be done without the rest."""
    versions = {name: _version(name) for name in (*_NEEDED, *_FOR_SERVING)}
    found = ", ".join(f"{name} {version or 'missing'}" for name, version in versions.items())
    needed = [name for name in _NEEDED if not versions[name]]
    serving = [name for name in _FOR_SERVING if not versions[name]]
    values = {"versions": versions}
    if needed:
        return Finding("packages", found, "castiron build does not work",
                       f"pip install {' '.join(needed)}", True, values)  # fmt: skip
    if serving:
        return Finding("packages", found, "build and run work, serve does not",
                       "pip install 'castiron[server]'", values=values)  # fmt: skip
    return Finding("packages", found, "build, run and serve work", values=values)


def _version(name: str) -> str:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(name)
    return ""


def shared_memory() -> Finding:
    """Supervisor, workers and step processes share memory that has no name."""
    place = Path("/dev") / "shm"
    free = shutil.disk_usage(place).free if place.is_dir() else 0
    found = f"{place} has {free >> 20} MB free"
    try:
        fd = os.memfd_create("castiron-doctor", os.MFD_CLOEXEC)
        try:
            os.ftruncate(fd, _SHARED_BYTES)
            with mmap.mmap(fd, _SHARED_BYTES) as shared:
                shared[-1] = 1
        finally:
            os.close(fd)
    except (OSError, ValueError) as fault:
        return Finding("shared memory", f"{found}; memfd: {fault}", "workers cannot start",
                       "allow memfd_create and shared mappings", is_broken=True)  # fmt: skip
    return Finding("shared memory", f"{found}; memfd works",
                   "workers and step processes share by memfd and need no /dev/shm")  # fmt: skip


def folders() -> Finding:
    """Where builds and built models go."""
    from castiron import api

    places = {"cache": api.cache_folder(), "temporary": Path(tempfile.gettempdir())}
    told, broken, little = [], [], []
    for name, place in places.items():
        try:
            place.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=place) as file:
                file.write(bytes(4096))
        except OSError as fault:
            broken.append(f"{name} {place}: {fault.strerror}")
            continue
        free = shutil.disk_usage(place).free
        told.append(f"{name} {place}, {free >> 20} MB free")
        if free < _LITTLE_BYTES:
            little.append(name)
    if broken:
        return Finding("folders", "; ".join([*told, *broken]), "models cannot be built",
                       "set CASTIRON_CACHE or TMPDIR to a folder that can be written to",
                       is_broken=True)  # fmt: skip
    todo = f"make room in {' and '.join(little)}" if little else ""
    return Finding("folders", "; ".join(told), "built models and kernels are kept there", todo)


def port_of(host: str, port: int) -> Finding:
    """Whether a server could listen there and be reached."""
    name = f"port {port}" if port else "a port"
    try:
        with socket.create_server((host, port)) as listener:
            place = listener.getsockname()[:2]
            begun = time.perf_counter()
            with socket.create_connection(place, timeout=5) as client:
                other, _ = listener.accept()
                with other:
                    client.sendall(b"?")
                    other.settimeout(5)
                    got = other.recv(1)
            took_us = (time.perf_counter() - begun) * 1e6
    except OSError as fault:
        return Finding(name, f"{host}: {fault.strerror or fault}", "a server cannot listen there",
                       "choose another with castiron serve --port", is_broken=True)  # fmt: skip
    if got != b"?":
        return Finding(name, f"{host} takes connections that carry nothing",
                       "a server would not be reached", "look at the firewall",
                       is_broken=True)  # fmt: skip
    return Finding(name, f"{host} answers in {took_us:.0f} us", "a server can listen there and be "
                   "reached")  # fmt: skip


def model() -> Finding:
    """Build a model of two steps and run it, as a user would."""
    name = "a model"
    with tempfile.TemporaryDirectory(prefix="castiron-doctor-") as made:
        folder = Path(made)
        (folder / "trial.onnx").write_bytes(base64.b64decode(_MODEL))
        _save_inputs(folder / "x.npy")
        begun = time.perf_counter()
        fault = _fault_of(folder, "build", "trial.onnx", "--quiet")
        built_s = time.perf_counter() - begun
        if fault:
            return Finding(name, fault, "castiron build does not work here",
                           "what is told of packages and processor above may say why",
                           is_broken=True)  # fmt: skip
        begun = time.perf_counter()
        fault = _fault_of(
            folder, "run", "trial.cast", "--input", "x=x.npy", "--output", "y.npz"
        ) or _fault_in(folder / "y.npz")
        run_s = time.perf_counter() - begun
    values = {"build_s": round(built_s, 3), "run_s": round(run_s, 3)}
    if fault:
        return Finding(name, fault, "castiron run does not work here",
                       "see that the temporary folder allows to map code (no noexec)", True,
                       values)  # fmt: skip
    return Finding(name, f"built in {built_s:.2f} s, run in {run_s:.2f} s, processes' starts included",
                   "its values are right: building and running work", values=values)  # fmt: skip


def _save_inputs(path: Path) -> None:
    import numpy as np

    np.save(path, np.array([[3, 1], [-5, 1]], np.float32))


def _fault_of(folder: Path, *words: str) -> str:
    """Run a command; what went wrong, or nothing."""
    command = [sys.executable, "-m", "castiron", *words]
    environment = {**os.environ, "CASTIRON_CACHE": str(folder / "cache")}
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True,
            timeout=_TIMEOUT_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"castiron {words[0]} took more than {_TIMEOUT_S:.0f} s"
    if done.returncode == 0:
        return ""
    last = done.stderr.strip().splitlines()[-1:] or [f"ended with {done.returncode}"]
    return last[0][:300]


def _fault_in(path: Path) -> str:
    import numpy as np

    with np.load(path) as saved:
        found = saved["y"].tolist()
    return "" if found == [[5, 0], [0, 5]] else f"expected [[5, 0], [0, 5]], found {found}"
