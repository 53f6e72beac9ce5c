"""Tables: aligned for people, and published only where they belong."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import table


def test_a_table_is_aligned_and_is_markdown() -> None:
    text = table.markdown(["model", "ms"], [["resnet50", "75.80"], ["cls", "0.9"]])
    assert text.splitlines() == [
        "| model    |    ms |",
        "| -------- | ----: |",
        "| resnet50 | 75.80 |",
        "| cls      |   0.9 |",
    ]


def test_publishing_replaces_only_what_is_between_the_markers(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text("a\n<!-- bench:x -->\nold\n<!-- /bench:x -->\nb\n")
    table.publish("x", r"new \1", readme)
    table.publish("x", r"newer \1", readme)
    assert readme.read_text() == "a\n<!-- bench:x -->\nnewer \\1\n<!-- /bench:x -->\nb\n"


def test_publishing_without_markers_is_an_error(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text("nothing here\n")
    with pytest.raises(ValueError, match="no markers <!-- bench:x -->"):
        table.publish("x", "new", readme)


def test_the_readme_has_a_place_for_every_script() -> None:
    readme = (Path(table.__file__).parent.parent / "README.md").read_text()
    for name in ("latency", "start", "memory", "behaviour", "serving", "edge"):
        assert f"<!-- bench:{name} -->" in readme
        assert f"<!-- /bench:{name} -->" in readme
