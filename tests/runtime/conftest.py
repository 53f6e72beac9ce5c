"""Models that several tests of the runtime use, built once for each file."""

from __future__ import annotations

import pathlib

import pytest

import castiron
from tests import built


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return tmp_path_factory.mktemp("runtime")


@pytest.fixture(scope="module")
def added(folder: pathlib.Path) -> castiron.Instance:
    """y = x0 + x1 over [n, 4]; needs no arena."""
    return built.loaded(built.one_op("Add", ("n", 4), ("n", 4)), folder, name="added")
