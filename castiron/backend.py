"""castiron under the ONNX project's own backend tests: an adapter and a runner.

``python -m castiron.backend [PATTERN ...]`` prints how many tests passed, failed and were
skipped, and how many of the passes needed no interpreted op. What castiron refuses with a
reason counts as skipped, never as passed; a wrong or missing answer counts as failed.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import pathlib
import re
import sys
import tempfile
import unittest
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx
import onnx.backend.base
import onnx.backend.test

from castiron import api, errors

_SUFFIX = "_cpu"


class Rep(onnx.backend.base.BackendRep):
    """A built model, ready to run on a list of inputs in the order of the model's inputs."""

    def __init__(self, instance: Any) -> None:
        self.instance = instance

    def run(self, inputs: Sequence[Any], **_: Any) -> tuple[Any, ...]:
        """The outputs in order; a numpy scalar means a tensor without dims."""
        specs = self.instance.signature.inputs
        named = {
            spec.name: np.asarray(value) if isinstance(value, np.generic) else value
            for spec, value in zip(specs, inputs, strict=True)
        }
        outputs = self.instance.run(named)
        return tuple(outputs[spec.name] for spec in self.instance.signature.outputs)


class Backend(onnx.backend.base.Backend):
    """Builds each model to an executable file, as ``castiron build`` does, and maps it."""

    @classmethod
    def is_compatible(cls, model: onnx.ModelProto, device: str = "CPU", **_: Any) -> bool:  # noqa: ARG003
        """Every model is tried; refusals come from ``prepare``."""
        return True

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **_: Any) -> Rep:  # noqa: ARG003
        """Build and load; SkipTest with castiron's own reason where it refuses the model."""
        with tempfile.TemporaryDirectory() as folder:
            path = str(pathlib.Path(folder) / "model.cast")
            try:
                api.build(model, path)
            except (errors.LoadError, errors.BuildError) as error:
                if isinstance(error, errors.VerifyError):
                    raise
                raise unittest.SkipTest(str(error)) from error
            rep = Rep(api.load(path))
        _note_run(rep.instance.is_native)
        return rep

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """The CPU only."""
        return device == "CPU"


_native_runs: list[bool] = []


def _note_run(is_native: bool) -> None:
    _native_runs.append(is_native)


@dataclasses.dataclass(slots=True)
class Tally:
    """Test names by outcome, without the device suffix; ``native`` is a part of ``passed``."""

    passed: list[str] = dataclasses.field(default_factory=list)
    native: list[str] = dataclasses.field(default_factory=list)
    failed: dict[str, str] = dataclasses.field(default_factory=dict)
    skipped: dict[str, str] = dataclasses.field(default_factory=dict)

    def summary(self) -> str:
        """One line: the counts, and the share of the passes that ran natively."""
        total = len(self.passed) + len(self.failed) + len(self.skipped)
        share = len(self.native) / len(self.passed) if self.passed else 0.0
        return (
            f"{len(self.passed)} of {total} passed, {len(self.failed)} failed, "
            f"{len(self.skipped)} skipped; {len(self.native)} of the passes ({share:.0%}) "
            "compiled natively"
        )


class _Result(unittest.TestResult):
    """Sorts the outcome of each test into a Tally."""

    def __init__(self, tally: Tally) -> None:
        super().__init__()
        self._tally = tally

    def startTest(self, test: unittest.TestCase) -> None:  # noqa: N802
        super().startTest(test)
        _native_runs.clear()

    def addSuccess(self, test: unittest.TestCase) -> None:  # noqa: N802
        super().addSuccess(test)
        name = name_of(test)
        self._tally.passed.append(name)
        if _native_runs and all(_native_runs):
            self._tally.native.append(name)

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:  # noqa: N802
        super().addSkip(test, reason)
        self._tally.skipped[name_of(test)] = reason

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802
        self._tally.failed[name_of(test)] = _last_line(err)

    def addError(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802
        self._tally.failed[name_of(test)] = _last_line(err)


def _last_line(err: Any) -> str:
    text = " ".join(str(err[1]).split())
    return f"{err[0].__name__}: {text[:300]}"


def name_of(test: unittest.TestCase) -> str:
    """The test's name without the device, for example ``test_add``."""
    return test.id().rpartition(".")[2].removesuffix(_SUFFIX)


def cases() -> Iterator[unittest.TestCase]:
    """Every backend test for the CPU, in the suite's order."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tests = onnx.backend.test.BackendTest(Backend, __name__)
    for case in _flat(tests.test_suite):
        if case.id().endswith(_SUFFIX):
            yield case


def _flat(suite: unittest.TestSuite) -> Iterator[unittest.TestCase]:
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from _flat(test)
        else:
            yield test


def run(wanted: Sequence[unittest.TestCase], progress: Any = None) -> Tally:
    """Run the tests; ``progress(done, total)`` is called after each."""
    tally = Tally()
    result = _Result(tally)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        before = os.environ.get("ONNX_HOME")
        os.environ["ONNX_HOME"] = folder
        try:
            for done, case in enumerate(wanted, 1):
                case.run(result)
                if progress is not None:
                    progress(done, len(wanted))
        finally:
            if before is None:
                del os.environ["ONNX_HOME"]
            else:
                os.environ["ONNX_HOME"] = before
    return tally


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tests whose names match any pattern (all without one); exit code 1 on a failure."""
    parser = argparse.ArgumentParser(prog="python -m castiron.backend", description=__doc__)
    parser.add_argument("patterns", nargs="*", help="regular expressions for test names")
    parser.add_argument("--passes", type=pathlib.Path, help="write the names that passed here")
    parser.add_argument("--show", action="store_true", help="list failures and skips with reasons")
    options = parser.parse_args(arguments)
    wanted = [
        case
        for case in cases()
        if not options.patterns or any(re.search(p, name_of(case)) for p in options.patterns)
    ]
    tally = run(wanted, _dots if sys.stderr.isatty() else None)
    if options.show:
        for kind, found in (("failed", tally.failed), ("skipped", tally.skipped)):
            for name, reason in sorted(found.items()):
                sys.stdout.write(f"{kind} {name}: {' '.join(reason.split())[:300]}\n")
    if options.passes is not None:
        options.passes.write_text("\n".join(sorted(tally.passed)) + "\n")
    sys.stdout.write(tally.summary() + "\n")
    return 1 if tally.failed else 0


def _dots(done: int, total: int) -> None:
    if done % 20 == 0 or done == total:
        sys.stderr.write(f"\r{done} of {total}" + ("\n" if done == total else ""))


if __name__ == "__main__":
    sys.exit(main())
