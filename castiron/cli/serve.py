"""``castiron serve``: serve a folder of models over HTTP.

Prints one line, ``serving on http://HOST:PORT``, once it listens; what happens is logged to the
error stream. The options of the edge are made from ``server.settings.Settings``.
"""

from __future__ import annotations

import argparse
import dataclasses

HELP = "serve a folder of models over HTTP"


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    from castiron.server import settings

    parser.add_argument(
        "models_dir",
        metavar="MODELS_DIR",
        help="a folder of models: MODELS_DIR/NAME/1/model.onnx or model.cast",
    )
    for field in dataclasses.fields(settings.Settings):
        flag = f"--{field.name.replace('_', '-')}"
        text = f"{field.metadata['text']} (default: %(default)s)"
        if isinstance(field.default, bool):
            parser.add_argument(flag, action="store_true", help=field.metadata["text"])
        else:
            parser.add_argument(flag, type=type(field.default), default=field.default, help=text)
    parser.add_argument("--cache-dir", help="where built executables are kept")
    parser.add_argument("--threads", type=int, help="compute threads (default: the CPU budget)")
    parser.add_argument(
        "--strict", action="store_true", help="refuse ops that would be interpreted"
    )
    parser.add_argument(
        "--log-level", default="INFO", choices=("DEBUG", "INFO", "WARNING", "ERROR")
    )


def run(options: argparse.Namespace) -> int:
    """Serve until a signal."""
    from castiron import api
    from castiron.server import life, settings

    life.log_to_stderr(options.log_level)
    names = [field.name for field in dataclasses.fields(settings.Settings)]
    return api.serve(
        options.models_dir,
        settings.Settings(**{name: getattr(options, name) for name in names}),
        cache_dir=options.cache_dir,
        threads=options.threads,
        build_options=["--strict"] if options.strict else [],
    )
