"""A batch whose answers are sent as they come, to callers that read ``multipart/mixed``."""

from __future__ import annotations

import contextlib
import email.parser
import email.policy
import http.client
import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.server import live

ACCEPT = {"Accept": "multipart/mixed"}
X = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[live.Server]:
    models = {f"{name}/1/model.cast": name for name in ("add_one", "slow")}
    with live.serving(tmp_path_factory.mktemp("parts"), models, max_in_flight=4) as running:
        yield running
        assert running.stop() == 0
        assert "Traceback" not in running.log()


def slow(seconds: float, **parameters: Any) -> dict[str, Any]:
    tensor = {"name": "seconds", "datatype": "FP32", "shape": [1], "data": [seconds]}
    return {"inputs": [tensor], "parameters": parameters}


def parts(headers: dict[str, str], body: bytes) -> list[tuple[int, dict[str, Any], bytes]]:
    """Index, JSON and raw bytes of each, as the standard library reads parts."""
    head = f"content-type: {headers['content-type']}\r\n\r\n".encode()
    message = email.parser.BytesParser(policy=email.policy.HTTP).parsebytes(head + body)
    assert message.is_multipart()
    found = []
    for each in message.iter_parts():
        content: Any = each.get_payload(decode=True)
        assert len(content) == int(each["content-length"])
        size = int(each.get("inference-header-content-length", len(content)))
        found.append((int(each["x-request-index"]), json.loads(content[:size]), content[size:]))
    return found


def test_each_part_is_what_infer_would_have_answered(server: live.Server) -> None:
    raw_out = {"binary_data_output": True}
    requests = [
        {"inputs": [X], "id": "a"}, {"inputs": []}, {"inputs": [X], "parameters": raw_out},
    ]  # fmt: skip
    path = "/v2/models/add_one/batch"
    code, headers, body = server.ask("POST", path, {"requests": requests}, ACCEPT)
    assert code == 200
    found = {index: (head, raw) for index, head, raw in parts(headers, body)}
    assert sorted(found) == [0, 1, 2]
    _, _, whole = server.ask("POST", path, {"requests": requests[:2]})
    assert [found[0][0], found[1][0]] == json.loads(whole)["responses"]
    assert found[1][0]["status"] == 400
    head, raw = found[2]
    assert head["outputs"][0]["parameters"] == {"binary_data_size": 16}
    assert len(raw) == 16


def test_parts_leave_when_they_are_done_whatever_their_order(server: live.Server) -> None:
    """Two run side by side; the first is held until the second has been read."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    with contextlib.closing(connection):
        with server.holding("slow", 0.25):
            text = json.dumps({"requests": [slow(0.25), slow(0)]})
            connection.request("POST", "/v2/models/slow/batch", text, ACCEPT)
            response = connection.getresponse()
            came = [response.read1()]
            while b"x-request-index: 1" not in b"".join(came).lower():
                came.append(response.read1())
                assert came[-1], "the second waits for no other"
        came.append(response.read())
    headers = {"content-type": response.headers["content-type"]}
    found = parts(headers, b"".join(came))
    assert [index for index, _, _ in found] == [1, 0]


def test_what_is_wrong_with_the_whole_is_told_as_ever(server: live.Server) -> None:
    code, headers, body = server.ask("POST", "/v2/models/add_one/batch", {"requests": []}, ACCEPT)
    assert (code, headers["content-type"]) == (400, "application/json")
    assert b"requests" in body


def test_a_client_that_leaves_ends_what_waits(server: live.Server) -> None:
    """It is seen by what is written after it left, so enough comes then, on any machine."""
    requests = [slow(0), *[slow(0.25)] * 40]
    text = json.dumps({"requests": requests}).encode()
    with server.holding("slow", 0.25), server.connect() as connection:
        connection.sendall(
            b"POST /v2/models/slow/batch HTTP/1.1\r\nHost: a\r\nAccept: multipart/mixed\r\n"
            b"Content-Length: %d\r\n\r\n" % len(text) + text
        )
        assert b"200 OK" in connection.recv(65536)
    server.wait_in_flight(0)
    assert server.outcomes()["cancelled"] >= 1
    assert server.ask("POST", "/v2/models/slow/infer", slow(0.0))[0] == 200


@pytest.mark.parametrize("accept", [{}, ACCEPT])
def test_an_id_that_no_json_can_hold_harms_only_its_own_request(
    server: live.Server, accept: dict[str, str]
) -> None:
    """The bare word makes a reader of ours lenient about the other one."""
    text = (
        b'{"requests": [{"id": "\\ud800", "parameters": {"a": NaN}, "inputs": [%s]},'
        b' {"inputs": [%s]}]}' % ((json.dumps(X).encode(),) * 2)
    )
    code, headers, body = server.ask("POST", "/v2/models/add_one/batch", text, accept)
    assert code == 200
    if accept:
        told = {index: head for index, head, _ in parts(headers, body)}
    else:
        told = dict(enumerate(json.loads(body)["responses"]))
    assert told[0]["status"] == 400
    assert told[0]["error"].startswith("id: ")
    assert told[1]["outputs"][0]["data"] == [2, 3, 4, 5]
