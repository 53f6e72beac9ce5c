"""A request from its head to a receiver of spans, and what its answer tells of itself."""

from __future__ import annotations

import json
import re
import signal
import threading
import time
from pathlib import Path
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2_grpc

from tests.server import grpc_calls, live
from tests.telemetry import receiver

_TRACE, _SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
_PARENT = {"traceparent": f"00-{_TRACE}-{_SPAN}-01", "tracestate": "a=1"}
_MODELS = {"add_one/1/model.cast": "add_one"}
_INFER = "/v2/models/add_one/infer"


def _rows(server: live.Server) -> dict[str, Any]:
    """A request that the model takes."""
    told = server.get("/v2/models/add_one")["inputs"][0]
    shape = [2 if dim == -1 else dim for dim in told["shape"]]
    count = 1
    for dim in shape:
        count *= dim
    tensor = {**told, "shape": shape, "data": [1] * count}
    return {"inputs": [tensor]}


def _roots(received: receiver.Received) -> list[Any]:
    """The spans of whole requests that came so far."""
    return [span for span in [*received.spans] if span.kind == span.SPAN_KIND_SERVER]


@pytest.mark.parametrize("kind", [*receiver.KINDS])
def test_each_stage_of_a_served_request_reaches_the_receiver(kind: str, tmp_path: Path) -> None:
    with receiver.KINDS[kind]() as received:
        with live.serving(tmp_path, _MODELS, traces=received.endpoint, trace_share=0.0) as server:
            code, headers, body = server.ask("POST", _INFER, _rows(server), _PARENT)
            assert code == 200, body
            assert headers["x-trace-id"] == _TRACE
            code, refused, _ = server.ask("POST", _INFER, {"inputs": []}, _PARENT)
            assert code == 400
            assert refused["x-trace-id"] == _TRACE
            code, other, _ = server.ask("POST", _INFER, _rows(server))
            assert other["x-trace-id"] != _TRACE
            assert "traceresponse" not in other
            # What is still to be sent at the end is sent on but for a while.
            live.until(lambda: len(_roots(received)) == 2)
            assert server.stop(signal.SIGTERM) == 0
        roots = _roots(received)
        assert {span.trace_id.hex() for span in roots} == {_TRACE}
        assert [receiver.values(span.attributes)["castiron.outcome"] for span in roots] == [
            "ok", "invalid",
        ]  # fmt: skip
        good = roots[0]
        assert headers["traceresponse"] == f"00-{_TRACE}-{good.span_id.hex()}-01"
        assert good.parent_span_id.hex() == _SPAN
        assert good.trace_state == "a=1"
        labels = receiver.values(good.attributes)
        assert labels["castiron.model"] == "add_one"
        assert labels["castiron.version"] == "1"
        assert labels["castiron.device"] == "cpu"
        assert labels["castiron.protocol"] == "http"
        assert labels["castiron.batch_id"] == 1
        assert labels["castiron.batch_rows"] >= 1
        assert labels["castiron.input_bytes"] > 0
        below = [span for span in received.spans if span.parent_span_id == good.span_id]
        assert [span.name for span in below] == [
            "read", "parse", "queue", "batch", "compute", "render",
        ]  # fmt: skip
        assert below[0].start_time_unix_nano == good.start_time_unix_nano
        assert below[-1].end_time_unix_nano <= good.end_time_unix_nano


def test_answers_tell_of_the_trace_of_times_and_of_the_machine(server: live.Server) -> None:
    _, headers, _ = server.ask("POST", _INFER, _rows(server))
    assert re.fullmatch("[0-9a-f]{32}", headers["x-trace-id"])
    assert "traceresponse" not in headers  # nothing was recorded
    stages = [word.partition(";dur=") for word in headers["server-timing"].split(", ")]
    assert [name for name, _, _ in stages] == ["queue", "compute", "render", "total"]
    took_ms = [float(time_ms) for _, _, time_ms in stages]
    assert min(took_ms) >= 0
    assert sum(took_ms[:3]) <= took_ms[3] + 0.01
    assert 0 <= float(headers["x-device-utilization"]) <= 1
    assert 0 <= float(headers["x-memory-fragmentation"]) <= 1
    assert headers["x-model-version"]
    _, refused, _ = server.ask("POST", "/v2/models/none/infer", {})
    assert re.fullmatch(r"total;dur=\d+\.\d{3}", refused["server-timing"])
    assert re.fullmatch("[0-9a-f]{32}", refused["x-trace-id"])
    _, others, _ = server.ask("GET", "/v2")
    assert "x-trace-id" not in others


def test_log_lines_about_a_request_have_its_trace_and_others_have_none(tmp_path: Path) -> None:
    models = {"fragile/1/model.cast": "fragile"}
    x = {"name": "x", "datatype": "FP32", "shape": [1], "data": [-1]}
    with live.serving(tmp_path, models, log_form="json", grpc_port=0) as server:
        told = [
            server.ask("POST", "/v2/models/fragile/infer", {"inputs": [x]})[1]["x-trace-id"]
            for _ in range(3)
        ]
        sent = grpc_calls.message("fragile", "FP32", [1], fp32_contents=[-1])
        with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            error: Any = grpc_calls.refused(stub.ModelInfer, sent)
            told.append(dict(error.trailing_metadata())["x-trace-id"])
        assert server.stop(signal.SIGTERM) == 0
        lines = [json.loads(line) for line in server.log().splitlines()]
    failed = [line for line in lines if "ZeroDivisionError" in line.get("error", "")]
    assert [line["trace_id"] for line in failed] == told
    assert len(set(told)) == 4
    assert {line["level"] for line in failed} == {"error"}
    assert any(line["event"] == "stopped" for line in lines)
    assert not any("trace_id" in line for line in lines if line not in failed)


