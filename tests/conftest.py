"""What all tests share: files of the zoo, and how long generated inputs are looked for.

A test asks for `model_file("ocr_rec")`; it is skipped only when the package registry cannot be
reached. Fixtures of one folder belong in that folder.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import hypothesis
import pytest

from zoo import fetch

hypothesis.settings.register_profile("quick", max_examples=40, deadline=None, derandomize=True)
hypothesis.settings.register_profile("thorough", max_examples=2000, deadline=None)
hypothesis.settings.load_profile("quick")


def pytest_addoption(parser: pytest.Parser) -> None:
    """How long the longest of the slow tests are."""
    parser.addoption("--swaps", type=int, default=1000, help="versions swapped under load")


@pytest.fixture(scope="session")
def model_file() -> Callable[[str], Path]:
    """A function from a name in `zoo/files.csv` to the verified file."""

    def path_or_skip(name: str) -> Path:
        try:
            return fetch.path(name)
        except fetch.RegistryUnreachableError as error:
            pytest.skip(str(error))

    return path_or_skip
