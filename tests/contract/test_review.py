"""What in a contract makes no sense by itself."""

from __future__ import annotations

from typing import Any

import pytest

from castiron.contract import model, review, steps
from tests.contract import samples


def test_a_contract_with_everything_makes_sense() -> None:
    assert review.problems(samples.FULL) == []


@pytest.mark.parametrize(
    "path, value, fault",
    [
        ("input.image.datatype", "FP23", "input[0].datatype: expected one of"),
        ("input.image.nan", "refuze", "did you mean 'refuse'?"),
        ("input.image.range", (1, 0), "input[0].range: expected the least value first"),
        ("input.image.range", (0.0, float("nan")), "input[0].range: expected numbers, found NaN"),
        ("input.image.name", "flags", "input: the name 'flags' is there 2 times"),
        ("input.image.shape", ("N", -1), "input[0].shape[1]: expected 0 to"),
        ("input.image.max_bytes", 3, "only BYTES have lengths"),
        ("input.flags.nan", "refuse", "INT64 has no such value"),
        ("input.flags.allowed", (0.5,), "input[1].allowed[0]: expected a value of INT64"),
        ("input.flags.allowed", (1 << 63,), "INT64 does not hold 9223372036854775808"),
        ("input.flags.max_dims", (1,), "input[1].max_dims: expected 2 numbers"),
        ("output.words.range", (0, 1), "BYTES has no order"),
        ("schema.input.picture.kind", "imgae", "did you mean 'image'?"),
        ("schema.input.picture.tensor", "imag", "did you mean 'image'?"),
        ("schema.input.picture.formats", ("jpg",), "schema.input[0].formats[0]: expected one of"),
        ("schema.input.picture.encodings", ("raww",), "did you mean 'raw'?"),
        ("schema.input.question.languages", ("english!",), "expected a tag such as en"),
        ("schema.input.readings.columns", (), "expected at least one column"),
        ("schema.output.answer.tensor", "", "schema.output[0].tensor: expected one of"),
        ("schema.input.picture.steps", (steps.Crop(1, 1),), "crop takes a picture, here comes"),
        ("schema.input.picture.steps", (steps.DecodeImage(),), "expected an array in the end"),
        ("schema.input.picture.steps", (), "expected an array in the end, found an encoded image"),
        ("schema.output.answer.steps", (steps.TopK(0),), "steps[0].k: expected at least 1"),
        ("schema.output.answer.steps", (steps.TopK(), steps.Labels()), "expected exactly one of"),
        ("schema.output.answer.steps", (steps.Softmax(),), "expected a ranking in the end"),
        ("limits.burst", 0, "limits.burst: expected at least 1, found 0"),
        ("limits.rate_per_s", None, "limits.burst: expected rate_per_s beside it"),
        ("limits.batch_rows", 1024, "limits.batch_rows: expected at most queue_rows"),
        ("sla.availability", 1.5, "sla.availability: expected a share"),
        ("alerts.error_share", -0.1, "alerts.error_share: expected a share"),
        ("timeout.default_ms", 9000.0, "timeout.default_ms: expected at most maximum_ms"),
        ("priority.default", "norml", "did you mean 'normal'?"),
        ("priority.classes", (), "priority.classes: expected at least one"),
        ("release.rule", "canari", "did you mean 'canary'?"),
        ("release.shares", (), "release.shares: expected shares for a canary"),
        ("release.shares", (0.5, 0.1), "release.shares: expected growing shares"),
        ("golden.cat.file", "", "golden[1]: expected either a file or inputs"),
        ("golden.nothing.inputs", {"flag": model.Sample((1,), (0,))}, "did you mean 'flags'?"),
        ("golden.nothing.inputs", {"flags": model.Sample((2, 2), (0,))}, "expected 4 values"),
        ("pipeline", steps.Pipeline("pipeline.sh", 0), "pipeline.processes: expected at least 1"),
    ],
)
def test_what_makes_no_sense_is_told_by_its_path(path: str, value: Any, fault: str) -> None:
    found = review.problems(samples.changed(path, value))
    assert any(fault in line for line in found), found
    assert all(": " in line for line in found)


def test_means_and_deviations_fit_the_channels() -> None:
    chain = (steps.DecodeImage(), steps.Normalise(mean=(0.0, 0.0), std=(0.0,)))
    found = review.problems(samples.changed("schema.input.picture.steps", chain))
    assert [line.split(": ", 1)[1] for line in found] == [
        "expected one mean and std, or one for each of three channels",
        "nothing can be divided by 0",
    ]
