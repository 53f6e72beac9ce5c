"""Contracts of versions that are served: changed alone, and asking for what a server does not do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from castiron.contract import model
from tests.server import live, test_flow

_LOAD = "/v2/repository/models/picky/load"
_INFER = "/v2/models/picky/infer"


def test_a_contract_that_changed_alone_holds_after_the_next_load(tmp_path: Path) -> None:
    models = {**test_flow.PICKY, "picky/1/contract.toml": test_flow.contract("picky")}
    with live.serving(tmp_path, models) as server:
        assert server.ask("POST", _INFER, test_flow.rows(500.0))[0] == 200
        assert server.ask("POST", _LOAD)[0] == 200  # nothing has changed
        beside = tmp_path / "models" / "picky/1/contract.toml"
        beside.write_text(test_flow.contract("picky", range=(0, 100)))
        assert server.ask("POST", _INFER, test_flow.rows(500.0))[0] == 200
        assert server.ask("POST", _LOAD)[0] == 200
        assert server.ask("POST", _INFER, test_flow.rows(500.0))[0] == 400
        beside.unlink()
        assert server.ask("POST", _LOAD)[0] == 200
        assert server.ask("POST", _INFER, test_flow.rows(500.0))[0] == 200
        assert server.log().count("picky/1 is ready") == 3


def test_the_largest_body_of_a_contract_holds_for_each_request_of_a_batch(tmp_path: Path) -> None:
    declared = test_flow.contract("picky", limits=model.Limits(body_bytes=1000))
    with live.serving(tmp_path, {**test_flow.PICKY, "picky/1/contract.toml": declared}) as server:
        large, small = test_flow.rows(*range(1, 900)), test_flow.rows(1.0)
        assert server.ask("POST", _INFER, large)[0] == 413
        answer = server.ask("POST", "/v2/models/picky/batch", {"requests": [large] * 2})
        assert [each["status"] for each in json.loads(answer[2])["responses"]] == [413, 413]
        answer = server.ask("POST", "/v2/models/picky/batch", {"requests": [small] * 2})
        assert all("outputs" in each for each in json.loads(answer[2])["responses"])


def test_a_changed_contract_that_does_not_fit_leaves_what_answers(tmp_path: Path) -> None:
    models = {**test_flow.PICKY, "picky/1/contract.toml": test_flow.contract("picky")}
    with live.serving(tmp_path, models) as server:
        beside = tmp_path / "models" / "picky/1/contract.toml"
        beside.write_text(test_flow.contract("slow"))
        assert server.ask("POST", _LOAD)[0] == 503
        assert server.ask("POST", _INFER, test_flow.rows(5.0))[0] == 200


@pytest.mark.parametrize(
    "release",
    [
        model.Release("manual"),
        model.Release("shadow", min_agreement=0.9),
        model.Release("canary", shares=(0.1, 1.0)),
    ],
)
def test_a_release_rule_that_would_not_be_kept_is_refused(
    release: model.Release, tmp_path: Path
) -> None:
    declared = test_flow.contract("picky", release=release)
    with live.serving(tmp_path, {**test_flow.PICKY, "picky/1/contract.toml": declared}) as server:
        assert server.ask("POST", _INFER, test_flow.rows(5.0))[0] == 503
        log = server.log()
        assert f"release.rule: expected 'switch', found '{release.rule}'" in log
        assert "castiron models promote" in log
