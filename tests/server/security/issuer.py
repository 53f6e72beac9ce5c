"""An issuer of tokens for tests: keys of every kind, their set, and tokens good and bad."""

from __future__ import annotations

import base64
import functools
import hashlib
import hmac
import json
import time
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

ISSUER = "https://issuer.example"
AUDIENCE = "castiron-tests"
ALGORITHMS = ("RS256", "ES256", "EdDSA")


def key(algorithm: str, number: int = 0) -> Any:
    """A private key, the same for the same arguments."""
    return _key(algorithm, number)


@functools.cache  # making RSA keys takes a while
def _key(algorithm: str, number: int) -> Any:
    del number
    if algorithm == "RS256":
        return rsa.generate_private_key(65537, 2048)
    if algorithm == "ES256":
        return ec.generate_private_key(ec.SECP256R1())
    return ed25519.Ed25519PrivateKey.generate()


def public(algorithm: str, kid: str | None, number: int = 0) -> dict[str, Any]:
    """The entry of a key set for a key."""
    made: dict[str, Any] = _kind(algorithm).to_jwk(
        key(algorithm, number).public_key(), as_dict=True
    )
    made.pop("key_ops", None)
    return made if kid is None else made | {"kid": kid, "use": "sig"}


def private(algorithm: str) -> dict[str, Any]:
    """What must never be in a key set."""
    made: dict[str, Any] = _kind(algorithm).to_jwk(key(algorithm), as_dict=True)
    return made


def _kind(algorithm: str) -> Any:
    return jwt.get_algorithm_by_name(algorithm)


def key_set(*entries: dict[str, Any]) -> str:
    """The text of a key set; by default one key of each algorithm, its kid named after it."""
    chosen = entries or tuple(public(name, f"{name}-0") for name in ALGORITHMS)
    return json.dumps({"keys": chosen})


def claims(**changed: Any) -> dict[str, Any]:
    """Claims that are good for everything; None takes one out."""
    now = time.time()
    made: dict[str, Any] = {
        "iss": ISSUER, "aud": AUDIENCE, "sub": "tester", "iat": int(now), "nbf": int(now) - 1,
        "exp": int(now) + 600, "castiron": rule(),
    } | changed  # fmt: skip
    return {name: value for name, value in made.items() if value is not None}


def rule(
    models: tuple[str, ...] = ("*",), actions: tuple[str, ...] = ("infer", "metadata", "admin")
) -> dict[str, Any]:
    """The claim of rights."""
    return {"models": list(models), "actions": list(actions)}


def token(algorithm: str = "ES256", number: int = 0, **changed: Any) -> str:
    """A token with good claims, except for those that are changed."""
    return signed(
        json.dumps(claims(**changed)), {"alg": algorithm, "kid": f"{algorithm}-{number}"},
        key(algorithm, number),
    )  # fmt: skip


def signed(payload: str | bytes, head: dict[str, Any] | str, secret: Any) -> str:
    """Any payload under any head; the signature is of the secret's own kind."""
    text = json.dumps(head) if isinstance(head, dict) else head
    body = payload.encode() if isinstance(payload, str) else payload
    signing = f"{part(text.encode())}.{part(body)}"
    if isinstance(secret, bytes):
        signature = hmac.new(secret, signing.encode(), hashlib.sha256).digest()
    else:
        signature = _kind(_algorithm_of(secret)).sign(signing.encode(), secret)
    return f"{signing}.{part(signature)}"


def _algorithm_of(secret: Any) -> str:
    if isinstance(secret, rsa.RSAPrivateKey):
        return "RS256"
    return "ES256" if isinstance(secret, ec.EllipticCurvePrivateKey) else "EdDSA"


def part(data: bytes) -> str:
    """One part of a token."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
