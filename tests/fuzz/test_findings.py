"""What fuzzing has found in the server, each in its smallest form."""

from __future__ import annotations

import json
import socket

import pytest

from tests.fuzz import calls, judge, served

X = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}


def answers(server: served.Server, sent: bytes) -> list[judge.Answer]:
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        connection.sendall(sent)
        data = b"".join(iter(lambda: connection.recv(65536), b""))
    return list(judge.answers(data, sent))


@pytest.mark.parametrize(
    "fault",
    [
        b"nonsense\r\n\r\n",
        b"POST /v2/models/add_one/infer HTTP/1.1\r\nContent-Length: x\r\n\r\n",
        b"POST /v2/models/add_one/infer HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n",
        b"GET /v2 HTTP/1.1\r\nX: " + b"a" * served.MAX_HEAD_BYTES + b"\r\n\r\n",
    ],
)
@pytest.mark.parametrize("before", [1, 2, 3])
def test_requests_before_a_malformed_one_get_their_own_answers_first(
    server: served.Server, before: int, fault: bytes
) -> None:
    right = calls.of_content("add_one", {"inputs": [X]}).encoded(close=False)
    found = answers(server, right * before + fault)
    assert [answer.code for answer in found[:-1]] == [200] * before
    assert json.loads(found[0].body)["outputs"][0]["data"] == [2, 3, 4, 5]
    assert found[-1].code in {400, 431}
    assert list(json.loads(found[-1].body)) == ["error"]
