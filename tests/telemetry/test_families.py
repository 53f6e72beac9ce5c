"""The table of families and its page in the documents."""

from __future__ import annotations

from castiron.telemetry import families
from tools import write_metrics


def test_the_page_of_the_documents_is_what_the_code_says() -> None:
    assert write_metrics.PAGE.read_text() == families.page()


def test_names_are_unique_and_say_their_kind_and_unit() -> None:
    names = [declared.name for declared in families.ALL]
    assert len(set(names)) == len(names)
    for declared in families.ALL:
        assert declared.name.startswith("castiron_")
        assert declared.name.endswith("_total") == (declared.kind == "counter"), declared.name
        if declared.kind == "histogram":
            assert declared.name.endswith(("_seconds", "_rows"))
            assert list(declared.bounds) == sorted(set(declared.bounds))
