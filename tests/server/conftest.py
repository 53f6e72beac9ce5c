"""One server for all tests of this folder that do not change it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests import numpy_instance
from tests.server import live


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[live.Server]:
    """Every model of ``numpy_instance`` at version 1, and some odd neighbours."""
    models = {f"{name}/1/model.cast": name for name in numpy_instance.models()}
    models |= {
        "add_one/2/model.onnx": "add_one",
        "broken/1/model.cast": "nothing of ours",
        "apart/1/model.onnx": "fragile interpreted",
    }
    with live.serving(tmp_path_factory.mktemp("served"), models, max_body_bytes=1 << 20) as running:
        yield running
