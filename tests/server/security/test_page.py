"""The metrics page of one who may see some models."""

from __future__ import annotations

from prometheus_client import parser

from castiron.server.security import page, rights
from castiron.telemetry import metrics


def grant(*models: str) -> rights.Grant:
    return rights.Grant("x", (rights.Rule(models, frozenset({"metadata"})),))


def test_only_lines_of_its_own_models_are_shown() -> None:
    counted = metrics.Metrics()
    ended = counted.counter("castiron_ended_total", "Ended.", "model", "version")
    for model in ("mine", "yours", "", 'mine"},{model="yours', "mine\n", "a\\"):
        ended.child(model, "1").value += 1
    counted.gauge("castiron_pool_bytes", "Of all models together.").child().value = 5
    stages = counted.histogram("castiron_stage_seconds", "Stages.", "stage", "model")
    stages.child("mine", "yours").observe(1)
    stages.child("parse", "mine").observe(1)
    text = counted.expose()

    def shown(*models: str) -> set[str]:
        seen = page.visible(text, grant(*models))
        return {
            sample.labels.get("model", "the process")
            for family in parser.text_string_to_metric_families(seen)
            for sample in family.samples
        }

    assert shown("mine") == {"mine"}
    assert shown("a\\") == {"a\\"}
    assert shown('mine"},{model="yours') == {'mine"},{model="yours'}
    assert shown("mine*") == {"mine", "mine\n", 'mine"},{model="yours'}
    assert shown("nothing") == set()
    assert "yours" not in page.visible(text, grant("mine")).replace('{model="yours', "")
    assert page.visible(text, grant("*")) == text
    families = page.visible(text, grant("mine")).count("# TYPE")
    assert families == 2
