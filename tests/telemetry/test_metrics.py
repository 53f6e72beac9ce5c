"""The text form, as an independent parser reads it; exact counts; children kept apart."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import parser

from castiron.telemetry import metrics


def parsed(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in parser.text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_an_independent_parser_reads_every_kind_with_its_values() -> None:
    page = metrics.Metrics()
    page.counter("asked_total", "Questions.", "model").child("a").value += 3
    page.gauge("open", "Now open.").child().value = 1.5
    page.gauge("size_bytes", "Read when asked.").child().source = lambda: 7
    page.histogram("wait_seconds", "Waits.", "stage", bounds=(0.1, 1.0)).child("x").observe(0.5)
    read = parsed(page.expose())
    assert read[("asked_total", (("model", "a"),))] == 3
    assert read[("open", ())] == 1.5
    assert read[("size_bytes", ())] == 7
    assert read[("wait_seconds_bucket", (("le", "0.1"), ("stage", "x")))] == 0
    assert read[("wait_seconds_bucket", (("le", "1"), ("stage", "x")))] == 1
    assert read[("wait_seconds_bucket", (("le", "+Inf"), ("stage", "x")))] == 1
    assert read[("wait_seconds_sum", (("stage", "x"),))] == 0.5
    assert read[("wait_seconds_count", (("stage", "x"),))] == 1


@given(
    st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"])).map(lambda t: t + '"\\\n')
)
def test_any_label_value_comes_back_as_it_went_in(value: str) -> None:
    page = metrics.Metrics()
    page.counter("seen_total", "Seen.", "what").child(value).value += 1
    assert parsed(page.expose()) == {("seen_total", (("what", value),)): 1}


@given(st.lists(st.floats(0, 100)))
def test_a_histogram_counts_each_value_once_at_its_bound(values: list[float]) -> None:
    page = metrics.Metrics()
    family = page.histogram("took_seconds", "Took.")
    for value in values:
        family.child().observe(value)
    read = parsed(page.expose())
    for bound in metrics.LATENCY_BOUNDS_S:
        expected = sum(value <= bound for value in values)
        found = [
            value
            for (name, labels), value in read.items()
            if name == "took_seconds_bucket" and float(dict(labels)["le"]) == bound
        ]
        assert found == ([expected] if values else [])
    assert family.child().count == len(values)
    assert math.isclose(family.child().total, sum(values), abs_tol=1e-9)


def test_a_name_is_declared_once_and_labels_must_be_complete() -> None:
    page = metrics.Metrics()
    family = page.counter("once_total", "Once.", "a", "b")
    with pytest.raises(AssertionError):
        page.gauge("once_total", "Twice.")
    with pytest.raises(AssertionError):
        family.child("only one")
    assert family.child("1", "2") is family.child("1", "2")
