"""Flow control over a live server: limits, classes, a breaker, batches; and sums that agree."""

from __future__ import annotations

import gzip
import json
import math
import time
from concurrent import futures
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from castiron.contract import document, model
from tests.server import live

PICKY = {"picky/1/model.cast": "picky"}
SLOW = {"slow/1/model.cast": "slow"}


def rows(*values: float, **more: Any) -> dict[str, Any]:
    x = {"name": "x", "datatype": "FP32", "shape": [len(values), 1], "data": list(values)}
    return {"inputs": [x], **more}


def sleeping(seconds: float, **parameters: Any) -> dict[str, Any]:
    x = {"name": "seconds", "datatype": "FP32", "shape": [1], "data": [seconds]}
    return {"inputs": [x], "parameters": parameters}


def contract(of: str, **parts: Any) -> str:
    """The contract of one of our models as a file beside it."""
    x, y = ("seconds", "slept") if of == "slow" else ("x", "y")
    shape: tuple[Any, ...] = (1,) if of == "slow" else ("rows", 1)
    first = model.Tensor(x, "FP32", shape, range=parts.pop("range", None))
    return document.text(
        model.Contract(name=of, input=(first,), output=(model.Tensor(y, "FP32", shape),), **parts)
    )


def at_once(server: live.Server, path: str, bodies: list[Any]) -> list[live.Answer]:
    with futures.ThreadPoolExecutor(len(bodies)) as pool:
        return list(pool.map(lambda body: server.ask("POST", path, body), bodies))


def agrees(server: live.Server) -> bool:
    """Every accepted request has ended in exactly one outcome."""
    found = server.metrics()
    ended = sum(
        value for name, value in found.items() if name.startswith("castiron_requests_total{")
    )
    return found["castiron_requests_accepted_total{}"] == ended


def test_requests_are_merged_and_one_bad_one_fails_alone(tmp_path: Path) -> None:
    with live.serving(tmp_path, PICKY) as server:
        values = [-1.0 if number == 7 else float(number) for number in range(16)]
        with futures.ThreadPoolExecutor(16) as pool:
            with server.holding("picky"):
                calls = [
                    pool.submit(server.ask, "POST", "/v2/models/picky/infer", rows(value))
                    for value in values
                ]
                server.wait_in_flight(16)
            answers = [call.result() for call in calls]
        for value, (code, _, content) in zip(values, answers, strict=True):
            assert code == (500 if value == -1 else 200)
            if code == 200:
                assert json.loads(content)["outputs"][0]["data"] == [2 * value]
        (entry,) = server.get("/v2/models/picky/stats")["model_stats"]
        assert entry["inference_count"] == 15
        assert entry["execution_count"] < 12
        assert max(each["batch_size"] for each in entry["batch_stats"]) > 1
        assert agrees(server)


def test_a_model_whose_rows_depend_on_each_other_is_never_merged(tmp_path: Path) -> None:
    with live.serving(tmp_path, {"mixing/1/model.cast": "mixing"}) as server:
        x = {"name": "x", "datatype": "FP32", "shape": [2, 2], "data": [1, 2, 3, 4]}
        answers = at_once(server, "/v2/models/mixing/infer", [{"inputs": [x]}] * 8)
        for code, _, content in answers:
            assert code == 200
            assert json.loads(content)["outputs"][0]["data"] == [-1, -1, 1, 1]
        assert "its rows depend on each other" in server.log()


def test_merging_can_be_turned_off(tmp_path: Path) -> None:
    with live.serving(tmp_path, PICKY, batch_rows=1) as server:
        at_once(server, "/v2/models/picky/infer", [rows(1.0)] * 4)
        (entry,) = server.get("/v2/models/picky/stats")["model_stats"]
        assert entry["execution_count"] == 4


def test_values_outside_a_contract_are_refused_before_they_meet_others(tmp_path: Path) -> None:
    models = {**PICKY, "picky/1/contract.toml": contract("picky", range=(0, 100))}
    with live.serving(tmp_path, models) as server:
        code, _, content = server.ask("POST", "/v2/models/picky/infer", rows(5.0, -1.0))
        assert code == 400
        assert json.loads(content)["error"].startswith("inputs.x[1][0]: expected 0 to 100")
        assert server.ask("POST", "/v2/models/picky/infer", rows(5.0))[0] == 200


def test_a_contract_that_does_not_fit_its_model_keeps_it_out(tmp_path: Path) -> None:
    models = {**PICKY, "picky/1/contract.toml": contract("slow")}
    with live.serving(tmp_path, models) as server:
        assert server.ask("GET", "/v2/models/picky/ready")[0] == 503
        assert "the model has no input 'seconds'" in server.log()


