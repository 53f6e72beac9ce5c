"""Every code that the description declares is provoked at live servers, and answered as described."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openapi_spec_validator
import pytest

from castiron.contract import document, model, openapi
from tests.contract import described, samples
from tests.server import live
from tests.server.security import guarded, issuer

PLAIN = model.Contract(
    "plain", input=(model.Tensor("x", "FP32", ("N",)),), output=(model.Tensor("y", "BOOL", ("N",)),)
)
FRAGILE = model.Contract(
    "fragile",
    input=(model.Tensor("x", "FP32", ("n",)),),
    output=(model.Tensor("y", "FP32", ("n",)),),
    schema=model.Schema(
        (model.Entry("x", "tensor", "x"),), (model.Entry("y", "tensor", "y"),)
    ),
)  # fmt: skip
MODELS = {
    "fragile/1/model.cast": "fragile",
    "fragile/1/contract.toml": document.text(FRAGILE),
}
OURS = described.Description(openapi.document(FRAGILE))
MINE = described.Description(openapi.document(model.Contract("mine", input=PLAIN.input)))

_MODEL = "/v2/models/fragile"
_LOAD = "/v2/repository/models/fragile/load"
_UNLOAD = "/v2/repository/models/fragile/unload"


def tensor(*values: float) -> dict[str, Any]:
    return {"inputs": [{"name": "x", "datatype": "FP32", "shape": [len(values)], "data": values}]}


def body_of(path: str, *values: float) -> dict[str, Any]:
    """A right body of any call that takes one."""
    if path.endswith("/infer"):
        return tensor(*values)
    if path.endswith("/batch"):
        return {"requests": [tensor(*values), {}]}
    if path.endswith("/predict"):
        return {"x": {"shape": [len(values)], "data": values}}
    return {}


def ask(server: live.Server, path: str, method: str, body: Any = None, **headers: str) -> Any:
    """The code and content of an answer, which is as described."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    answer = server.ask(method.upper(), path.replace("{version}", "1"), body, named)
    return answer[0], OURS.check(path, method, answer)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[live.Server]:
    settings = {"head_timeout_s": 1.5, "body_timeout_s": 1.5, "max_body_bytes": 1 << 16}
    with live.serving(tmp_path_factory.mktemp("open"), MODELS, **settings) as running:
        yield running
        assert running.stop() == 0


@pytest.mark.parametrize("contract", [samples.FULL, PLAIN, FRAGILE], ids=["full", "plain", "tried"])
def test_the_description_is_valid(contract: model.Contract) -> None:
    openapi_spec_validator.validate(openapi.document(contract))


def test_every_described_call_exists_and_answers_as_described(server: live.Server) -> None:
    for path, method, _ in OURS.calls():
        if path != _UNLOAD:
            body = None if method == "get" else body_of(path, 1.5)
            assert ask(server, path, method, body)[0] == 200, path
    code, content = ask(server, f"{_MODEL}/batch", "post", body_of("/batch", 2))
    assert (code, content["responses"][0]["outputs"][0]["data"]) == (200, [4])
    assert content["responses"][1]["status"] == 400


def test_every_call_of_the_server_is_described() -> None:
    """The routes as docs/protocol.md lists them."""
    text = Path("docs/protocol.md").read_text()
    table = text[text.index("## Calls") : text.index("## Errors")]
    routes = {
        route.replace("{m}", "fragile").replace("[/versions/{v}]", "")
        for route in re.findall(r"`(?:GET|POST) (/[^`]*)`", table)
    }
    assert len(routes) >= 13
    assert routes <= OURS.paths.keys(), routes - OURS.paths.keys()


def test_models_are_unloaded_and_loaded_as_described(server: live.Server) -> None:
    assert ask(server, _UNLOAD, "post", {"parameters": {"unload_dependents": True}})[0] == 200
    assert ask(server, f"{_MODEL}/infer", "post", tensor(1))[0] == 503
    assert ask(server, f"{_MODEL}/ready", "get")[0] == 503
    assert ask(server, _LOAD, "post")[0] == 200
    assert ask(server, f"{_MODEL}/infer", "post", tensor(1))[0] == 200
    assert ask(server, _LOAD, "post", {"parameters": {"config": "{}"}})[0] == 400


def refused() -> Iterator[tuple[int, Any, dict[str, str]]]:
    """Codes and requests that every call with a body answers with them."""
    yield 400, "{", {}
    yield 400, "{}", {"Content_Encoding": "gzip"}
    yield 413, "{}", {"Content_Length": str(1 << 40)}
    yield 413, b" " * (1 << 17), {}
    yield 415, "{}", {"Content_Encoding": "br"}
    yield 431, "{}", {"X": "x" * 70_000}


@pytest.mark.parametrize("code, body, headers", list(refused()))
def test_what_is_wrong_with_a_body_is_described(
    server: live.Server, code: int, body: Any, headers: dict[str, str]
) -> None:
    posts = [path for path, method, _ in OURS.calls() if method == "post"]
    assert len(posts) == 9
    for path in posts:
        assert ask(server, path, "post", body, **headers)[0] == code, path


@pytest.mark.parametrize(
    "code, path, body",
    [
        (400, "infer", {"inputs": []}),
        (400, "batch", {"requests": []}),
        (400, "predict", {"z": 1}),
        (500, "infer", tensor(-1)),
        (500, "predict", body_of("/predict", -1)),
        (504, "infer", tensor(1) | {"parameters": {"timeout": 1}}),
    ],
)
def test_what_comes_of_a_request_is_described(
    server: live.Server, code: int, path: str, body: Any
) -> None:
    for each in (f"{_MODEL}/{path}", f"{_MODEL}/versions/{{version}}/{path}"):
        assert ask(server, each, "post", body)[0] == code


