"""Log lines as a program reads them, and as a person does."""

from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from castiron.telemetry import lines, tracer


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def _read(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_says_when_how_grave_what_and_which_trace() -> None:
    stream = io.StringIO()
    lines.write_to(stream)
    token = tracer.trace_id.set(b"0af7651916cd43dd8448eb211c80319c")
    logging.getLogger("castiron.t").warning("late by %d", 3, extra={"model": "m", "version": "2"})
    tracer.trace_id.reset(token)
    logging.getLogger("castiron.t").info("apart")
    first, second = _read(stream)
    assert first.pop("ts").endswith("Z")
    assert first == {
        "level": "warning", "event": "late by 3", "logger": "castiron.t", "model": "m",
        "version": "2", "trace_id": "0af7651916cd43dd8448eb211c80319c",
    }  # fmt: skip
    assert "trace_id" not in second


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(), st.text(), st.one_of(st.binary(), st.floats(), st.none()))
def test_any_text_stays_one_line_of_json(message: str, model: str, odd: object) -> None:
    stream = io.StringIO()
    lines.write_to(stream)
    logging.getLogger("castiron.t").info("%s", message, extra={"model": model, "odd": odd})
    assert stream.getvalue().count("\n") == 1
    (line,) = _read(stream)
    assert (line["event"], line["model"]) == (message, model)


def test_an_error_is_inside_the_line_and_huge_texts_are_cut() -> None:
    stream = io.StringIO()
    lines.write_to(stream)
    try:
        raise ValueError("x" * 100_000)
    except ValueError:
        logging.getLogger("castiron.t").exception("failed")
    (line,) = _read(stream)
    assert "ValueError" in line["error"]
    assert len(stream.getvalue()) < 10_000


def test_a_terminal_gets_text_unless_told_otherwise() -> None:
    for stream, form, is_json in (
        (_Terminal(), "auto", False), (_Terminal(), "json", True),
        (io.StringIO(), "auto", True), (io.StringIO(), "text", False),
    ):  # fmt: skip
        lines.write_to(stream, form=form)
        logging.getLogger("castiron.t").info("here")
        assert stream.getvalue().startswith("{") == is_json
        assert "here" in stream.getvalue()


@pytest.mark.parametrize("form", ["json", "text"])
def test_what_repeats_is_counted_instead_of_written(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = io.StringIO()
    lines.write_to(stream, form=form)
    now_s = 1e9
    monkeypatch.setattr("time.time", lambda: now_s)
    for index in range(100):
        logging.getLogger("castiron.t").info("again %d", index)
    logging.getLogger("castiron.t").info("another")
    assert len(stream.getvalue().splitlines()) == 21
    now_s += 11
    logging.getLogger("castiron.t").info("again %d", 100)
    last = stream.getvalue().splitlines()[-1]
    assert ('"suppressed": 80' if form == "json" else "(and 80 like it before)") in last


def test_it_goes_to_the_error_stream_by_default(capsys: pytest.CaptureFixture[str]) -> None:
    lines.write_to(form="text")
    logging.getLogger("castiron.t").error("seen")
    assert "ERROR castiron.t: seen" in capsys.readouterr().err
    assert sys.stderr is not None