def test_a_declared_limit_of_rows_cuts_large_requests(tmp_path: Path) -> None:
    limits = model.Limits(batch_rows=4)
    models = {**PICKY, "picky/1/contract.toml": contract("picky", limits=limits)}
    with live.serving(tmp_path, models) as server:
        code, _, content = server.ask("POST", "/v2/models/picky/infer", rows(*range(10)))
        assert code == 200
        assert json.loads(content)["outputs"][0]["data"] == [2 * value for value in range(10)]
        (entry,) = server.get("/v2/models/picky/stats")["model_stats"]
        assert [each["batch_size"] for each in entry["batch_stats"]] == [2, 4]


def test_a_client_that_asks_too_often_gets_429_and_others_do_not(tmp_path: Path) -> None:
    with live.serving(tmp_path, SLOW, rate_per_s=0.1, rate_burst=2) as server:
        path = "/v2/models/slow/infer"
        codes = [server.ask("POST", path, sleeping(0))[0] for _ in range(2)]
        code, headers, content = server.ask("POST", path, sleeping(0))
        assert [*codes, code] == [200, 200, 429]
        assert 5 <= int(headers["retry-after"]) <= 10
        assert headers["x-refusal-reason"] == "rate"
        assert "more often than 0.1 times a second" in json.loads(content)["error"]
        named = {"X-Client-Key": "another"}
        assert server.ask("POST", path, sleeping(0), named)[0] == 200
        refused = "castiron_refused_requests_total{model=slow,reason=rate,version=1}"
        assert server.metrics()[refused] == 1
        assert agrees(server)


def test_a_full_lane_keeps_room_for_what_is_more_important(tmp_path: Path) -> None:
    limits = model.Limits(queue_requests=10)
    models = {**SLOW, "slow/1/contract.toml": contract("slow", limits=limits)}
    with live.serving(tmp_path, models, max_in_flight=16) as server:
        path = "/v2/models/slow/infer"
        with server.holding("slow"):
            held = [
                live.in_background(server.ask, "POST", path, sleeping(0, priority=1))
                for _ in range(9)
            ]
            server.wait_in_flight(9)
            code, headers, _ = server.ask("POST", path, sleeping(0, priority="bulk"))
            assert (code, headers["x-refusal-reason"]) == (503, "shed")
            assert int(headers["retry-after"]) >= 1
            code, _, content = server.ask("POST", path, sleeping(0, priority="nobody"))
            assert code == 400
            assert json.loads(content)["error"].startswith("parameters.priority: expected one of")
            for _ in range(20):  # whatever is refused holds no place
                assert server.ask("POST", path, sleeping(0, priority="nobody"))[0] == 400
            important = sleeping(0, priority="interactive")
            held.append(live.in_background(server.ask, "POST", path, important))
            server.wait_in_flight(10)
        for thread, answers in held:
            thread.join()
            assert answers[0][0] == 200
        assert agrees(server)


def test_what_cannot_be_ready_in_time_is_refused_early(tmp_path: Path) -> None:
    with live.serving(tmp_path, SLOW) as server:
        path = "/v2/models/slow/infer"
        for _ in range(8):  # now it is known how long a run takes
            server.ask("POST", path, sleeping(0.25))
        with server.holding("slow"):
            held = [live.in_background(server.ask, "POST", path, sleeping(0)) for _ in range(24)]
            server.wait_in_flight(24)
            begun = time.monotonic()
            late = sleeping(0, timeout=3_000_000, priority="bulk")  # behind all of them
            code, headers, _ = server.ask("POST", path, late)
            assert (code, headers["x-refusal-reason"]) == (503, "too_late")
            assert time.monotonic() - begun < 2.9
        for thread, _ in held:
            thread.join()
        assert agrees(server)


@pytest.mark.parametrize("how", ["header", "parameter"])
def test_a_timeout_is_a_header_or_a_parameter_in_microseconds(
    server: live.Server, how: str
) -> None:
    headers = {"timeout": "50000"} if how == "header" else {}
    parameters = {} if how == "header" else {"timeout": 50_000}
    begun = time.monotonic()
    path = "/v2/models/slow/infer"
    with server.holding("slow"):
        assert server.ask("POST", path, sleeping(0, **parameters), headers)[0] == 504
    assert time.monotonic() - begun < 10  # without, it is thirty seconds
    code, _, content = server.ask("POST", path, sleeping(0), {"timeout": "soon"})
    assert code == 400
    assert json.loads(content)["error"] == "headers.timeout: expected whole microseconds"


