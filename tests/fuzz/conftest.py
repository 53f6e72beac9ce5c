"""One server for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fuzz import served


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[served.Server]:
    """A real one over compiled models, which stops as it should."""
    with served.serving(tmp_path_factory.mktemp("fuzzed")) as running:
        yield running
        assert running.stop() == 0