def test_a_terse_server_tells_nothing_of_that(tmp_path: Path) -> None:
    with live.serving(tmp_path, _MODELS, terse_replies=True) as server:
        code, headers, _ = server.ask("POST", _INFER, _rows(server))
        assert code == 200
        assert {"x-trace-id", "traceresponse", "server-timing", "x-device-utilization"}.isdisjoint(
            headers
        )


def test_two_workers_show_one_page_and_a_successor_goes_on(tmp_path: Path) -> None:
    shared = str(tmp_path / "metrics")
    Path(shared).mkdir()
    name = "castiron_requests_total{model=add_one,outcome=ok,version=1}"
    with live.serving(tmp_path / "a", _MODELS, metrics_dir=shared, worker=0) as one:
        with live.serving(tmp_path / "b", _MODELS, metrics_dir=shared, worker=1) as two:
            for server, count in ((one, 3), (two, 4)):
                for _ in range(count):
                    assert server.ask("POST", _INFER, _rows(server))[0] == 200
            pages = [server.metrics() for server in (one, two)]
            assert [page[name] for page in pages] == [7, 7]
            assert pages[0]["castiron_requests_accepted_total{}"] == 7
            two.process.kill()
            two.process.wait()
        assert one.metrics()[name] == 7
        with live.serving(tmp_path / "c", _MODELS, metrics_dir=shared, worker=1) as three:
            assert three.ask("POST", _INFER, _rows(three))[0] == 200
            assert one.metrics()[name] == three.metrics()[name] == 8


def test_times_of_another_worker_are_told_a_second_later_or_when_it_has_ended(
    tmp_path: Path,
) -> None:
    shared = str(tmp_path / "metrics")
    Path(shared).mkdir()
    name = "castiron_request_seconds_count{model=add_one,version=1}"
    with live.serving(tmp_path / "a", _MODELS, metrics_dir=shared, worker=0) as one:
        with live.serving(tmp_path / "b", _MODELS, metrics_dir=shared, worker=1) as two:
            for _ in range(3):
                assert two.ask("POST", _INFER, _rows(two))[0] == 200
            assert two.metrics()[name] == 3
            end_s = time.monotonic() + 20
            while one.metrics()[name] != 3:
                assert time.monotonic() < end_s
                time.sleep(0.05)
            assert two.ask("POST", _INFER, _rows(two))[0] == 200
            assert two.stop() == 0
        assert one.metrics()[name] == 4


def test_every_request_of_many_at_once_has_one_outcome_and_its_spans(tmp_path: Path) -> None:
    num_threads, each = 8, 60
    with receiver.over_http() as received:
        received.keeps = False
        with live.serving(tmp_path, _MODELS, traces=received.endpoint, trace_share=1.0) as server:
            body = _rows(server)

            def ask() -> None:
                for _ in range(each):
                    assert server.ask("POST", _INFER, body)[0] == 200

            threads = [threading.Thread(target=ask) for _ in range(num_threads)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert server.outcomes() == {"ok": num_threads * each}
            live.until(lambda: received.count >= 7 * num_threads * each)
            assert server.stop() == 0
        assert received.count == 7 * num_threads * each


def test_a_batch_of_requests_shares_the_trace_of_its_caller(tmp_path: Path) -> None:
    with receiver.over_http() as received:
        with live.serving(tmp_path, _MODELS, traces=received.endpoint) as server:
            body = {"requests": [_rows(server)] * 3}
            code, _, told = server.ask("POST", "/v2/models/add_one/batch", body, _PARENT)
            assert code == 200, told
            assert len(json.loads(told)["responses"]) == 3
            live.until(lambda: len(_roots(received)) == 3)
            assert server.stop() == 0
        roots = _roots(received)
        assert [span.parent_span_id.hex() for span in roots] == [_SPAN] * 3


@pytest.mark.slow
def test_of_a_hundred_thousand_traced_requests_one_in_a_thousand_spans_is_lost_at_most(
    tmp_path: Path,
) -> None:
    num_connections, each, at_once = 4, 25_000, 50
    with receiver.over_http() as received:
        received.keeps = False
        with live.serving(tmp_path, _MODELS, traces=received.endpoint, trace_share=1.0) as server:
            body = json.dumps(_rows(server)).encode()
            head = f"POST {_INFER} HTTP/1.1\r\nhost: h\r\ncontent-length: {len(body)}\r\n\r\n"
            message = (head.encode() + body) * at_once

            def ask() -> None:
                with server.connect() as connection:
                    for _ in range(each // at_once):
                        connection.sendall(message)
                        found = 0
                        rest = b""
                        while found < at_once:
                            part = rest + connection.recv(1 << 16)
                            found += part.count(b"HTTP/1.1 200 OK")
                            rest = part[-14:]  # one byte less than what is counted

            threads = [threading.Thread(target=ask) for _ in range(num_connections)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            count = num_connections * each
            assert server.outcomes() == {"ok": count}
            assert server.stop() == 0
        assert 7 * count * 0.999 <= received.count <= 7 * count
