"""``models.toml``: which versions it wants, and what it is told when it cannot be read."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from castiron import errors
from castiron.registry import policy

NUMBERS = st.sets(st.integers(1, 30))


def of(tmp_path: Path, text: str) -> policy.Policies:
    (tmp_path / policy.FILE_NAME).write_text(text)
    return policy.load(tmp_path)


def test_without_a_file_every_version_is_wanted(tmp_path: Path) -> None:
    assert policy.load(tmp_path).of("m").wanted({1, 5, 9}, None) == {1, 5, 9}


def test_a_models_table_changes_what_the_default_says(tmp_path: Path) -> None:
    found = of(
        tmp_path,
        '[default]\nserve = "latest"\nlatest = 2\n'
        "[models.a]\nserve = [3, 7]\nlabels = { stable = 1 }\npinned = true\n[models.b]\nkeep = 4\n",
    )
    assert found.of("other").wanted({1, 2, 3}, None) == {2, 3}
    assert found.of("a").wanted({1, 2, 3}, None) == {1, 3}
    assert found.of("a").pinned
    assert (found.of("b").latest, found.of("b").keep) == (2, 4)


@given(NUMBERS, st.integers(1, 4), st.integers(1, 30))
def test_a_promoted_version_counts_as_the_newest(
    numbers: set[int], latest: int, promoted: int
) -> None:
    wanted = policy.Policy("latest", latest).wanted(numbers, promoted)
    assert wanted == set(sorted(n for n in numbers if n <= promoted)[-latest:])


@pytest.mark.parametrize(
    "text, where",
    [
        ("x = 1", "x"),
        ('[default]\nserve = "newest"', "default.serve"),
        ("[default]\nlatest = 0", "default.latest"),
        ("[models.m]\nserve = []", "models.m.serve"),
        ("[models.m]\nlabels = { 3 = 4 }", "models.m.labels"),
        ("[models.m]\npinned = 1", "models.m.pinned"),
        ("models = 3", "models"),
        ("[default", "TOML"),
    ],
)
def test_a_faulty_entry_is_named(tmp_path: Path, text: str, where: str) -> None:
    with pytest.raises(errors.CastironError, match=where):
        of(tmp_path, text)
