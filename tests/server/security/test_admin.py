"""The admin calls: on a port of their own, for those with the right, each written down."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from castiron import errors
from castiron.server.security import guard, settings
from tests.server.security import authority, guarded, issuer

ALL = issuer.token(sub="operator")
MINE = issuer.token(castiron=issuer.rule(("mine",), ("admin",)))
READER = issuer.token(castiron=issuer.rule(("*",), ("infer", "metadata")))


class Place:
    """A server with an admin port, and its audit log."""

    def __init__(self, server: guarded.Guarded, log: Path) -> None:
        self.server = server
        self.log = log

    def ask(
        self, method: str, path: str, token: str = "", body: Any = None, **headers: str
    ) -> tuple[int, Any]:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        code, _, content = self.server.ask(
            method, path, token, body, port=self.server.ports["admin"], headers=sent
        )
        return code, json.loads(content)

    def written(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("admin")
    log = folder / "audit.log"
    given = guarded.jwt_settings(folder) | {"admin_port": 0, "audit_log": str(log), "port": 0}
    with guarded.serving(folder, **given) as server:
        yield Place(server, log)


def test_the_admin_calls_are_nowhere_but_on_their_port(place: Place) -> None:
    assert place.ask("GET", "/v1/status", ALL)[0] == 200
    for path in ("/v1/status", "/v1/models/mine/load", "/v1/models/mine/unload"):
        for method in ("GET", "POST"):
            assert place.server.ask(method, path, ALL)[0] == 404
    assert place.server.ask("POST", "/v2/repository/models/mine/unload", ALL)[0] == 403
    for method, path in (("GET", "/v2/models"), ("POST", "/v2/models/mine/infer"),
                         ("GET", "/metrics"), ("GET", "/")):  # fmt: skip
        assert place.ask(method, path, ALL)[0] == 404
    assert place.server.ports["admin"] != place.server.port


def test_status_shows_what_the_token_may_change(place: Place) -> None:
    for token, seen in ((ALL, {"mine", "yours"}), (MINE, {"mine"}), (READER, set())):
        code, found = place.ask("GET", "/v1/status", token)
        assert code == 200
        assert {entry["name"] for entry in found["models"]} == seen
    assert place.ask("GET", "/v1/status")[0] == 401
    assert place.ask("GET", "/v1/status", issuer.token(exp=1))[0] == 401
    assert place.ask("POST", "/v1/status", ALL)[0] == 405


def test_models_are_unloaded_and_loaded_and_that_is_written_down(place: Place) -> None:
    before = len(place.written())
    infer = ("POST", "/v2/models/mine/infer", ALL, {"inputs": [guarded.X]})
    assert place.server.ask(*infer)[0] == 200
    code, found = place.ask("POST", "/v1/models/mine/unload", ALL, {})
    assert code == 200, found
    assert place.server.ask(*infer)[0] in {404, 503}
    code, found = place.ask("POST", "/v1/models/mine/load", ALL)
    assert code == 200
    assert [entry["state"] for entry in found["models"]] == ["READY"]
    assert place.server.ask(*infer)[0] == 200
    written = place.written()[before:]
    assert [(line["action"], line["outcome"]) for line in written] == [
        ("unload", "begun"), ("unload", "ok"), ("load", "begun"), ("load", "ok"),
    ]  # fmt: skip
    for line in written:
        assert line["who"] == {"subject": "operator", "issuer": issuer.ISSUER}
        assert line["model"] == "mine"
        assert line["from"].startswith("127.0.0.1:")
    assert written[0]["id"] == written[1]["id"] != written[2]["id"]
    assert written[1]["took_ms"] > 0
    assert stat.S_IMODE(place.log.stat().st_mode) == 0o600


@pytest.mark.parametrize("token, path, code", [
    ("", "mine/unload", 401), (issuer.token(aud="x"), "mine/unload", 401),
    (READER, "mine/unload", 403), (MINE, "yours/unload", 404), (MINE, "none/load", 404),
    (ALL, "mine/explode", 404), (ALL, "mine/unload/now", 404),
])  # fmt: skip
def test_who_is_refused_is_written_down_too(place: Place, token: str, path: str, code: int) -> None:
    before = len(place.written())
    assert place.ask("POST", f"/v1/models/{path}", token)[0] == code
    [line] = place.written()[before:]
    assert (line["outcome"], line["code"]) == ("refused", code)
    assert line["reason"]
    assert ("subject" in line["who"]) == (code != 401)
    assert place.server.ask("GET", "/v2/models/mine/ready", ALL)[0] == 200


def test_a_call_that_fails_is_answered_and_written_as_failed(place: Place) -> None:
    before = len(place.written())
    for path, body, code in (("none/load", None, 404), ("mine/load", {"files": 1}, 400)):
        answered, found = place.ask("POST", f"/v1/models/{path}", ALL, body)
        assert (answered, set(found)) == (code, {"error"})
    outcomes = [(line["outcome"], line.get("code")) for line in place.written()[before:]]
    assert outcomes == [("begun", None), ("failed", 404), ("begun", None), ("failed", 400)]
    no_objects: tuple[Any, ...] = ([], 5, "x")
    for no_object in no_objects:
        assert place.ask("POST", "/v1/models/mine/load", ALL, no_object)[0] == 400
    assert place.ask("POST", "/v1/models/mine/load", ALL, {"x": "y" * 70_000})[0] == 413


def test_without_tokens_pages_in_a_browser_are_not_served(tmp_path: Path) -> None:
    log = tmp_path / "audit"
    with guarded.serving(tmp_path, port=0, admin_port=0, audit_log=str(log)) as server:
        place = Place(server, log)
        assert place.ask("GET", "/v1/status")[0] == 200
        assert place.ask("GET", "/v1/status", host="localhost:1")[0] == 200
        for headers in (
            {"origin": "http://evil.example"}, {"sec_fetch_site": "cross-site"},
            {"origin": "null"}, {"host": "evil.example"}, {"host": "127.0.0.1.evil.example"},
            {"host": ""}, {"host": "[::1"},
        ):  # fmt: skip
            assert place.ask("POST", "/v1/models/mine/unload", **headers)[0] in {400, 403}
        assert server.ask("POST", "/v2/repository/models/mine/unload")[0] == 403
        assert server.ask("GET", "/v2/models/mine/ready")[0] == 200
        assert place.ask("POST", "/v1/models/mine/unload")[0] == 200


def test_nothing_is_done_that_cannot_be_written_down(tmp_path: Path) -> None:
    with guarded.serving(tmp_path, port=0, admin_port=0, audit_log="/dev/full") as server:
        code, _, content = server.ask("POST", "/v1/models/mine/unload", port=server.ports["admin"])
        assert code == 503
        assert b"audit log" in content
        assert server.ask("GET", "/v2/models/mine/ready")[0] == 200


def test_the_certificate_of_an_admin_is_written_down(tmp_path: Path) -> None:
    servers, admins = (authority.Authority(tmp_path, name) for name in ("servers", "admins"))
    cert, key = servers.certify("server")
    client = admins.certify("root")
    log = tmp_path / "audit"
    given = {"tls_cert": str(cert), "tls_key": str(key), "admin_client_ca": str(admins.file),
             "admin_port": 0, "admin_host": "0.0.0.0", "audit_log": str(log), "port": 0}  # fmt: skip
    import ssl

    context = ssl.create_default_context(cafile=str(servers.file))
    with guarded.serving(tmp_path, context, **given) as server:
        with pytest.raises(OSError):
            server.ask("GET", "/v1/status", port=server.ports["admin"])
        context.load_cert_chain(*client)
        code, _, _ = server.ask("GET", "/v1/status", port=server.ports["admin"])
        assert code == 200
    [line] = [json.loads(text) for text in log.read_text().splitlines()]
    assert line["who"] == {"certificate": "commonName=root"}


@pytest.mark.parametrize("given, told", [
    ({"admin_port": 0}, "expected --audit-log"),
    ({"admin_port": 0, "admin_host": "0.0.0.0", "audit_log": "x"}, "need --jwks or"),
    ({"admin_port": 0, "admin_host": "0.0.0.0", "audit_log": "x", "insecure": True},
     "also with --insecure"),
])  # fmt: skip
def test_an_admin_port_that_would_be_open_is_refused(given: dict[str, Any], told: str) -> None:
    from castiron.server import meters
    from castiron.server import settings as server_settings
    from castiron.server.security import admin

    made = guard.Guard(settings.Settings(**given))
    with pytest.raises(errors.CastironError, match=told):
        made.open_admin(admin.Calls(lambda _: {}), server_settings.Settings(), meters.Meters(dict))
