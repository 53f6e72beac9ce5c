"""What counts as a model and a version, and what is passed over with a reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from castiron.registry import store


def put(path: Path, text: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_models_and_versions_are_listed_in_order_of_number(tmp_path: Path) -> None:
    for number in (10, 9, 1):
        put(tmp_path / "b" / str(number) / "model.onnx")
    put(tmp_path / "a.b-c_1" / "2" / "model.cast")
    listing = store.scan(tmp_path)
    assert [(v.model, v.number) for v in listing.versions] == [
        ("a.b-c_1", 2), ("b", 1), ("b", 9), ("b", 10),
    ]  # fmt: skip
    assert not listing.passed_over


def test_an_executable_is_taken_before_a_source(tmp_path: Path) -> None:
    put(tmp_path / "m" / "1" / "model.onnx")
    put(tmp_path / "m" / "1" / "model.cast")
    (version,) = store.scan(tmp_path).versions
    assert version.file == tmp_path / "m" / "1" / "model.cast"


def test_a_version_without_a_file_is_kept_with_its_problem(tmp_path: Path) -> None:
    (tmp_path / "m" / "1").mkdir(parents=True)
    (version,) = store.scan(tmp_path).versions
    assert version.file is None
    assert "expected model.cast or model.onnx" in version.problem


@pytest.mark.parametrize(
    "name", ["-m", "a b", "m\n", "ä", "x" * 129, "stats", "a%2Fb", "..m", "m:1"]
)
def test_folders_whose_names_cannot_be_in_an_address_are_passed_over(
    tmp_path: Path, name: str
) -> None:
    put(tmp_path / name / "1" / "model.cast")
    put(tmp_path / "good" / "1" / "model.cast")
    listing = store.scan(tmp_path)
    assert [version.model for version in listing.versions] == ["good"]
    assert len(listing.passed_over) == (0 if name.startswith(".") else 1)


@pytest.mark.parametrize("name", ["0", "01", "v1", "1.0", "-1", "9" * 19, "latest"])
def test_folders_that_are_no_version_number_are_passed_over(tmp_path: Path, name: str) -> None:
    put(tmp_path / "m" / name / "model.cast")
    listing = store.scan(tmp_path)
    assert not listing.versions
    assert f"m/{name} is not a version number" in listing.passed_over


def test_a_missing_folder_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(NotADirectoryError, match="nowhere"):
        store.scan(tmp_path / "nowhere")
