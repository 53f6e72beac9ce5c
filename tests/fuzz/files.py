"""``python -m tests.fuzz.files --count 10000``: damaged model files and executables, so many of each.

Each is opened as a user would: an executable is loaded, run and verified, a model is read and
checked. What comes out is a result or the project's own error; nothing else, never a crash, never
long. Files are opened in a process of their own, whose death is a finding.
"""

from __future__ import annotations

import argparse
import collections
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from onnx import helper

import castiron
from castiron import errors
from castiron.graph import verify
from castiron.loader import load
from tests.fuzz import mutations, protos
from tests.loader import models

_LIMIT_S = 10.0
# A process opens so many, then a new one goes on.
_PART = 2500


def whole_model() -> bytes:
    """A model with attributes, constants, a symbol, and an op of another domain."""
    weights = np.random.default_rng(1).normal(size=(3, 8)).astype(np.float32)
    proto = models.model(
        [
            models.node("MatMul", ["x", "w"], ["m"]),
            models.node("Softmax", ["m"], ["s"], axis=1),
            models.node("Slice", ["s", "first", "last"], ["p"]),
            models.node("Transpose", ["p"], ["t"], perm=[1, 0]),
            models.node("FusedMatMul", ["p", "t"], ["f"], domain="com.microsoft"),
            models.node("Twice", ["f"], ["g"], domain="local"),
            models.node("ReduceSum", ["g"], ["r"], keepdims=0),
            models.node("Greater", ["r", "zero"], ["c"]),
            models.node("If", ["c"], ["y"], then_branch=_branch("Abs"), else_branch=_branch("Neg")),
        ],
        [models.value("x", ["n", 3])],
        ["y"],
        {
            "w": weights,
            "zero": np.zeros((), np.float32),
            "first": np.array([0, 1], np.int64),
            "last": np.array([9, 7], np.int64),
        },
        opset=11,
        functions=[_twice()],
    )
    data: bytes = proto.SerializeToString()
    return data


def _branch(op: str) -> onnx.GraphProto:
    return helper.make_graph(
        [models.node(op, ["g"], ["z"])], op, [], [models.value("z", ["n", "n"])]
    )


def _twice() -> onnx.FunctionProto:
    nodes = [models.node("Add", ["a", "a"], ["b"])]
    return helper.make_function(
        "local", "Twice", ["a"], ["b"], nodes, [helper.make_opsetid("", 11)]
    )


def whole_executable(folder: Path) -> bytes:
    """That model, compiled."""
    source, out = folder / "whole.onnx", folder / "whole.cast"
    source.write_bytes(whole_model())
    castiron.build(source, out=out)
    return out.read_bytes()


def open_model(path: Path) -> str:
    """How a model file fares."""
    try:
        verify.verify(load(path.read_bytes()), "load")
    except errors.LoadError:
        return "refused"
    return "read"


def open_executable(path: Path) -> str:
    """How an executable fares; the digest of its weights is only looked at by ``verify``."""
    try:
        instance = castiron.load(path)
        instance.run({"x": np.ones((2, 3), np.float32)})
        instance.close()
    except errors.ExecutableError:
        return "refused"
    try:
        castiron.verify(path)
    except errors.ExecutableError:
        return "runs, weights found damaged"
    return "runs, whole"


_KINDS: dict[str, Callable[[Path], str]] = {"onnx": open_model, "cast": open_executable}


def part(kind: str, whole: Path, numbers: range) -> dict[str, int]:
    """Damage and open so many, in this process."""
    data = whole.read_bytes()
    found: collections.Counter[str] = collections.Counter()
    for number in numbers:
        # A file of its own: one that is mapped must never be written to.
        path = whole.with_name(f"damaged-{number}.{kind}")
        path.write_bytes(damaged(kind, data, number))
        print(number, file=sys.stderr, flush=True)
        begun_s = time.monotonic()
        found[_KINDS[kind](path)] += 1
        took_s = time.monotonic() - begun_s
        path.unlink()
        assert took_s < _LIMIT_S, f"took {took_s:.1f} s"
    return found


def damaged(kind: str, data: bytes, number: int) -> bytes:
    """The damaged form of this number; most models are damaged behind the parser of their bytes."""
    dice = random.Random(number)
    if kind == "onnx" and dice.random() < 0.7:
        proto = onnx.ModelProto.FromString(data)
        protos.changed(proto, dice)
        changed: bytes = proto.SerializeToString()
        return changed
    if dice.random() < 0.1:
        return data[: dice.randrange(len(data))]
    return mutations.bytes_changed(data, dice)


def campaign(kind: str, count: int) -> tuple[dict[str, int], list[str]]:
    """Counts of how damaged files of a kind fared, and what must not be."""
    found: collections.Counter[str] = collections.Counter()
    complaints = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        whole = folder / f"original.{kind}"
        whole.write_bytes(whole_model() if kind == "onnx" else whole_executable(folder))
        for first in range(0, count, _PART):
            last = min(first + _PART, count)
            command = [sys.executable, "-m", "tests.fuzz.files", "--part", kind, str(whole),
                       str(first), str(last)]  # fmt: skip
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode == 0:
                found.update(json.loads(done.stdout))
            else:
                told = done.stderr.strip()[-1500:]
                complaints.append(f"{kind}, status {done.returncode}, last number: {told}")
    return found, complaints


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--part", nargs=4, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.part:
        kind, whole, first, last = chosen.part
        print(json.dumps(part(kind, Path(whole), range(int(first), int(last)))))
        return 0
    status = 0
    for kind in _KINDS:
        begun_s = time.monotonic()
        found, complaints = campaign(kind, chosen.count)
        print(f"{kind}: {sum(found.values())} in {time.monotonic() - begun_s:.1f} s: {found}")
        for line in complaints:
            print(f"! {line}")
        status |= bool(complaints)
    return status


if __name__ == "__main__":
    sys.exit(main())
