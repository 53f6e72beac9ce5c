"""Routes and headers: who answers without a version, what names it, what never becomes a label."""

from __future__ import annotations

import json
from typing import Any

from castiron.server import routes
from tests.server import live

X = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}


def infer(server: live.Server, path: str) -> tuple[dict[str, str], Any]:
    code, headers, content = server.ask("POST", path, {"inputs": [X]})
    assert code == 200, content
    return headers, json.loads(content)


def test_each_version_is_asked_by_its_number_and_the_highest_without_one(
    server: live.Server,
) -> None:
    for path, number in (
        ("/v2/models/add_one/infer", "2"),
        ("/v2/models/add_one/versions/1/infer", "1"),
        ("/v2/models/add_one/versions/2/infer", "2"),
        ("/v2/models/add%5Fone/versions/%32/infer", "2"),
        ("/v2/models/add_one/infer/", "2"),
        ("/v2/models/add_one/infer?trace=1", "2"),
    ):
        headers, answer = infer(server, path)
        assert answer["model_version"] == number
        assert answer["outputs"][0]["data"] == [2, 3, 4, 5]
        digest = server.get(f"/v2/models/add_one/versions/{number}")["parameters"]["digest"]
        assert headers["x-model-version"] == digest


def test_a_head_request_has_the_headers_and_no_body(server: live.Server) -> None:
    for path in ("/v2", "/v2/health/live", "/v2/health/ready", "/v2/models/add_one/ready"):
        code, headers, content = server.ask("HEAD", path)
        assert code == 200
        assert int(headers["content-length"]) > 0
        assert content == b""


def test_models_are_listed_and_metrics_have_their_type(server: live.Server) -> None:
    assert {"add_one", "broken"} <= set(server.get("/v2/models")["models"])
    code, headers, _ = server.ask("GET", "/metrics")
    assert code == 200
    assert headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"


def test_names_that_clients_make_up_never_become_labels(server: live.Server) -> None:
    before = server.metrics()
    for index in range(20):
        assert server.ask("POST", f"/v2/models/made_up_{index}/infer", {"inputs": [X]})[0] == 404
        answer = server.ask("POST", f"/v2/models/add_one/versions/{index + 5}/infer", {})
        assert answer[0] == 404
    after = server.metrics()
    assert not any("made_up" in name for name in after)
    assert not any(f"version={number}}}" in name for name in after for number in range(5, 25))
    unknown = "castiron_requests_total{model=,outcome=not_found,version=}"
    assert after[unknown] - before[unknown] == 20


def test_time_of_each_stage_is_observed_for_each_answer(server: live.Server) -> None:
    def counts() -> list[float]:
        found = server.metrics()
        return [
            found[f"castiron_stage_seconds_count{{model=add_one,stage={stage},version=1}}"]
            for stage in ("parse", "queue", "compute", "render")
        ]

    before = counts()
    infer(server, "/v2/models/add_one/versions/1/infer")
    assert counts() == [count + 1 for count in before]


def test_long_paths_that_clients_make_up_are_not_kept() -> None:
    for length in (10, 10_000):
        path = b"/v2/models/%b/infer" % (b"%41" * length)
        assert routes.of(path) == routes.Route("infer", "A" * length)
        assert routes.of(path) == routes.of(path)
        assert (routes.of(path) is routes.of(path)) == (length < 100)
