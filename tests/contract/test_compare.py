"""Which edits of a contract break clients: each edit alone, judged, then rules of the table."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from castiron.contract import compare, model, rules, steps
from tests.contract import samples

FULL = samples.FULL
IMAGE, FLAGS = FULL.input
SCORES, WORDS = FULL.output
BREAKS, SAFE = True, False

# path, value, the rule that judges it, whether it breaks clients
EDITS: list[tuple[str, Any, str, bool]] = [
    ("name", "other", "model-renamed", BREAKS),
    ("description", "Better words.", "text-changed", SAFE),
    ("input", (IMAGE,), "input-removed", BREAKS),
    ("input", (*FULL.input, model.Tensor("more", "FP64", ())), "input-added", BREAKS),
    ("input", (FLAGS, IMAGE), "reordered", SAFE),
    ("input.flags.name", "marks", "input-renamed", BREAKS),
    ("input.flags.description", "Marks.", "text-changed", SAFE),
    ("input.image.datatype", "FP16", "datatype-changed", BREAKS),
    ("input.image.shape", ("N", 3, 224), "rank-changed", BREAKS),
    ("input.image.shape", ("N", 1, 224, 224), "dim-changed", BREAKS),
    ("input.image.shape", (1, 3, 224, 224), "input-dim-fixed", BREAKS),
    ("input.image.shape", ("N", 3, "H", 224), "input-dim-freed", SAFE),
    ("input.flags.shape", ("N", "N"), "dims-tied", BREAKS),
    ("input.flags.shape", ("K", "M"), "input-dims-untied", SAFE),
    ("output.scores.shape", ("K", 10), "output-dims-untied", BREAKS),
    ("input.image.range", (0.0, 0.5), "input-narrowed", BREAKS),
    ("input.image.range", (-1.0, 1.0), "input-widened", SAFE),
    ("input.image.range", None, "input-widened", SAFE),
    ("input.image.nan", "allow", "input-widened", SAFE),
    ("input.image.infinity", "refuse", "input-narrowed", BREAKS),
    ("input.flags.allowed", (0, 1), "input-narrowed", BREAKS),
    ("input.flags.allowed", (0, 1, 2, 3), "input-widened", SAFE),
    ("input.flags.max_dims", (32, 0), "input-narrowed", BREAKS),
    ("input.flags.max_dims", (), "input-widened", SAFE),
    ("output", (SCORES,), "output-removed", BREAKS),
    ("output", (*FULL.output, model.Tensor("extra", "FP32", ())), "output-added", SAFE),
    ("output.words.name", "text", "output-renamed", BREAKS),
    ("output.words.datatype", "INT64", "datatype-changed", BREAKS),
    ("output.scores.shape", ("N", "C"), "output-dim-freed", BREAKS),
    ("output.scores.shape", ("N", 1000), "dim-changed", BREAKS),
    ("output.words.shape", (1,), "output-dim-fixed", SAFE),
    ("output.scores.range", (0.0, 2.0), "output-widened", BREAKS),
    ("output.scores.range", (0.2, 0.8), "output-narrowed", SAFE),
    ("output.scores.infinity", "allow", "output-widened", BREAKS),
    ("output.words.max_bytes", 128, "output-widened", BREAKS),
    ("output.words.allowed", ("yes", "no"), "output-narrowed", SAFE),
    ("schema.input.question.languages", ("en",), "input-narrowed", BREAKS),
    ("schema.input.question.languages", ("en", "de", "pt-BR", "fr"), "input-widened", SAFE),
    ("schema.input.question.max_chars", 100, "input-narrowed", BREAKS),
    ("schema.input.question.values", ("yes", "no"), "input-narrowed", BREAKS),
    ("schema.input.question.name", "query", "entry-renamed", BREAKS),
    ("schema.input.question.kind", "number", "kind-changed", BREAKS),
    ("schema.input.picture.encodings", ("base64",), "input-narrowed", BREAKS),
    ("schema.input.picture.formats", ("jpeg", "png", "webp"), "input-widened", SAFE),
    ("schema.input.picture.max_pixels", 1 << 20, "input-narrowed", BREAKS),
    ("schema.input.picture.steps", samples.PICTURE.steps[:1], "steps-changed", SAFE),
    ("schema.input.readings.optional", False, "entry-required", BREAKS),
    ("schema.input.question.optional", True, "entry-optional", SAFE),
    ("schema.input.readings.max_rows", 5, "input-narrowed", BREAKS),
    ("schema.input.readings.columns", (model.Column("mass"),), "columns-changed", BREAKS),
    ("schema.input.readings.columns.mass.range", (0, 10), "input-narrowed", BREAKS),
    ("schema.input.readings.columns.mass.unit", "g", "columns-changed", BREAKS),
    ("schema.input.readings.tensor", "image", "inside-changed", SAFE),
    ("schema.input", FULL.schema.input[:2], "entry-removed", BREAKS),
    ("schema.input", (*FULL.schema.input, model.Entry("k", "number")), "required-entry-added", BREAKS),
    ("schema.input", (*FULL.schema.input, model.Entry("k", "number", optional=True)),
     "optional-entry-added", SAFE),
    ("schema.output", (), "entry-removed", BREAKS),
    ("schema.output", (samples.ANSWER, model.Entry("n", "number", "scores")),
     "output-entry-added", SAFE),
    ("schema.output.answer.optional", True, "output-entry-optional", BREAKS),
    ("schema.output.answer.steps", samples.labelled("cat", "dog", "cow"), "output-widened", BREAKS),
    ("schema.output.answer.steps", samples.labelled("cat"), "output-narrowed", SAFE),
    ("schema.output.answer.steps", samples.labelled("dog", "cat"), "labels-moved", BREAKS),
    ("sla.p99_ms", 100.0, "promise-weakened", BREAKS),
    ("sla.p99_ms", 20.0, "promise-strengthened", SAFE),
    ("sla.throughput_per_s", 100.0, "promise-weakened", BREAKS),
    ("sla.availability", None, "promise-weakened", BREAKS),
    ("limits.rate_per_s", 50.0, "limit-lowered", BREAKS),
    ("limits.body_bytes", 1 << 19, "limit-lowered", BREAKS),
    ("limits.queue_requests", 128, "limit-raised", SAFE),
    ("limits.queue_bytes", None, "limit-removed", SAFE),
    ("timeout.default_ms", 500.0, "timeout-lowered", BREAKS),
    ("timeout.maximum_ms", 2000.0, "timeout-lowered", BREAKS),
    ("timeout.maximum_ms", 9000.0, "timeout-raised", SAFE),
    ("priority.classes", ("interactive", "normal"), "class-removed", BREAKS),
    ("priority.classes", ("interactive", "normal", "bulk", "idle"), "class-added", SAFE),
    ("priority.classes", ("normal", "interactive", "bulk"), "class-demoted", BREAKS),
    ("priority.default", "bulk", "default-class-demoted", BREAKS),
    ("priority.default", "interactive", "default-class-promoted", SAFE),
    ("alerts.p99_ms", 10.0, "inside-changed", SAFE),
    ("release", model.Release(), "inside-changed", SAFE),
    ("golden", (), "inside-changed", SAFE),
    ("pipeline", steps.Pipeline(), "inside-changed", SAFE),
]  # fmt: skip


@pytest.mark.parametrize("path, value, rule, is_breaking", EDITS)
def test_an_edit_is_judged(path: str, value: Any, rule: str, *, is_breaking: bool) -> None:
    changes = compare.diff(FULL, samples.changed(path, value))
    assert rule in [change.rule.name for change in changes]
    assert bool(compare.breaking(changes)) is is_breaking, [str(change) for change in changes]
    assert rules.RULES[rule].is_breaking is is_breaking


def test_nothing_changed_is_no_change() -> None:
    assert compare.diff(FULL, FULL) == []


def test_many_edits_at_once_are_all_named_and_those_that_break_come_first() -> None:
    whole = (
        ".name",
        ".kind",
        ".shape",
        ".input",
        ".output",
        ".columns",
        ".classes",
        ".default",
        "answer.steps",
    )
    by_field = {
        path: (value, rule)
        for path, value, rule, _ in EDITS
        if "." in path and not path.endswith(whole)
    }
    new = FULL
    for path, (value, _) in by_field.items():
        new = samples.changed(path, value, new)
    changes = compare.diff(FULL, new)
    assert len(by_field) >= 30
    found = {(change.path, change.rule.name) for change in changes}
    assert {(path, rule) for path, (_, rule) in by_field.items()} <= found
    verdicts = [change.rule.is_breaking for change in changes]
    assert verdicts == sorted(verdicts, reverse=True)


def test_a_range_that_moved_is_both_narrower_and_wider() -> None:
    changes = compare.diff(FULL, samples.changed("input.image.range", (0.5, 2.0)))
    assert [change.rule.name for change in changes] == ["input-narrowed", "input-widened"]


def test_a_symbol_under_another_name_is_no_change() -> None:
    def renamed(tensor: model.Tensor) -> model.Tensor:
        shape = tuple("batch" if dim == "N" else dim for dim in tensor.shape)
        return dataclasses.replace(tensor, shape=shape)

    new = dataclasses.replace(
        FULL, input=tuple(map(renamed, FULL.input)), output=tuple(map(renamed, FULL.output))
    )
    assert compare.diff(FULL, new) == []


def test_limits_that_were_the_servers_own_are_judged_as_added() -> None:
    bare = dataclasses.replace(FULL, limits=model.Limits())
    changes = compare.diff(bare, FULL)
    assert {change.rule.name for change in changes} == {"limit-added"}
    assert {change.path for change in changes} == {
        f"limits.{item.name}" for item in dataclasses.fields(model.Limits)
    }


def test_every_rule_is_used_by_some_edit() -> None:
    used = {rule for _, _, rule, _ in EDITS}
    reverse = {
        change.rule.name
        for path, value, _, _ in EDITS
        for change in compare.diff(samples.changed(path, value), FULL)
    }
    assert used | reverse == set(rules.RULES)


def test_a_change_is_told_in_one_line() -> None:
    changes = compare.diff(FULL, samples.changed("limits.burst", 5))
    assert [str(change) for change in changes] == [
        "breaking  limits.burst: requests that were answered may be refused (20 -> 5)"
    ]
