"""``castiron dashboard``: Grafana dashboards and Prometheus alert rules out of the contracts.

Writes one dashboard of all servers, one for each model, the rule file, and tests of the rules for
``promtool test rules``.
"""

from __future__ import annotations

import argparse
from pathlib import Path

HELP = "write Grafana dashboards and Prometheus alert rules for a folder of models"


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument(
        "models_dir", metavar="MODELS_DIR", help="a folder of models, as `castiron serve` takes it"
    )
    parser.add_argument(
        "-o", "--out", default="dashboards", help="the folder to write to (default: %(default)s)"
    )


def run(options: argparse.Namespace) -> int:
    """Write the files and print their names."""
    from castiron import api

    out = Path(options.out)
    texts = api.dashboard(options.models_dir)
    out.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (out / name).write_text(text, encoding="utf-8")
        print(out / name)
    return 0
