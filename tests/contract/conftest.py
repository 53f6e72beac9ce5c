"""One server for all tests of this folder that ask one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contract import live


@pytest.fixture(scope="session")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where the models of ``live`` are served."""
    with live.serving(tmp_path_factory.mktemp("served")) as running:
        yield running
