"""Key sets: what is taken, what is passed over, what makes a whole set unfit."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed448, rsa
from hypothesis import given
from hypothesis import strategies as st

from castiron.server.security import keys
from tests.server.security import issuer


def parsed(*entries: Any) -> keys.KeySet:
    return keys.parse(json.dumps({"keys": entries}).encode())


def test_each_key_is_bound_to_the_one_algorithm_of_its_kind() -> None:
    found = keys.parse(issuer.key_set().encode())
    assert [(key.kid, key.algorithm) for key in found.keys] == [
        ("RS256-0", "RS256"), ("ES256-0", "ES256"), ("EdDSA-0", "EdDSA"),
    ]  # fmt: skip
    assert len(found.prints) == 3
    for kid in ("RS256-0", "ES256-0", "EdDSA-0"):
        for algorithm in issuer.ALGORITHMS:
            if kid.startswith(algorithm):
                assert found.find(kid, algorithm) is not None
            else:
                with pytest.raises(keys.KeyFault, match="another algorithm"):
                    found.find(kid, algorithm)
    assert found.find("other", "ES256") is None


def _jwk(private: Any, algorithm: str) -> dict[str, Any]:
    made: dict[str, Any] = issuer._kind(algorithm).to_jwk(private.public_key(), as_dict=True)
    return made


ES = issuer.public("ES256", "a")
PASSED_OVER: dict[str, Any] = {
    "a secret": {"kty": "oct", "k": "c2VjcmV0", "kid": "s"},
    "an unknown kind": {"kty": "XYZ"},
    "no kind": {"kid": "x"},
    "a kind that is a list": {"kty": ["EC"]},
    "a longer curve": _jwk(ec.generate_private_key(ec.SECP384R1()), "ES384"),
    "another Edwards curve": _jwk(ed448.Ed448PrivateKey.generate(), "EdDSA"),
    "a short RSA key": _jwk(rsa.generate_private_key(65537, 1024), "RS256"),  # noqa: S505
    "for another algorithm": ES | {"alg": "ES384"},
    "for HMAC": ES | {"alg": "HS256"},
    "for encryption": ES | {"use": "enc"},
    "for signing only": ES | {"key_ops": ["sign"]},
    "a point off the curve": ES | {"x": "AAAA"},
    "a part that is a number": ES | {"y": 5},
    "a part missing": {name: value for name, value in ES.items() if name != "x"},
    "a kid that is a number": ES | {"kid": 5},
}


@pytest.mark.parametrize("what", PASSED_OVER)
def test_a_key_of_no_use_is_passed_over_and_the_others_are_taken(what: str) -> None:
    found = parsed(PASSED_OVER[what], issuer.public("EdDSA", "good"))
    assert [key.kid for key in found.keys] == ["good"]
    assert found.passed_over[0].startswith("keys[0]: ")


@pytest.mark.parametrize(
    "text",
    [
        b"", b"{}", b"[]", b'{"keys": {}}', b'{"keys": [1]}', b"\xff", b"[" * 100_000,
        b'{"keys": [' + b",".join([b"{}"] * 300) + b"]}", b" " * ((1 << 20) + 1),
        issuer.key_set(issuer.private("RS256")).encode(),
        issuer.key_set(issuer.private("ES256")).encode(),
        issuer.key_set(issuer.private("EdDSA")).encode(),
        issuer.key_set(ES, issuer.public("ES256", "a", 1)).encode(),
    ],
)  # fmt: skip
def test_a_set_that_is_none_or_gives_secrets_away_is_refused(text: bytes) -> None:
    with pytest.raises(keys.KeyFault):
        keys.parse(text)


@given(st.binary(max_size=100))
def test_any_bytes_are_a_set_or_refused(text: bytes) -> None:
    with pytest.raises(keys.KeyFault):
        keys.parse(text)


def test_the_same_key_under_another_name_has_the_same_print() -> None:
    first, second = parsed(ES), parsed(ES | {"kid": "b", "x5t": "ignored"})
    assert first.prints == second.prints
    assert parsed(issuer.public("ES256", "a", 1)).prints != first.prints
