"""Loading and unloading by request, over HTTP; answers go on meanwhile."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from tests.server import live

X = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}


def put(server_folder: Path, name: str, text: str) -> None:
    path = server_folder / "models" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def infer(server: live.Server, path: str = "/v2/models/m/infer") -> live.Answer:
    return server.ask("POST", path, {"inputs": [X]})


def test_what_is_unloaded_answers_no_more_and_load_brings_it_back(tmp_path: Path) -> None:
    with live.serving(tmp_path, {"m/1/model.cast": "add_one"}) as server:
        client = triton.InferenceServerClient(f"127.0.0.1:{server.port}")
        client.unload_model("m")
        assert not client.is_model_ready("m")
        assert infer(server)[0] == 503
        (entry,) = client.get_model_repository_index()
        assert (entry["state"], entry["reason"]) == ("UNAVAILABLE", "unloaded")
        ready = server.ask("POST", "/v2/repository/index", {"ready": True})
        assert json.loads(ready[2]) == []
        client.load_model("m")
        assert client.is_model_ready("m")
        assert infer(server)[0] == 200
        client.close()


def test_new_changed_and_missing_versions_are_seen_by_load(tmp_path: Path) -> None:
    with live.serving(tmp_path, {"m/1/model.cast": "add_one"}) as server:
        client = triton.InferenceServerClient(f"127.0.0.1:{server.port}")
        put(tmp_path, "m/2/model.onnx", "add_one")
        put(tmp_path, "new/1/model.cast", "identity_int8")
        client.load_model("m")
        assert client.get_model_metadata("m")["versions"] == ["1", "2"]
        with pytest.raises(InferenceServerException, match="is not served here"):
            client.get_model_metadata("new")
        client.load_model("new")
        assert client.is_model_ready("new")
        old = server.get("/v2/models/m/versions/1")["parameters"]["digest"]
        put(tmp_path, "m/1/model.cast", "identity_int8")
        (tmp_path / "models/m/2/model.onnx").unlink()
        (tmp_path / "models/m/2").rmdir()
        client.load_model("m")
        assert server.get("/v2/models/m")["versions"] == ["1"]
        assert server.get("/v2/models/m/versions/1")["parameters"]["digest"] != old
        client.close()


def test_a_version_that_fails_to_load_leaves_the_old_one_answering(tmp_path: Path) -> None:
    with live.serving(tmp_path, {"m/1/model.cast": "add_one"}) as server:
        put(tmp_path, "m/1/model.cast", "nothing of ours")
        code, _, content = server.ask("POST", "/v2/repository/models/m/load", {})
        assert code == 503
        assert "version m/1 failed" in json.loads(content)["error"]
        assert infer(server)[0] == 200


def test_no_request_fails_while_a_model_is_loaded_again_and_again(tmp_path: Path) -> None:
    with live.serving(tmp_path, {"m/1/model.cast": "add_one"}) as server:
        codes: list[int] = []
        stop = threading.Event()

        def ask() -> None:
            while not stop.is_set():
                codes.append(infer(server)[0])

        asking = threading.Thread(target=ask)
        asking.start()
        for number in range(2000):
            put(tmp_path, "m/1/model.cast", "add_one")
            assert server.ask("POST", "/v2/repository/models/m/load")[0] == 200
            if number >= 20 and len(codes) > 20:
                break
        stop.set()
        asking.join()
        assert len(codes) > 20
        assert set(codes) == {200}


def test_a_request_that_is_still_being_read_is_answered_by_what_it_chose(tmp_path: Path) -> None:
    with live.serving(tmp_path, {"m/1/model.cast": "add_one"}) as server:
        body = json.dumps({"inputs": [X]}).encode()
        head = f"POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n"
        with server.connect() as slow:
            slow.sendall(head.encode() + body[:10])
            server.wait_in_flight(1)
            unload = "/v2/repository/models/m/unload"
            thread, answers = live.in_background(server.ask, "POST", unload, {})
            live.until(lambda: server.ask("GET", "/v2/models/m/ready")[0] == 503)
            slow.sendall(body[10:])
            assert slow.recv(65536).startswith(b"HTTP/1.1 200 ")
        thread.join()
        assert answers[0][0] == 200


def test_unload_waits_for_what_was_accepted(tmp_path: Path) -> None:
    with live.serving(tmp_path, {"slow/1/model.cast": "slow"}) as server:
        x = {"name": "seconds", "datatype": "FP32", "shape": [1], "data": [0]}
        unload = "/v2/repository/models/slow/unload"
        with server.holding("slow"):
            calls = [
                live.in_background(server.ask, "POST", "/v2/models/slow/infer", {"inputs": [x]})
                for _ in range(4)
            ]
            server.wait_in_flight(4)
            calls.append(live.in_background(server.ask, "POST", unload, {}))
            live.until(lambda: server.ask("GET", "/v2/models/slow/ready")[0] == 503)
            assert not any(answers for _, answers in calls)
        for thread, answers in calls:
            thread.join()
            assert answers[0][0] == 200


@pytest.mark.parametrize(
    "path, body, code, text",
    [
        ("none/load", {}, 404, "is not in the folder"),
        ("none/unload", {}, 404, "is not served here"),
        ("..%2Fx/load", {}, 404, "is not in the folder"),
        ("add_one/load", {"parameters": {"config": "{}"}}, 400, "parameters.config"),
        ("add_one/unload", {"parameters": {"force": True}}, 400, "parameters.force"),
        ("add_one/load", {"parameters": 7}, 400, "parameters: expected an object"),
        ("add_one/load", [], 400, "expected a JSON object"),
        ("add_one/delete", {}, 404, "no such call"),
    ],
)
def test_odd_changes_are_refused(
    server: live.Server, path: str, body: Any, code: int, text: str
) -> None:
    found, _, content = server.ask("POST", f"/v2/repository/models/{path}", body)
    assert found == code
    assert text in json.loads(content)["error"]


def test_a_read_only_server_changes_nothing(tmp_path: Path) -> None:
    models = {"m/1/model.cast": "add_one"}
    with live.serving(tmp_path, models, read_only_repository=True) as server:
        assert server.ask("POST", "/v2/repository/models/m/unload", {})[0] == 403
        assert server.ask("POST", "/v2/repository/models/m/load", {})[0] == 403
        assert infer(server)[0] == 200


def test_memory_does_not_grow_with_loads(tmp_path: Path) -> None:
    with live.serving(tmp_path, {"m/1/model.cast": "add_one"}) as server:

        def resident_kb() -> int:
            text = Path(f"/proc/{server.process.pid}/status").read_text()
            return int(text.split("VmRSS:")[1].split()[0])

        def cycle(count: int) -> None:
            for _ in range(count):
                assert server.ask("POST", "/v2/repository/models/m/unload")[0] == 200
                assert server.ask("POST", "/v2/repository/models/m/load")[0] == 200

        cycle(20)
        before = resident_kb()
        cycle(60)
        assert resident_kb() - before < 2048
