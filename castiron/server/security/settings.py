"""The settings of security, each with what it is for.

The command line makes its options from this record as it does from ``server.settings``. What they
promise together is written in docs/security.md; ``guard.py`` refuses what does not fit together.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

_T = TypeVar("_T")

OFF = -1


def _setting(default: _T, text: str) -> _T:
    value: _T = field(default=default, metadata={"text": text})
    return value


@dataclass(frozen=True, slots=True)
class Settings:
    """Who is believed, by which keys, on which listener."""

    insecure: bool = _setting(
        False,
        "Listen on an address that other machines reach although nobody is authenticated; say it "
        "only when something in front guards it.",
    )

    jwks: str = _setting(
        "",
        "The issuer's public keys: a file, or a URL like http://127.0.0.1:8200/jwks. Each request "
        "then needs a token (JWT) signed by one of them.",
    )

    issuer: str = _setting("", "What the claim iss of a token must be; needed with --jwks.")

    audience: str = _setting("", "What the claim aud of a token must hold; needed with --jwks.")

    algorithms: str = _setting(
        "RS256,ES256,EdDSA", "The signatures that are taken, of these three, parted by commas."
    )

    rights_claim: str = _setting(
        "castiron", "The claim that holds the rights: models (patterns) and actions."
    )

    leeway_s: float = _setting(
        30.0, "How far the issuer's clock may be from ours when times of a token are judged."
    )

    max_token_bytes: int = _setting(
        8192, "The longest token that is looked at; longer ones are refused unread."
    )

    max_cached_tokens: int = _setting(
        4096, "Tokens found good that are remembered until they expire; the oldest make room."
    )

    keys_refresh_s: float = _setting(
        300.0,
        "How often a URL is asked for its keys; an unknown key makes it be asked at once, though "
        "at most once a second. A file is looked at every second.",
    )

    tls_cert: str = _setting(
        "", "A PEM file with the server's certificate chain: HTTP and gRPC then speak TLS only."
    )

    tls_key: str = _setting("", "The PEM file with the key of --tls-cert, without a password.")

    client_ca: str = _setting(
        "",
        "A PEM file of authorities: a client must show a certificate of one of them (mTLS). "
        "Without --jwks, whoever has one may infer and read metadata of every model.",
    )

    admin_port: int = _setting(
        OFF, "The port of the admin calls; -1: there are none; 0 takes a free one and prints it."
    )

    admin_host: str = _setting("127.0.0.1", "The address that the admin calls listen on.")

    admin_client_ca: str = _setting(
        "", "Like --client-ca, for the admin calls; its clients need no token when --jwks is unset."
    )

    audit_log: str = _setting(
        "", "The file that each admin call is written to before and after; needed for the calls."
    )
