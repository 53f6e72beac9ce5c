"""Options of ``castiron serve`` are the settings, each once, with their defaults."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import Any

import pytest

from castiron import cli
from castiron.cli import serve
from castiron.server import settings
from castiron.server.security import settings as security

RECORDS: tuple[type[Any], ...] = (settings.Settings, security.Settings)
FIELDS = [(record, field) for record in RECORDS for field in dataclasses.fields(record)]


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    serve.add_options(parser)
    return parser.parse_args(words)


def test_every_setting_is_an_option_with_the_same_default() -> None:
    options = vars(parsed("models"))
    for record in RECORDS:
        for name, default in dataclasses.asdict(record()).items():
            assert options[name] == default


def test_every_setting_can_be_given_and_keeps_its_type() -> None:
    for record, field in FIELDS:
        flag = "--" + field.name.replace("_", "-")
        if isinstance(field.default, bool):
            assert getattr(parsed("models", flag), field.name) is True
        else:
            value = getattr(parsed("models", flag, "7"), field.name)
            kind = type(getattr(record(), field.name))
            assert value == kind("7")
            assert type(value) is kind


def test_every_setting_says_what_it_is_for() -> None:
    for _, field in FIELDS:
        assert field.metadata["text"].endswith(".")


@pytest.mark.parametrize(
    "words, message",
    [
        (["nowhere", "--port", "0"], "expected a folder of models, found none at nowhere"),
        ([".", "--port", "0", "--host", "0.0.0.0"], "nobody is authenticated"),
    ],
)
def test_what_cannot_be_served_is_told_in_one_line(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert cli.main(["serve", *words, "--cache-dir", str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert error.startswith("castiron serve: ")
    assert message in error
    assert "Traceback" not in error


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["serve", "models", "--prot", "1"])
    assert ended.value.code == 2
