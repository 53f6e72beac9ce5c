"""A real server process over the models of ``tests.numpy_instance``.

    python -m tests.server.numpy_server MODELS_DIR CACHE_DIR '{"max_in_flight": 2}'

where the last argument holds settings of the edge and of security. Sources are "built" by copying them.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path

from castiron.registry import supply
from castiron.server import life
from castiron.server import settings as server_settings
from castiron.server.security import settings as security_settings
from castiron.telemetry import lines, tracer
from castiron.telemetry.exporters import otlp
from tests import numpy_instance

_BUILD = "import shutil, sys; shutil.copy(sys.argv[1], sys.argv[2])"


def supplied() -> supply.Supply:
    """The functions that ``castiron.api`` would hand in."""
    return supply.Supply(
        open_instance=numpy_instance.opened,
        build_command=lambda source, out: [sys.executable, "-c", _BUILD, str(source), str(out)],
        interpret_command=lambda path: [
            sys.executable,
            "-m",
            "tests.numpy_instance",
            "interpret",
            str(path),
        ],
        open_lane=lambda _: None,
        memory=lambda: {"allocated_bytes": 4096.0},
    )


def opened(endpoint: str) -> Callable[[tracer.Counts], tracer.Spool]:
    """What starts the exporter of traces, as ``castiron.api`` does."""
    return lambda counts: tracer.Spool(otlp.start(endpoint, "tested")[1], counts)


if __name__ == "__main__":
    _, _models, _cache, _settings = sys.argv
    _given = json.loads(_settings)
    lines.write_to(form=_given.pop("log_form", "text"))
    _names = {field.name for field in dataclasses.fields(security_settings.Settings)}
    _security = {name: _given.pop(name) for name in _names & _given.keys()}
    _chosen = server_settings.Settings(**{"port": 0, "inline_us": 0.0, **_given})
    raise SystemExit(
        life.serve(
            Path(_models),
            supplied(),
            supply.Settings(Path(_cache)),
            _chosen,
            security_settings.Settings(**_security),
            opened(_chosen.traces) if _chosen.traces else None,
        )
    )
