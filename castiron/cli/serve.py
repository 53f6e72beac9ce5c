"""``castiron serve``: serve a folder of models over HTTP.

Prints one line, ``serving on http://HOST:PORT``, once it listens; what happens is logged to the
error stream. The options are made from ``server.settings.Settings`` and
``server.security.settings.Settings``.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from typing import Any

HELP = "serve a folder of models over HTTP"


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    from castiron.server import settings
    from castiron.server.security import settings as security

    parser.add_argument(
        "models_dir",
        metavar="MODELS_DIR",
        help="a folder of models: MODELS_DIR/NAME/1/model.onnx or model.cast",
    )
    for record in (settings.Settings, security.Settings):
        _add_settings(parser, record)
    parser.add_argument("--cache-dir", help="where built executables are kept")
    parser.add_argument(
        "--threads",
        type=int,
        help="compute threads; more than the CPU budget are not used (default: that budget)",
    )
    parser.add_argument(
        "--strict", action="store_true", help="refuse ops that would be interpreted"
    )
    parser.add_argument(
        "--log-level", default="INFO", choices=("DEBUG", "INFO", "WARNING", "ERROR")
    )
    parser.add_argument(
        "--log-form",
        default="auto",
        choices=("auto", "json", "text"),
        help="the form of log lines; auto: text on a terminal, else JSON (default: %(default)s)",
    )


def _add_settings(parser: argparse.ArgumentParser, record: Any) -> None:
    for field in dataclasses.fields(record):
        flag = f"--{field.name.replace('_', '-')}"
        if isinstance(field.default, bool):
            parser.add_argument(flag, action="store_true", help=field.metadata["text"])
            continue
        shown = "" if field.default == "" else " (default: %(default)s)"
        text = f"{field.metadata['text']}{shown}"
        parser.add_argument(flag, type=type(field.default), default=field.default, help=text)


def _chosen(options: argparse.Namespace, record: Any) -> Any:
    """The record as the options say it."""
    return record(**{field.name: getattr(options, field.name)
                     for field in dataclasses.fields(record)})  # fmt: skip


def run(options: argparse.Namespace) -> int:
    """Serve until a signal."""
    from castiron import api
    from castiron.machine import cpus
    from castiron.server import settings
    from castiron.server.security import settings as security
    from castiron.server.workers import child, supervisor
    from castiron.telemetry import lines

    lines.write_to(level=options.log_level, form=options.log_form)
    given, guarded = _chosen(options, settings.Settings), _chosen(options, security.Settings)
    if (fd := os.environ.get(child.VARIABLE)) is not None:
        from castiron.server.workers import link

        told = link.join(int(fd)).told
        given, guarded = supervisor.settings_of(told, given, guarded)
        # Together they have no more threads than there are CPUs for.
        options.threads = options.threads or max(1, cpus.cpu_budget().cpus // given.workers)
    elif given.workers > 1:
        # Every worker is this command again; what it is told comes through a socket.
        command = [sys.executable, "-m", "castiron", *options.words]
        return supervisor.serve(command, given, guarded)
    # Before numpy is imported: it would start as many threads as there are CPUs.
    most = cpus.cpu_budget(options.threads).cpus
    os.environ.setdefault("OPENBLAS_NUM_THREADS", str(most))
    return api.serve(
        options.models_dir,
        given,
        security=guarded,
        cache_dir=options.cache_dir,
        threads=options.threads,
        build_options=["--strict"] if options.strict else [],
    )
