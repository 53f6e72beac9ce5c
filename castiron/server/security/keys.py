"""The issuer's public keys: a JSON Web Key Set, each key bound to the one algorithm it is for.

A key never serves another algorithm than its own, so a token cannot choose how it is checked.
Where sets come from and when they change is ``source.py``.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

import jwt

ALGORITHMS = ("RS256", "ES256", "EdDSA")

MAX_SET_BYTES = 1 << 20
_MAX_KEYS = 256
_MIN_RSA_BITS = 2048
_MAX_RSA_BITS = 8192

# Members that only the owner of a key may know.
_PRIVATE = frozenset("d p q dp dq qi oth".split())
_BOUND = {("RSA", None): "RS256", ("EC", "P-256"): "ES256", ("OKP", "Ed25519"): "EdDSA"}
_MEMBERS = {"RS256": ("e", "n"), "ES256": ("crv", "x", "y"), "EdDSA": ("crv", "x")}


class KeyFault(ValueError):
    """Why a key set is not taken, or a key of it."""


@dataclass(frozen=True, slots=True)
class Key:
    """One public key; ``print`` tells it from all others, whatever its ``kid``."""

    kid: str | None
    algorithm: str
    print: str
    jwk: jwt.PyJWK


@dataclass(frozen=True, slots=True)
class KeySet:
    """The keys that are believed now; ``passed_over`` says which entries are not used and why."""

    keys: tuple[Key, ...] = ()
    passed_over: tuple[str, ...] = ()

    def find(self, kid: str | None, algorithm: str) -> Key | None:
        """The key of that ``kid``; without one, the only key of the algorithm.

        None when there is none. KeyFault when the key is there for another algorithm, or when
        several would do.
        """
        if kid is None:
            fitting = [key for key in self.keys if key.algorithm == algorithm]
            if len(fitting) > 1:
                raise KeyFault("kid: expected one, since the issuer has several keys")
            return fitting[0] if fitting else None
        for key in self.keys:
            if key.kid == kid:
                if key.algorithm != algorithm:
                    raise KeyFault("alg: the key of this kid is for another algorithm")
                return key
        return None

    @property
    def prints(self) -> frozenset[str]:
        """What tells the keys apart."""
        return frozenset(key.print for key in self.keys)


def parse(text: bytes) -> KeySet:
    """The set in ``text``. KeyFault when it is none, or when it gives private keys away."""
    if len(text) > MAX_SET_BYTES:
        raise KeyFault(f"expected at most {MAX_SET_BYTES} bytes")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise KeyFault("expected a JSON Web Key Set, found no JSON") from None
    entries = found.get("keys") if isinstance(found, dict) else None
    if not isinstance(entries, list) or len(entries) > _MAX_KEYS:
        raise KeyFault(f'expected an object with "keys", a list of at most {_MAX_KEYS}')
    taken: list[Key] = []
    passed_over: list[str] = []
    for index, entry in enumerate(entries):
        if not isinstance(entry, dict):
            raise KeyFault(f"keys[{index}]: expected an object")
        if entry.get("kty") != "oct" and not _PRIVATE.isdisjoint(entry):
            raise KeyFault(f"keys[{index}]: expected a public key, found a private one")
        try:
            taken.append(_key(entry))
        except KeyFault as fault:
            passed_over.append(f"keys[{index}]: {fault}")
    _require_distinct(taken)
    return KeySet(tuple(taken), tuple(passed_over))


def _require_distinct(taken: list[Key]) -> None:
    named = [key.kid for key in taken if key.kid is not None]
    if len(set(named)) != len(named):
        raise KeyFault("expected each kid once")


def _key(entry: dict[str, Any]) -> Key:
    kind, curve = entry.get("kty"), entry.get("crv")
    algorithm = _BOUND.get((str(kind), None if curve is None else str(curve)))
    if algorithm is None:
        raise KeyFault(f"expected RSA, EC on P-256 or Ed25519, found {str(kind)[:20]}")
    if entry.get("alg", algorithm) != algorithm:
        raise KeyFault(f"alg: expected {algorithm}, found {str(entry['alg'])[:20]}")
    if entry.get("use", "sig") != "sig" or "verify" not in entry.get("key_ops", ["verify"]):
        raise KeyFault("expected a key for checking signatures")
    kid = entry.get("kid")
    if kid is not None and not isinstance(kid, str):
        raise KeyFault("kid: expected a text")
    members = {name: entry.get(name) for name in ("kty", *_MEMBERS[algorithm])}
    try:
        jwk = jwt.PyJWK(members, algorithm=algorithm)
    except (jwt.PyJWTError, ValueError, TypeError) as fault:
        raise KeyFault(f"expected a {algorithm} key: {type(fault).__name__}") from None
    bits = getattr(jwk.key, "key_size", _MIN_RSA_BITS)
    if algorithm == "RS256" and not _MIN_RSA_BITS <= bits <= _MAX_RSA_BITS:
        raise KeyFault(f"expected {_MIN_RSA_BITS} to {_MAX_RSA_BITS} bits, found {bits}")
    return Key(kid, algorithm, _print(members), jwk)


def _print(members: dict[str, Any]) -> str:
    """The thumbprint of RFC 7638."""
    text = json.dumps(members, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
