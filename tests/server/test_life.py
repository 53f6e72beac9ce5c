"""Starting, draining, stopping, overload, slow and leaving clients: what the process does."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from castiron import errors
from castiron.registry import supply
from castiron.server import life
from castiron.server import settings as server_settings
from castiron.server.security import settings as security_settings
from tests.server import live, numpy_server

SLOW = {"slow/1/model.cast": "slow"}
PATH = "/v2/models/slow/infer"


def sleeping(seconds: float, **more: Any) -> dict[str, Any]:
    x = {"name": "seconds", "datatype": "FP32", "shape": [1], "data": [seconds]}
    return {"inputs": [x], **more}


def raw(seconds: float, path: str = PATH) -> bytes:
    body = json.dumps(sleeping(seconds)).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_what_is_in_flight_be_answered_and_ends_with_status_0(
    tmp_path: Path, number: int
) -> None:
    with live.serving(tmp_path, SLOW) as server:
        with server.holding("slow"):
            calls = [live.in_background(server.ask, "POST", PATH, sleeping(0)) for _ in range(6)]
            server.wait_in_flight(6)
            server.process.send_signal(number)
            server.wait_closed()
        for thread, answers in calls:
            thread.join()
            code, headers, _ = answers[0]
            assert code == 200
            assert headers["connection"] == "close"
        assert server.process.wait(10) == 0
        assert "Traceback" not in server.log()


def test_readiness_goes_down_first_while_requests_are_still_answered(tmp_path: Path) -> None:
    with live.serving(tmp_path, SLOW, drain_delay_s=4) as server:
        assert server.get("/v2/health/ready")["ready"]
        server.process.send_signal(signal.SIGTERM)
        live.until(lambda: server.ask("GET", "/v2/health/ready")[0] == 503)
        assert server.get("/v2/health/live") == {"live": True}
        assert server.ask("POST", PATH, sleeping(0))[0] == 200
        assert server.process.wait(10) == 0


def test_what_takes_too_long_to_drain_is_answered_with_503(tmp_path: Path) -> None:
    with live.serving(tmp_path, SLOW, drain_timeout_s=0.3) as server:
        with server.holding("slow"):
            thread, answers = live.in_background(server.ask, "POST", PATH, sleeping(0))
            server.wait_in_flight(1)
            server.process.send_signal(signal.SIGTERM)
            thread.join()
        code, headers, content = answers[0]
        assert code == 503
        assert "retry-after" in headers
        assert "the server is stopping" in json.loads(content)["error"]
        assert server.process.wait(10) == 0


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    with live.serving(tmp_path, SLOW) as server:
        with server.holding("slow"):
            thread, _ = live.in_background(_ignoring_loss, server)
            server.wait_in_flight(1)
            server.process.send_signal(signal.SIGTERM)
            server.wait_closed()  # two signals at once may be one
            server.process.send_signal(signal.SIGTERM)
            thread.join()  # the run is not waited for
        # Only the thread of the numpy model is.
        assert server.process.wait(10) == 1


def _ignoring_loss(server: live.Server) -> None:
    with contextlib.suppress(OSError):
        server.ask("POST", PATH, sleeping(0))


def test_no_process_is_left_behind_by_models_that_run_apart(tmp_path: Path) -> None:
    with live.serving(tmp_path, {"m/1/model.cast": "fragile interpreted"}) as server:
        children = _children(server.process.pid)
        assert len(children) == 1
        assert server.stop() == 0
        live.until(lambda: not any(Path(f"/proc/{child}").exists() for child in children))


def test_models_that_run_apart_end_with_a_server_that_is_killed(tmp_path: Path) -> None:
    with live.serving(tmp_path, {"m/1/model.cast": "fragile interpreted"}) as server:
        (child,) = _children(server.process.pid)
        server.stop(signal.SIGKILL)
        live.until(lambda: not _is_running(child))


def _children(process_id: int) -> list[int]:
    text = Path(f"/proc/{process_id}/task/{process_id}/children").read_text()
    return [int(child) for child in text.split()]


def _is_running(process_id: int) -> bool:
    try:
        state = Path(f"/proc/{process_id}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_more_than_the_allowed_requests_in_flight_are_refused_with_a_hint(tmp_path: Path) -> None:
    with live.serving(tmp_path, SLOW, max_in_flight=2) as server:
        with server.holding("slow"):
            calls = [live.in_background(server.ask, "POST", PATH, sleeping(0)) for _ in range(2)]
            server.wait_in_flight(2)
            code, headers, content = server.ask("POST", PATH, sleeping(0))
        assert code == 503
        assert headers["retry-after"] == "1"
        assert "2 requests are in flight" in json.loads(content)["error"]
        for thread, answers in calls:
            thread.join()
            assert answers[0][0] == 200
        assert server.ask("POST", PATH, sleeping(0))[0] == 200
        assert server.outcomes() == {"ok": 3, "overloaded": 1}


def test_bodies_of_all_requests_together_are_bounded(tmp_path: Path) -> None:
    with live.serving(tmp_path, SLOW, max_buffered_bytes=1000) as server:
        head = f"POST {PATH} HTTP/1.1\r\nHost: a\r\nContent-Length: 900\r\n\r\n".encode()
        with server.connect() as holding:
            holding.sendall(head)
            server.wait_in_flight(1)
            code, _, content = server.ask("POST", PATH, sleeping(0, id="x" * 200))
            assert code == 503
            assert "bodies of other requests" in json.loads(content)["error"]
        server.wait_in_flight(0)
        assert server.ask("POST", PATH, sleeping(0))[0] == 200
        assert server.outcomes() == {"ok": 1, "overloaded": 1, "cancelled": 1}


def test_a_client_that_leaves_frees_its_place_only_when_its_run_is_over(tmp_path: Path) -> None:
    with live.serving(tmp_path, SLOW, max_in_flight=1) as server:
        with server.holding("slow"):
            with server.connect() as leaving:
                leaving.sendall(raw(0))
                server.wait_in_flight(1)
            live.until(lambda: server.outcomes() == {"cancelled": 1})
            assert server.ask("POST", PATH, sleeping(0))[0] == 503
        live.until(lambda: server.ask("POST", PATH, sleeping(0))[0] == 200)


def test_work_of_clients_that_left_while_it_was_queued_is_never_done(tmp_path: Path) -> None:
    with live.serving(tmp_path, SLOW) as server:
        accepted = "castiron_requests_accepted_total{}"
        with server.holding("slow"):
            calls = [live.in_background(server.ask, "POST", PATH, sleeping(0)) for _ in range(2)]
            server.wait_in_flight(2)
            for number in range(3, 8):
                with server.connect() as leaving:
                    leaving.sendall(raw(0))
                    live.until(lambda n=number: server.metrics()[accepted] == n)  # type: ignore[misc]
            live.until(lambda: server.outcomes() == {"cancelled": 5})
        for thread, answers in calls:
            thread.join()
            assert answers[0][0] == 200
        (entry,) = server.get("/v2/models/slow/stats")["model_stats"]
        assert entry["execution_count"] == 2
        assert server.metrics()["castiron_wasted_runs_total{model=slow,version=1}"] == 0


def test_an_answer_that_is_late_is_refused_in_time(tmp_path: Path) -> None:
    with live.serving(tmp_path, SLOW, request_timeout_s=3) as server, server.holding("slow"):
        begun = time.monotonic()
        code, _, content = server.ask("POST", PATH, sleeping(0))
        assert code == 504
        assert "not ready in the time allowed" in json.loads(content)["error"]
        assert time.monotonic() - begun > 2.9
        timeout = {"timeout": 50_000}
        begun = time.monotonic()
        assert server.ask("POST", PATH, sleeping(0, parameters=timeout))[0] == 504
        assert time.monotonic() - begun < 2.9  # before the time of all requests
        assert server.outcomes() == {"timeout": 2}


def test_clients_that_are_slow_with_head_or_body_are_ended(tmp_path: Path) -> None:
    with live.serving(tmp_path, SLOW, head_timeout_s=2, body_timeout_s=2) as server:
        head, _, body = raw(0).partition(b"\r\n\r\n")
        with server.connect() as silent, contextlib.ExitStack() as others:
            cut = others.enter_context(_having_said(server, head[:-5]))
            slow = others.enter_context(_having_said(server, head + b"\r\n\r\n" + body[:10]))
            assert live.until_closed(silent) == b""
            for connection in (cut, slow):
                assert live.until_closed(connection).startswith(b"HTTP/1.1 408 ")
        assert server.ask("POST", PATH, sleeping(0))[0] == 200
        assert server.outcomes() == {"ok": 1, "cancelled": 1}


def _having_said(server: live.Server, data: bytes) -> socket.socket:
    connection = server.connect()
    connection.sendall(data)
    return connection


def test_a_client_that_does_not_read_its_answer_is_dropped(tmp_path: Path) -> None:
    models = {"m/1/model.cast": "identity_uint8"}
    with live.serving(tmp_path, models, body_timeout_s=2) as server:
        size = 30 << 20
        x = {"name": "x", "datatype": "UINT8", "shape": [size],
             "parameters": {"binary_data_size": size}}  # fmt: skip
        body = json.dumps({"inputs": [x], "parameters": {"binary_data_output": True}}).encode()
        head = (
            "POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\n"
            f"Inference-Header-Content-Length: {len(body)}\r\nContent-Length: {len(body) + size}"
        )
        with server.connect() as stuck:
            stuck.sendall(head.encode() + b"\r\n\r\n" + body + bytes(size))
            name = "castiron_connections_refused_total{reason=unread}"
            live.until(lambda: server.metrics().get(name) == 1)
            assert len(live.until_closed(stuck)) < size


def test_a_steady_slow_sender_is_not_ended(tmp_path: Path) -> None:
    with live.serving(
        tmp_path, SLOW, head_timeout_s=5, body_timeout_s=2, min_body_rate=10
    ) as server:
        head, _, body = raw(0).partition(b"\r\n\r\n")
        with server.connect() as slow:
            slow.sendall(head + b"\r\n\r\n")
            for at in range(0, len(body), 10):
                slow.sendall(body[at : at + 10])
                time.sleep(0.3)
            assert slow.recv(65536).startswith(b"HTTP/1.1 200 ")


def test_pipelined_requests_are_answered_in_order(tmp_path: Path) -> None:
    with live.serving(tmp_path, SLOW) as server:
        last = b"GET /v2/health/live HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
        answers = server.send(raw(0.2) + raw(0) + last)
        assert answers.count(b"HTTP/1.1 200 OK") == 3
        assert answers.index(b"slept") < answers.index(b'"live"')


def test_an_expected_continue_is_given_and_a_refused_one_is_not_waited_for(
    tmp_path: Path,
) -> None:
    with live.serving(tmp_path, SLOW, max_body_bytes=200) as server:
        head, _, body = raw(0).partition(b"\r\n\r\n")
        with server.connect() as asking:
            asking.sendall(head + b"\r\nExpect: 100-continue\r\n\r\n")
            assert asking.recv(65536).startswith(b"HTTP/1.1 100 ")
            asking.sendall(body)
            assert asking.recv(65536).startswith(b"HTTP/1.1 200 ")
        refused = (
            b"POST %s HTTP/1.1\r\nHost: a\r\nContent-Length: 999\r\nExpect: 100-continue\r\n\r\n"
        )
        assert server.send(refused % PATH.encode()).startswith(b"HTTP/1.1 413 ")


def test_an_upgrade_that_nobody_speaks_is_ignored(tmp_path: Path) -> None:
    with live.serving(tmp_path, SLOW) as server:
        head, _, body = raw(0).partition(b"\r\n\r\n")
        upgrade = b"\r\nConnection: Upgrade, HTTP2-Settings, close\r\nUpgrade: h2c\r\n\r\n"
        assert server.send(head + upgrade + body).startswith(b"HTTP/1.1 200 ")


def test_memory_stays_flat_over_many_large_requests(tmp_path: Path) -> None:
    models = {"m/1/model.cast": "identity_uint8"}
    with live.serving(tmp_path, models) as server:
        size = 4 << 20
        x = {"name": "x", "datatype": "UINT8", "shape": [size],
             "parameters": {"binary_data_size": size}}  # fmt: skip
        head = json.dumps({"inputs": [x], "parameters": {"binary_data_output": True}}).encode()
        length = {"Inference-Header-Content-Length": str(len(head))}
        sent = head + bytes(size)
        resident: list[int] = []
        for _ in range(40):
            assert server.ask("POST", "/v2/models/m/infer", sent, length)[0] == 200
            status = Path(f"/proc/{server.process.pid}/status").read_text()
            resident.append(int(status.split("VmRSS:")[1].split()[0]) >> 10)
        assert max(resident) - resident[4] < 3 * (size >> 20), resident


def test_readiness_tells_what_is_missing(tmp_path: Path) -> None:
    models = {**SLOW, "bad/1/model.cast": "nothing of ours"}
    with live.serving(tmp_path / "some", models) as server:
        assert server.get("/v2/health/ready") == {
            "ready": True, "live": True, "versions": {"bad/1": "failed"},
        }  # fmt: skip
    with live.serving(tmp_path / "strict", models, strict_readiness=True) as server:
        assert server.ask("GET", "/v2/health/ready")[0] == 503
    with live.serving(tmp_path / "none", {}) as server:
        code, _, content = server.ask("GET", "/v2/health/ready")
        assert code == 503
        assert json.loads(content)["reason"] == "no model was found"
    with live.serving(tmp_path / "bad", {"bad/1/model.cast": "nothing"}) as server:
        assert server.ask("GET", "/v2/health/ready")[0] == 503


def refusal(tmp_path: Path, **settings: Any) -> str:
    with pytest.raises(errors.CastironError) as refused:
        life.serve(
            tmp_path,
            numpy_server.supplied(),
            supply.Settings(tmp_path),
            server_settings.Settings(**settings),
            security_settings.Settings(),
        )
    return str(refused.value)


def test_addresses_that_others_reach_need_to_be_asked_for(tmp_path: Path) -> None:
    for host in ("0.0.0.0", "::", "192.0.2.1", "example.invalid"):
        assert "nobody is authenticated" in refusal(tmp_path, host=host, port=0)


def test_a_taken_port_and_a_missing_folder_are_told(tmp_path: Path) -> None:
    with live.serving(tmp_path, SLOW) as server:
        text = refusal(tmp_path, port=server.port)
        assert text == f"cannot listen on 127.0.0.1 port {server.port}: Address already in use"
    assert "expected a folder of models" in refusal(tmp_path / "nowhere", port=0)


def test_a_serving_process_holds_no_compiler_and_no_onnx(tmp_path: Path) -> None:
    with live.serving(tmp_path, SLOW) as server:
        maps = Path(f"/proc/{server.process.pid}/maps").read_text()
        assert "uvloop" in maps
        assert "llvmlite" not in maps
        assert "onnx" not in maps


def test_only_serving_imports_the_http_shell() -> None:
    code = "import castiron, castiron.registry.registry, sys; print('uvloop' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert found.stdout == "False\n"
