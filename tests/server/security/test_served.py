"""Tokens at a live server, over HTTP and gRPC: who is let in, and what each may see."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from prometheus_client import parser
from tritonclient.utils import InferenceServerException

from castiron.server.grpc import messages
from castiron.server.security import settings as security_settings
from tests.server import live
from tests.server.security import guarded, issuer, test_tokens

INPUTS = {"inputs": [guarded.X]}
ALL = issuer.token()
MINE = issuer.token(castiron=issuer.rule(("mine",), ("infer", "metadata")))
INFER_ONLY = issuer.token(castiron=issuer.rule(("mi*",), ("infer",)))
NOTHING = issuer.token(castiron=None)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[guarded.Guarded]:
    folder = tmp_path_factory.mktemp("guarded")
    with guarded.serving(folder, port=0, grpc_port=0, **guarded.jwt_settings(folder)) as running:
        yield running


def test_without_a_good_token_only_health_is_told(server: guarded.Guarded) -> None:
    assert server.ask("GET", "/v2/health/live")[0] == 200
    code, _, content = server.ask("GET", "/v2/health/ready")
    assert (code, json.loads(content)) == (200, {"ready": True, "live": True})
    for method, path in (
        ("GET", "/v2"), ("GET", "/v2/models"), ("GET", "/v2/models/mine"), ("GET", "/metrics"),
        ("GET", "/v2/models/mine/ready"), ("GET", "/v2/models/none"), ("GET", "/nowhere"),
        ("POST", "/v2/repository/index"), ("GET", "/v2/models/stats"), ("GET", "//v2/models"),
        ("POST", "/v2/models/mine/infer"), ("POST", "/v2/repository/models/mine/unload"),
        ("GET", "/v2/%68ealth/live"),
    ):  # fmt: skip
        code, headers, _ = server.ask(method, path)
        assert (code, headers["www-authenticate"]) == (401, 'Bearer realm="castiron"'), path
        code, headers, _ = server.ask(method, path, issuer.token(exp=1))
        assert code == 401
        assert 'error="invalid_token"' in headers["www-authenticate"]


def test_the_token_is_looked_at_before_the_body(server: guarded.Guarded) -> None:
    headers = {"content-length": "50000000", "expect": "100-continue"}
    code, _, _ = server.ask("POST", "/v2/models/mine/infer", headers=headers)
    assert code == 401


@pytest.mark.parametrize("what", [
    "alg none with one letter", "HS256 with the public key as PEM", "expired", "kid unknown",
    "another audience", "a claim twice", "far too long", "another key",
])  # fmt: skip
def test_bad_tokens_are_refused_by_both_protocols(server: guarded.Guarded, what: str) -> None:
    bad = str(test_tokens.BAD[what]())
    assert server.ask("POST", "/v2/models/mine/infer", bad, INPUTS)[0] in {401, 431}
    if len(bad) < 20_000:  # gRPC itself takes no larger metadata
        with pytest.raises(InferenceServerException) as refused:
            infer(server, "mine", bad)
        assert refused.value.status() == "StatusCode.UNAUTHENTICATED"


def test_a_limited_token_cannot_tell_other_models_from_none(server: guarded.Guarded) -> None:
    assert server.ask("POST", "/v2/models/mine/infer", MINE, INPUTS)[0] == 200
    for suffix in ("", "/ready", "/config", "/stats", "/versions/1", "/versions/1/stats"):
        assert server.ask("GET", f"/v2/models/mine{suffix}", MINE)[0] == 200
    for method, suffix, body in (
        ("POST", "/infer", INPUTS), ("POST", "/batch", {}), ("GET", "", None), ("GET", "/x", None),
        ("GET", "/ready", None), ("GET", "/config", None), ("GET", "/stats", None),
        ("GET", "/versions/1", None), ("GET", "/infer", None), ("DELETE", "", None),
    ):  # fmt: skip
        told = []
        for model in ("yours", "other"):
            code, headers, content = server.ask(method, f"/v2/models/{model}{suffix}", MINE, body)
            del headers["date"]
            headers.pop("content-length")
            told.append((code, headers, content.replace(model.encode(), b"*")))
        assert told[0] == told[1]
        assert told[0][0] == 404


def test_lists_show_only_what_the_token_names(server: guarded.Guarded) -> None:
    server.ask("POST", "/v2/models/yours/infer", ALL, INPUTS)
    for token, seen in ((ALL, {"mine", "yours"}), (MINE, {"mine"}), (INFER_ONLY, set()),
                        (NOTHING, set())):  # fmt: skip
        _, _, index = server.ask("POST", "/v2/repository/index", token)
        assert {entry["name"] for entry in json.loads(index)} == seen
        _, _, models = server.ask("GET", "/v2/models", token)
        assert set(json.loads(models)["models"]) == seen
        _, _, stats = server.ask("GET", "/v2/models/stats", token)
        assert {entry["name"] for entry in json.loads(stats)["model_stats"]} == seen
        _, _, page = server.ask("GET", "/metrics", token)
        families = list(parser.text_string_to_metric_families(page.decode()))
        labels = {sample.labels.get("model") for each in families for sample in each.samples}
        assert labels - {None, ""} == seen
        assert (None in labels) == (token == ALL)
        if token != ALL:
            assert b"yours" not in page + index + models + stats


def test_an_action_that_is_not_granted_is_forbidden(server: guarded.Guarded) -> None:
    assert server.ask("POST", "/v2/models/mine/infer", INFER_ONLY, INPUTS)[0] == 200
    assert server.ask("GET", "/v2/models/mine/ready", INFER_ONLY)[0] == 200
    code, headers, content = server.ask("GET", "/v2/models/mine", INFER_ONLY)
    assert code == 403
    assert 'error="insufficient_scope"' in headers["www-authenticate"]
    assert b"metadata of model 'mine' is not allowed" in content
    metadata = issuer.token(castiron=issuer.rule(("mine",), ("metadata",)))
    assert server.ask("POST", "/v2/models/mine/infer", metadata, INPUTS)[0] == 403
    assert server.ask("GET", "/v2", NOTHING)[0] == 200
    assert server.ask("GET", "/v2/models/mine", NOTHING)[0] == 404


def test_the_data_port_changes_nothing_whatever_the_token(server: guarded.Guarded) -> None:
    for action in ("load", "unload"):
        assert server.ask("POST", f"/v2/repository/models/mine/{action}", ALL)[0] == 403
        assert server.ask("POST", f"/v2/repository/models/yours/{action}", MINE)[0] == 404
        assert server.ask("POST", f"/v1/models/mine/{action}", ALL)[0] == 404
    assert server.ask("GET", "/v1/status", ALL)[0] == 404
    client = triton_grpc.InferenceServerClient(f"127.0.0.1:{server.ports['serving grpc']}")
    for change in (client.load_model, client.unload_model):
        with pytest.raises(InferenceServerException) as refused:
            change("mine", headers=bearing(ALL))
        assert refused.value.status() == "StatusCode.PERMISSION_DENIED"
    client.close()


def bearing(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"} if token else {}


def infer(server: guarded.Guarded, model: str, token: str) -> np.ndarray:
    client = triton_grpc.InferenceServerClient(f"127.0.0.1:{server.ports['serving grpc']}")
    given = triton_grpc.InferInput("x", [1, 4], "FP32")
    given.set_data_from_numpy(np.ones((1, 4), np.float32))
    try:
        found: np.ndarray = client.infer(model, [given], headers=bearing(token)).as_numpy("y")
        return found
    finally:
        client.close()


def test_grpc_lets_in_and_hides_as_http_does(server: guarded.Guarded) -> None:
    assert (infer(server, "mine", MINE) == 2).all()
    for model, token, code in (
        ("mine", "", "UNAUTHENTICATED"), ("mine", issuer.token(exp=1), "UNAUTHENTICATED"),
        ("yours", MINE, "NOT_FOUND"), ("other", MINE, "NOT_FOUND"), ("mine", NOTHING, "NOT_FOUND"),
    ):  # fmt: skip
        with pytest.raises(InferenceServerException) as refused:
            infer(server, model, token)
        assert refused.value.status() == f"StatusCode.{code}"
    client = triton_grpc.InferenceServerClient(f"127.0.0.1:{server.ports['serving grpc']}")
    assert client.is_server_live()
    assert client.is_server_ready()
    with pytest.raises(InferenceServerException, match="UNAUTHENTICATED"):
        client.get_server_metadata()
    with pytest.raises(InferenceServerException, match="PERMISSION_DENIED"):
        client.get_model_metadata("mine", headers=bearing(INFER_ONLY))
    with pytest.raises(InferenceServerException, match="NOT_FOUND"):
        client.get_model_config("yours", headers=bearing(MINE))
    for token, seen in ((ALL, {"mine", "yours"}), (MINE, {"mine"}), (NOTHING, set())):
        index = client.get_model_repository_index(headers=bearing(token))
        assert {entry.name for entry in index.models} == seen
        told = client.get_inference_statistics(headers=bearing(token))
        assert {entry.name for entry in told.model_stats} == seen
    client.close()


def health(server: guarded.Guarded, service: str, token: str, *, is_watched: bool) -> str:
    """What the standard health service tells, or its refusal."""
    metadata = [tuple(pair) for pair in bearing(token).items()]
    with grpc.insecure_channel(f"127.0.0.1:{server.ports['serving grpc']}") as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        asked = health_pb2.HealthCheckRequest(service=service)
        try:
            if is_watched:
                found = next(iter(stub.Watch(asked, metadata=metadata, timeout=20)))
            else:
                found = stub.Check(asked, metadata=metadata, timeout=20)
        except grpc.RpcError as error:
            return str(error.code().name)
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(found.status))


@pytest.mark.parametrize("is_watched", [False, True])
def test_the_health_service_tells_strangers_of_no_model(
    server: guarded.Guarded, is_watched: bool
) -> None:
    for service, token, told in (
        ("", "", "SERVING"), ("mine", "", "UNAUTHENTICATED"), ("none", "", "UNAUTHENTICATED"),
        ("mine", MINE, "SERVING"), ("mine/1", MINE, "SERVING"), ("yours/1", MINE, "NOT_FOUND"),
        ("yours", MINE, "NOT_FOUND"), ("none", MINE, "NOT_FOUND"),
    ):  # fmt: skip
        assert health(server, service, token, is_watched=is_watched) == told, service


def test_a_broken_request_in_a_stream_is_told_in_its_place(server: guarded.Guarded) -> None:
    metadata = [("authorization", f"Bearer {MINE}")]
    with grpc.insecure_channel(f"127.0.0.1:{server.ports['serving grpc']}") as channel:
        call = channel.stream_stream(
            f"/{messages.SERVICE}/ModelStreamInfer",
            response_deserializer=messages.named("ModelStreamInferResponse").FromString,
        )
        told = next(iter(call(iter([b"\xff\xff"]), metadata=metadata, timeout=20)))
    assert told.error_message


def test_calls_by_reflection_need_a_token(server: guarded.Guarded) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{server.ports['serving grpc']}") as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        asked = reflection_pb2.ServerReflectionRequest(list_services="")
        with pytest.raises(grpc.RpcError, match="UNAUTHENTICATED"):
            next(iter(stub.ServerReflectionInfo(iter([asked]), timeout=20)))
        metadata = [("authorization", f"Bearer {NOTHING}")]
        answer = next(iter(stub.ServerReflectionInfo(iter([asked]), metadata=metadata, timeout=20)))
        assert len(answer.list_services_response.service) == 3


@pytest.mark.parametrize("token, model, told", [
    ("", "mine", "UNAUTHENTICATED"), (MINE, "yours", "not served here"), (MINE, "mine", ""),
])  # fmt: skip
def test_grpc_streams_ask_as_well(
    server: guarded.Guarded, token: str, model: str, told: str
) -> None:
    client = triton_grpc.InferenceServerClient(f"127.0.0.1:{server.ports['serving grpc']}")
    given = triton_grpc.InferInput("x", [1, 4], "FP32")
    given.set_data_from_numpy(np.ones((1, 4), np.float32))
    came = threading.Event()
    answers: list[Any] = []

    def take(result: Any, error: Any) -> None:
        answers.append(error or result.as_numpy("y"))
        came.set()

    client.start_stream(take, headers=bearing(token))
    with contextlib.suppress(InferenceServerException):  # refused before it could ask
        client.async_stream_infer(model, [given])
    assert came.wait(20)
    client.stop_stream()
    client.close()
    if told:
        assert told in str(answers[0])
    else:
        assert (answers[0] == 2).all()


def test_keys_rotate_under_load_without_one_wrong_answer(tmp_path: Path) -> None:
    settings = guarded.jwt_settings(tmp_path)
    path = Path(settings["jwks"])

    def publish(*numbers: int) -> None:
        beside = tmp_path / "new"
        beside.write_text(
            issuer.key_set(*(issuer.public("ES256", f"ES256-{n}", n) for n in numbers))
        )
        beside.replace(path)

    publish(0)
    with guarded.serving(tmp_path, port=0, **settings) as server:
        current = [0]
        wrong: list[tuple[int, int]] = []
        num_asked = [0] * 4
        over = threading.Event()

        def load(client: int) -> None:
            while not over.is_set():
                number = current[0]
                token = issuer.token(number=number)
                code, _, _ = server.ask("POST", "/v2/models/mine/infer", token, INPUTS)
                if code != 200:
                    wrong.append((number, code))
                num_asked[client] += 1

        def wait_answered() -> None:
            """Until what each client has under way, and more, is answered."""
            before = [*num_asked]
            live.until(
                lambda: all(now > then + 10 for now, then in zip(num_asked, before, strict=True))
            )

        threads = [threading.Thread(target=load, args=(client,)) for client in range(4)]
        for thread in threads:
            thread.start()
        last = ""
        for number in range(1, 5):
            last = issuer.token(number=number - 1)
            publish(number - 1, number)
            current[0] = number
            wait_answered()  # what was asked with the old key too
            publish(number)
            live.until(lambda token=last: server.ask("GET", "/v2", token)[0] == 401)  # type: ignore[misc]
            wait_answered()
        over.set()
        for thread in threads:
            thread.join()
    assert wrong == []
    assert sum(num_asked) > 200


def test_the_same_bytes_are_refused_once_their_token_has_expired(server: guarded.Guarded) -> None:
    """And bytes that differ in the token alone are of somebody else."""
    ending = time.time() + 3 - security_settings.Settings().leeway_s
    content = json.dumps(INPUTS).encode()

    def codes(token: str) -> set[bytes]:
        head = f"POST /v2/models/mine/infer HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {token}"
        sent = f"{head}\r\nContent-Length: {len(content)}\r\n\r\n".encode() + content
        found = set()
        for _ in range(3):
            connection.sendall(sent)
            found.add(answers.readline().split()[1])
            lines = list(iter(answers.readline, b"\r\n"))
            (length,) = [line.split()[1] for line in lines if line.startswith(b"content-length")]
            answers.read(int(length))
        return found

    with (
        socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection,
        connection.makefile("rb") as answers,
    ):
        own = issuer.token(exp=int(ending))
        assert codes(own) == codes(ALL) == {b"200"}
        assert codes(issuer.token(castiron=issuer.rule(("yours",)))) == {b"404"}
        live.until(lambda: codes(own) == {b"401"})
        assert codes(ALL) == {b"200"}


def test_rate_limits_count_by_the_token_whatever_a_client_calls_itself(tmp_path: Path) -> None:
    settings = guarded.jwt_settings(tmp_path)
    with guarded.serving(
        tmp_path, port=0, grpc_port=0, rate_per_s=0.01, rate_burst=2, **settings
    ) as server:
        codes = [
            server.ask("POST", "/v2/models/mine/infer", issuer.token(sub=name), INPUTS,
                       headers={"x-client-key": f"made up {number}"})[0]
            for number, name in enumerate(("a", "a", "a", "b", "b", "a"))
        ]  # fmt: skip
        assert codes == [200, 200, 429, 200, 200, 429]
        with pytest.raises(InferenceServerException, match="RESOURCE_EXHAUSTED"):
            infer(server, "mine", issuer.token(sub="b"))
        assert (infer(server, "mine", issuer.token(sub="c")) == 2).all()


def test_callers_who_are_refused_are_counted_by_why_and_by_nothing_from_outside(
    tmp_path: Path,
) -> None:
    settings = guarded.jwt_settings(tmp_path)
    with guarded.serving(tmp_path, port=0, grpc_port=0, **settings) as server:
        bad = {"signature": "another key", "expired": "expired", "audience": "another audience",
               "algorithm": "HS256 with the public key as PEM", "key": "kid unknown",
               "malformed": "two parts"}  # fmt: skip
        path = "/v2/models/mine/infer"
        for name in bad.values():
            assert server.ask("POST", path, str(test_tokens.BAD[name]()), INPUTS)[0] == 401
        assert server.ask("POST", path)[0] == 401
        assert server.ask("GET", "/v2/models/mine", INFER_ONLY)[0] == 403
        for token in (str(test_tokens.BAD["another key"]()), issuer.token(exp=1)):
            with pytest.raises(InferenceServerException, match="UNAUTHENTICATED"):
                infer(server, "mine", token)
        _, _, page = server.ask("GET", "/metrics", ALL)
        found = {
            sample.labels["reason"]: sample.value
            for family in parser.text_string_to_metric_families(page.decode())
            for sample in family.samples
            if sample.name == "castiron_callers_refused_total"
        }
    assert found == {
        **dict.fromkeys(bad, 1.0), "signature": 2, "expired": 2, "missing": 1, "forbidden": 1,
    }  # fmt: skip
