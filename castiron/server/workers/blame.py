"""What a worker was doing when it died, and which versions are to be left alone for that.

The crash block says the model and the step; the build report in its executable says the kernel. A
version that ends processes again and again gets a rest in every worker, each one twice as long.
"""

from __future__ import annotations

import contextlib
import json
import logging
import time
from typing import Any

from castiron import errors
from castiron.executable import reader
from castiron.server.workers import child

log = logging.getLogger("castiron.server")

CRASHES = 2
_REST_NS = 30_000_000_000
_LONGEST_REST_NS = 3_600_000_000_000


class Blame:
    """Crashes by version; a version is ``MODEL/NUMBER``."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, bytes], int] = {}
        self.trips: dict[str, int] = {}
        """Until when each version rests, on the clock that all processes share."""

    def look(self, worker: child.Child, cause: str) -> list[str]:
        """Say what the dead worker was doing; the versions that rest from now on."""
        resting = []
        for trace in worker.crashes.suspects():
            assert trace.step is not None
            model, _, version = trace.model.rpartition("/")
            kernel = _kernel(worker.paths.get(trace.model, ""), trace.step)
            log.error(
                "worker %d died of %s in model %s, version %s, step %d%s",
                worker.index, cause, model, version, trace.step,
                f" ({kernel})" if kernel else "",
                extra={"model": model, "version": version, "step": trace.step, "kernel": kernel,
                       "digest": trace.digest.hex()},
            )  # fmt: skip
            if not child.is_fault(cause):
                continue  # somebody ended it: no fault of what it was doing
            key = trace.model, trace.digest
            count = self._counts[key] = self._counts.get(key, 0) + 1
            if count >= CRASHES:
                rest_ns = min(_REST_NS << (count - CRASHES), _LONGEST_REST_NS)
                self.trips[trace.model] = time.monotonic_ns() + rest_ns
                log.error("model %s, version %s ended %d workers and rests for %d s",
                          model, version, count, rest_ns // 10**9)  # fmt: skip
                resting.append(trace.model)
        return resting


def _kernel(path: str, step: int) -> str:
    """The name of the kernel of a step, as the build report has it; empty when it has none."""
    with contextlib.suppress(errors.ExecutableError, OSError, ValueError, LookupError):
        with reader.open(path) as file:
            report: dict[str, Any] = json.loads(file.report())
        steps = [each for stage in report["stages"] for each in stage.get("steps", ())]
        return str(steps[step]["kernel"])
    return ""
