"""Closed by default: what may listen where, and settings that do not fit together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from castiron import errors
from castiron.server.security import guard, loopback, settings
from tests.server.security import authority, guarded

LOCAL = ("127.0.0.1", "127.8.9.1", "::1", "localhost")
REMOTE = ("0.0.0.0", "::", "192.0.2.1", "example.invalid", "", "127.1", "localhost.example",
          "::ffff:192.0.2.1")  # fmt: skip


def test_only_this_machine_is_loopback() -> None:
    assert all(map(loopback.is_loopback, LOCAL))
    assert not any(map(loopback.is_loopback, REMOTE))


def test_an_address_that_others_reach_needs_somebody_known(tmp_path: Path) -> None:
    ca = authority.Authority(tmp_path, "ca")
    cert, key = map(str, ca.certify("server"))
    tls = {"tls_cert": cert, "tls_key": key}
    cases: list[tuple[dict[str, Any], bool]] = [
        ({}, False), (tls, False), ({"insecure": True}, True),
        (tls | {"client_ca": str(ca.file)}, True), (guarded.jwt_settings(tmp_path), True),
    ]  # fmt: skip
    for given, is_allowed in cases:
        made = guard.Guard(settings.Settings(**given))
        for host in LOCAL:
            made.require_closed(host)
        for host in REMOTE:
            if is_allowed:
                made.require_closed(host)
                continue
            with pytest.raises(errors.CastironError) as refused:
                made.require_closed(host)
            for word in (host, "127.0.0.1", "--jwks", "--client-ca", "--insecure"):
                assert word in str(refused.value)


@pytest.mark.parametrize("given, told", [
    ({"tls_cert": "a"}, "--tls-cert and --tls-key: expected both"),
    ({"tls_key": "a"}, "--tls-cert and --tls-key: expected both"),
    ({"client_ca": "a"}, "--client-ca: expected --tls-cert too"),
    ({"admin_client_ca": "a"}, "--admin-client-ca: expected --tls-cert too"),
    ({"issuer": "a"}, "--issuer and --audience: expected --jwks too"),
    ({"audience": "a"}, "--issuer and --audience: expected --jwks too"),
    ({"leeway_s": -1.0}, "--leeway-s: expected zero or more"),
])  # fmt: skip
def test_settings_that_would_leave_a_door_open_are_refused(
    given: dict[str, Any], told: str
) -> None:
    with pytest.raises(errors.CastironError, match=told):
        guard.Guard(settings.Settings(**given))


def test_what_checks_signatures_is_loaded_only_when_it_is_needed() -> None:
    import subprocess
    import sys

    text = "import sys, castiron.server.life; print('jwt' in sys.modules, 'grpc' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout.split()[0] == "False"