def test_a_version_that_fails_is_given_a_rest_and_an_older_one_stands_in(tmp_path: Path) -> None:
    models = {"m/1/model.cast": "identity_float32", "m/2/model.cast": "fragile"}
    with live.serving(tmp_path, models) as server:
        bad = {"name": "x", "datatype": "FP32", "shape": [1], "data": [-1]}
        path = "/v2/models/m/infer"
        codes = [server.ask("POST", path, {"inputs": [bad]})[0] for _ in range(25)]
        assert codes[:20] == [500] * 20
        assert codes[20:] == [200] * 5  # version 1 gives back what it gets
        code, headers, content = server.ask("POST", "/v2/models/m/versions/2/infer", {})
        assert (code, headers["x-refusal-reason"]) == (503, "broken")
        assert int(headers["retry-after"]) >= 1
        assert "is given a rest" in json.loads(content)["error"]
        assert server.metrics()["castiron_breaker_open{model=m,version=2}"] == 1
        assert agrees(server)


def test_a_single_client_waits_for_nobody(tmp_path: Path) -> None:
    """Merging adds nothing to a run of 50 ms when nobody else asks."""

    def took_s(server: live.Server) -> float:
        begun = time.monotonic()
        assert server.ask("POST", "/v2/models/picky/infer", rows(1.0))[0] == 200
        return time.monotonic() - begun

    with (
        live.serving(tmp_path / "merged", PICKY, batch_rows=32) as merging,
        live.serving(tmp_path / "alone", PICKY, batch_rows=1) as plain,
    ):
        # The fastest of many is the one that nothing else on the machine held up.
        merged_s = plain_s = math.inf
        for number in range(100):
            merged_s = min(merged_s, took_s(merging))
            plain_s = min(plain_s, took_s(plain))
            if number >= 8 and merged_s < 1.05 * plain_s + 0.002:
                break
    assert merged_s < 1.05 * plain_s + 0.002


def test_many_requests_in_one_call_have_their_own_outcomes(tmp_path: Path) -> None:
    with live.serving(tmp_path, PICKY) as server:
        path = "/v2/models/picky/batch"
        requests = [rows(1.0, id="a"), rows(-1.0), {"inputs": []}, 7, rows(2.0, 3.0)]
        code, _, content = server.ask("POST", path, {"requests": requests})
        assert code == 200
        first, failed, missing, odd, last = json.loads(content)["responses"]
        assert (first["id"], first["outputs"][0]["data"]) == ("a", [2])
        assert (failed["status"], missing["status"], odd["status"]) == (500, 400, 400)
        assert missing["error"] == "inputs: missing 'x'"
        assert last["outputs"][0]["data"] == [4, 6]
        assert server.outcomes() == {"ok": 2, "failed": 1, "invalid": 2}
        assert agrees(server)


@pytest.mark.parametrize("body", [{}, {"requests": []}, {"requests": {}}, {"requests": [1] * 1025}])
def test_a_call_of_many_that_is_wrong_as_a_whole_is_refused(server: live.Server, body: Any) -> None:
    code, _, content = server.ask("POST", "/v2/models/picky/batch", body)
    assert code == 400
    assert json.loads(content)["error"].startswith("requests: expected a list of 1 to 1024")
    assert server.ask("POST", "/v2/models/none/batch", {"requests": [rows(1.0)]})[0] == 200
    assert agrees(server)


def test_raw_tensors_of_many_requests_follow_each_other(tmp_path: Path) -> None:
    with live.serving(tmp_path, {"m/1/model.cast": "identity_int32"}) as server:
        arrays = [np.arange(n, dtype="<i4") for n in (3, 0, 5)]
        requests = [
            {
                "inputs": [{"name": "x", "datatype": "INT32", "shape": [len(a)],
                            "parameters": {"binary_data_size": a.nbytes}}],
                "parameters": {"binary_data_output": True},
            }
            for a in arrays
        ]  # fmt: skip
        head = json.dumps({"requests": requests}).encode()
        raw = b"".join(a.tobytes() for a in arrays)
        length = {"Inference-Header-Content-Length": str(len(head))}
        for pack in (lambda data: data, gzip.compress):
            packed = {} if pack is not gzip.compress else {"Content-Encoding": "gzip"}
            code, headers, content = server.ask(
                "POST", "/v2/models/m/batch", pack(head + raw), {**length, **packed}
            )
            assert code == 200
            assert content[int(headers["inference-header-content-length"]) :] == raw
        code, _, content = server.ask("POST", "/v2/models/m/batch", head + raw + b"x", length)
        assert code == 400
        assert "1 bytes after the JSON belong to no request" in json.loads(content)["error"]