def test_a_kind_of_body_that_nobody_reads_is_described(server: live.Server) -> None:
    found = ask(server, f"{_MODEL}/predict", "post", "x", Content_Type="text/html")
    assert found[0] == 415


def test_what_is_not_there_is_described(server: live.Server) -> None:
    for path, method, said in OURS.calls():
        if "{version}" in path:
            body = None if method == "get" else body_of(path, 1)
            answer = server.ask(method.upper(), path.replace("{version}", "9"), body)
            if path.endswith("/batch"):
                assert json.loads(answer[2])["responses"][0]["status"] == 404
            else:
                assert answer[0] == 404, path
            OURS.check(path, method, answer)
        elif "404" in said["responses"]:
            answer = server.ask(method.upper(), path.replace("fragile", "none"),
                                None if method == "get" else body_of(path, 1))  # fmt: skip
            assert answer[0] in {404, 200 if path.endswith("/batch") else 404}, path
            OURS.check(path, method, answer)


def test_other_methods_are_refused_as_described(server: live.Server) -> None:
    for path, item in OURS.paths.items():
        for method in set(described.METHODS) - item.keys():
            answer = server.ask(method.upper(), path.replace("{version}", "1"))
            OURS.check(path, method, answer)
            allowed = {each.lower() for each in answer[1]["allow"].split(", ")} - {"head"}
            assert allowed == item.keys() & set(described.METHODS), path
        if "get" in item:
            assert server.ask("HEAD", path.replace("{version}", "1"))[0] == 200


def raw(server: live.Server, sent: bytes) -> tuple[int, dict[str, str], bytes]:
    """The only answer to raw bytes."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        connection.sendall(sent)
        head, _, body = live.until_closed(connection).partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    pairs = (line.partition(": ") for line in lines)
    return int(first.split(" ")[1]), {name.lower(): value for name, _, value in pairs}, body


@pytest.mark.parametrize(
    "code, head",
    [
        (400, "Content-Length: x\r\n\r\n"),
        (408, "Content-Length: 9\r\n\r\n{"),
        (408, "Content-Le"),
        (411, "Connection: close\r\n\r\n"),
    ],
)
def test_what_is_wrong_with_the_http_is_described(
    server: live.Server, code: int, head: str
) -> None:
    path = f"{_MODEL}/infer"
    answer = raw(server, f"POST {path} HTTP/1.1\r\nHost: a\r\n{head}".encode())
    assert answer[0] == code
    OURS.check(path, "post", answer)


def test_limits_are_refused_as_described(tmp_path: Path) -> None:
    with live.serving(tmp_path, MODELS, rate_per_s=0.001, rate_burst=1) as server:
        assert ask(server, f"{_MODEL}/infer", "post", tensor(1))[0] == 200
        for path in ("infer", "predict"):
            body = body_of(f"/{path}", 1)
            answer = server.ask("POST", f"{_MODEL}/{path}", body)
            assert answer[0] == 429
            assert answer[1]["x-refusal-reason"] == "rate"
            assert int(answer[1]["retry-after"]) > 1
            OURS.check(f"{_MODEL}/{path}", "post", answer)
        _, content = ask(server, f"{_MODEL}/batch", "post", body_of("/batch", 1))
        assert content["responses"][0]["status"] == 429


def test_a_full_server_refuses_as_described(tmp_path: Path) -> None:
    with live.serving(tmp_path, MODELS, max_in_flight=0, max_buffered_bytes=0) as server:
        for path in ("infer", "predict", "batch"):
            answer = server.ask("POST", f"{_MODEL}/{path}", body_of(f"/{path}", 1))
            assert answer[0] == 503
            assert "retry-after" in answer[1]
            OURS.check(f"{_MODEL}/{path}", "post", answer)


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[guarded.Guarded]:
    folder = tmp_path_factory.mktemp("closed")
    with guarded.serving(folder, **guarded.jwt_settings(folder)) as running:
        yield running


def test_a_server_that_wants_tokens_answers_as_described(closed: guarded.Guarded) -> None:
    """401 without one; with one that lacks a right 403, where the description says so."""
    for path, method, said in MINE.calls():
        asked = path.replace("{version}", "1")
        answer = closed.ask(method.upper(), asked)
        MINE.check(path, method, answer)
        is_open = said.get("security") == []
        assert answer[0] == (200 if is_open else 401), path
        bad = closed.ask(method.upper(), asked, issuer.token(exp=1))
        assert bad[0] == answer[0]
        MINE.check(path, method, bad)


def test_what_a_token_does_not_allow_is_refused_as_described(closed: guarded.Guarded) -> None:
    only_metadata = issuer.token(castiron=issuer.rule(("mine",), ("metadata",)))
    only_infer = issuer.token(castiron=issuer.rule(("mine",), ("infer",)))
    nothing = issuer.token(castiron=issuer.rule(("yours",)))
    for path, method, _ in MINE.calls():
        found = set()
        for token in (only_metadata, only_infer, nothing):
            answer = closed.ask(method.upper(), path.replace("{version}", "1"), token, {})
            MINE.check(path, method, answer)
            found.add(answer[0])
        assert (403 in found) == (403 in MINE.codes(path, method)), (path, found)


def test_every_code_of_the_protocol_is_declared_somewhere() -> None:
    declared = {code for path, method, _ in OURS.calls() for code in OURS.codes(path, method)}
    text = Path("docs/protocol.md").read_text()
    table = text[text.index("| code | when |") : text.index("Refusals of flow control")]
    said = {int(code) for row in re.findall(r"^\| ([\d, ]+) \|", table, re.MULTILINE)
            for code in row.split(", ")}  # fmt: skip
    assert declared == (said - {405}) | {200}
