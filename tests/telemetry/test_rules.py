"""Dashboards and alert rules: names exist, PromQL parses, promtool agrees, and tests can fail."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest

from castiron import api, cli, errors
from castiron.telemetry import boards, families, rules, watched, yaml_text

_CONTRACT = """
format = 1
name = "fast"
[sla]
p99_ms = 50.0
throughput_per_s = 200
availability = 0.999
[alerts]
queue_share = 0.5
window_s = 120.0
"""
_ODD = 'od"d {{ .Name }} né\\'
_MODELS = [
    watched.Watched("fast", 0.05, 0.001, 0.05, 0.5, 200.0, 120.0),
    watched.Watched("plain", error_share=0.01),
    watched.Watched(_ODD, 2.5, 1.0, 0.3, 0.8, None, 30.0),
    watched.Watched("unwatched"),
]


def _expressions() -> Iterator[str]:
    for board in boards.files(_MODELS).values():
        yield from boards.queries(board)
    for group in rules.document(_MODELS)["groups"]:
        yield from (rule["expr"] for rule in group["rules"])


def _selectors(node: Any) -> Iterator[str]:
    """Every metric that a parsed expression asks for."""
    if isinstance(node, promql_parser.VectorSelector):
        assert node.name is not None
        yield node.name
    for name in ("expr", "lhs", "rhs", "vector_selector", "param"):
        below = getattr(node, name, None)
        if below is not None and not isinstance(below, str | float):
            yield from _selectors(below)
    for below in getattr(node, "args", None) or []:
        yield from _selectors(below)


def test_every_expression_is_promql_and_asks_for_families_that_exist() -> None:
    known = set()
    for declared in families.ALL:
        known.add(declared.name)
        if declared.kind == "histogram":
            known |= {f"{declared.name}_{part}" for part in ("bucket", "sum", "count")}
    asked = set()
    for expression in _expressions():
        found = set(_selectors(promql_parser.parse(expression)))
        assert found, expression
        asked |= found
    assert asked <= known
    assert len(asked) > 25


def test_boards_have_ids_places_and_limits_of_their_own() -> None:
    made = boards.files(_MODELS)
    assert len(made) == len(_MODELS) + 1
    assert len({board["uid"] for board in made.values()}) == len(made)
    for board in made.values():
        json.dumps(board)
        places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in board["panels"]]
        assert len(set(places)) == len(places)
        assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in board["panels"])
    lines = {
        panel["title"]: panel["fieldConfig"]["defaults"]["thresholds"]["steps"][1]["value"]
        for panel in made["castiron-model-fast.json"]["panels"]
        if len(panel["fieldConfig"]["defaults"]["thresholds"]["steps"]) > 1
    }
    assert lines == {
        "Answered": 200.0, "Time of requests": 0.05, "Failed": 0.001, "Refused": 0.05,
        "Queue": 0.5,
    }  # fmt: skip
    assert all("/" not in name and name.isascii() for name in made)


def test_limits_come_from_the_contract_and_defaults_for_a_model_without_one(tmp_path: Path) -> None:
    for place in ("fast/1", "plain/2", "plain/10", ".hidden/1"):
        (tmp_path / "models" / place).mkdir(parents=True)
    (tmp_path / "models/fast/1/contract.toml").write_text(_CONTRACT)
    (tmp_path / "models/plain/10/contract.toml").write_text(
        'format = 1\nname = "plain"\n[alerts]\nerror_share = 0.25\n'
    )
    assert cli.main(["dashboard", str(tmp_path / "models"), "-o", str(tmp_path / "out")]) == 0
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert written == {
        "castiron-servers.json", "castiron-model-fast.json", "castiron-model-plain.json",
        rules.RULES_FILE, rules.TESTS_FILE,
    }  # fmt: skip
    text = (tmp_path / "out" / rules.RULES_FILE).read_text()
    assert "> 0.05" in text
    assert "> 0.001" in text
    assert "> 0.25" in text
    assert text.count("CastironSlow") == 1
    assert 'for: "120s"' in text


def test_a_folder_that_is_not_there_is_named() -> None:
    with pytest.raises(errors.CastironError, match="none at /nowhere"):
        api.dashboard("/nowhere")


@pytest.mark.parametrize(
    "content, expected",
    [
        ({"a": 1, "b": "x: y"}, 'a: 1\nb: "x: y"\n'),
        ({"a": [{"b": [1, {"c": "d"}]}, []]}, 'a:\n  - b:\n      - 1\n      - c: "d"\n  - []\n'),
        ({"odd key": {"x_y": True}}, '"odd key":\n  x_y: true\n'),
    ],
)
def test_the_form_of_rule_files(content: dict[str, Any], expected: str) -> None:
    assert yaml_text.text(content) == expected


def _write(folder: Path) -> None:
    (folder / rules.RULES_FILE).write_text(yaml_text.text(rules.document(_MODELS)))
    (folder / rules.TESTS_FILE).write_text(yaml_text.text(rules.tests(_MODELS)))


def _promtool(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["promtool", *words], cwd=folder, capture_output=True, text=True, check=False
    )


@pytest.mark.slow
def test_promtool_accepts_the_rules_and_their_tests(tmp_path: Path) -> None:
    _write(tmp_path)
    checked = _promtool(tmp_path, "check", "rules", rules.RULES_FILE)
    assert checked.returncode == 0, checked
    num_rules = sum(len(group["rules"]) for group in rules.document(_MODELS)["groups"])
    assert f"{num_rules} rules found" in checked.stdout
    assert num_rules == 6 + 4 + 1 + 3
    tested = _promtool(tmp_path, "test", "rules", rules.TESTS_FILE)
    assert tested.returncode == 0, tested.stderr


@pytest.mark.slow
@pytest.mark.parametrize("rule", range(14))
def test_the_rules_tests_fail_when_a_rule_is_turned_round(tmp_path: Path, rule: int) -> None:
    _write(tmp_path)
    document = rules.document(_MODELS)
    every = [rule for group in document["groups"] for rule in group["rules"]]
    before = every[rule]["expr"]
    every[rule]["expr"] = before[::-1].replace("> "[::-1], "< "[::-1], 1)[::-1]
    if every[rule]["expr"] == before:
        every[rule]["expr"] = before.replace(" == 0", " == 1").replace(" != 0", " == 0")
    (tmp_path / rules.RULES_FILE).write_text(yaml_text.text(document))
    assert every[rule]["expr"] != before
    assert _promtool(tmp_path, "check", "rules", rules.RULES_FILE).returncode == 0
    assert _promtool(tmp_path, "test", "rules", rules.TESTS_FILE).returncode != 0
