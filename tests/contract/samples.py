"""Contracts that the tests of this folder share: one with everything, and its text."""

from __future__ import annotations

import dataclasses
from typing import Any

from castiron.contract import model, steps

TENSORS = (
    model.Tensor("image", "FP32", ("N", 3, 224, 224), range=(0.0, 1.0), nan="refuse"),
    model.Tensor("flags", "INT64", ("N", "M"), allowed=(0, 1, 2), max_dims=(64, 0)),
)
SCORES = model.Tensor("scores", "FP32", ("N", 10), range=(0.0, 1.0), infinity="refuse")
PICTURE = model.Entry(
    "picture",
    "image",
    "image",
    encodings=("base64", "raw"),
    formats=("jpeg", "png"),
    max_pixels=1 << 24,
    steps=(
        steps.DecodeImage(),
        steps.Resize(256, 256, how="crop"),
        steps.Crop(224, 224),
        steps.Normalise(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)),
    ),
)
QUESTION = model.Entry("question", "text", languages=("en", "de", "pt-BR"), max_chars=400)
READINGS = model.Entry(
    "readings", "table", "flags", optional=True, max_rows=10,
    columns=(model.Column("mass", (0, 100), "kg"), model.Column("length", unit="m")),
)  # fmt: skip


def labelled(*names: str) -> tuple[steps.Step, ...]:
    """From scores to the five best labels."""
    return (steps.Softmax(), steps.TopK(5), steps.Labels(names=names))


ANSWER = model.Entry("answer", "labels", "scores", steps=labelled("cat", "dog"))

FULL = model.Contract(
    name="classifier",
    description="Says what is in a picture.",
    input=TENSORS,
    output=(SCORES, model.Tensor("words", "BYTES", ("N",), max_bytes=64)),
    schema=model.Schema((PICTURE, QUESTION, READINGS), (ANSWER,)),
    sla=model.Sla(p99_ms=50.0, throughput_per_s=200.0, availability=0.999),
    limits=model.Limits(
        rate_per_s=100.0, burst=20, body_bytes=1 << 20, queue_requests=64, queue_rows=512,
        queue_bytes=1 << 28, batch_rows=16, concurrency=2,
    ),
    timeout=model.Timeout(1000.0, 5000.0),
    alerts=model.Alerts(error_share=0.01, p99_ms=80.0),
    release=model.Release(rule="canary", shares=(0.05, 0.25, 1.0)),
    golden=(
        model.Golden(
            "nothing",
            inputs={"flags": model.Sample((1, 2), (0, 1))},
            outputs={"scores": model.Sample((1, 0), ())},
        ),
        model.Golden("cat", file="golden/cat.npz"),
    ),
)  # fmt: skip


def changed(path: str, value: Any, contract: model.Contract = FULL) -> model.Contract:
    """The contract with one field set, such as ``limits.burst`` or ``input.image.range``."""
    found = _set(contract, path.split("."), value)
    assert isinstance(found, model.Contract)
    return found


def _set(record: Any, words: list[str], value: Any) -> Any:
    first, *rest = words
    if isinstance(record, tuple):
        return tuple(_set(item, rest, value) if item.name == first else item for item in record)
    inner = _set(getattr(record, first), rest, value) if rest else value
    return dataclasses.replace(record, **{first: inner})
