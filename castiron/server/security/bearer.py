"""The token of a request, read strictly: from the header line to a checked payload.

Signatures are the work of PyJWT; what this file adds is everything that a lenient reader would
let pass: two Authorization lines, two claims of one name, other spellings of one token, times
that are texts. Keys come from ``keys.py``, what the claims mean is judged by ``claims.py``.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import jwt

from castiron.server import status
from castiron.server.security import keys

_CHALLENGE = b'Bearer realm="castiron"'
_COMPACT = re.compile(rb"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")
_MAX_KID_CHARS = 256
_TYPES = ("jwt", "at+jwt", "application/at+jwt")
_reader = jwt.PyJWS()


class TokenFault(ValueError):
    """Why a token is not believed; the text is for its sender, ``why`` a word for metrics."""

    def __init__(self, text: str, why: str = "malformed") -> None:
        super().__init__(text)
        self.why = why


@dataclass(frozen=True, slots=True)
class Head:
    """What a token says about its signature, before that is checked."""

    algorithm: str
    kid: str | None


def token_of(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The one bearer token among the headers, names in lower case; Refusal 401 otherwise."""
    found = b""
    for name, value in headers:
        if name == b"authorization":
            if found:
                raise unauthenticated("expected one Authorization header, found several")
            found = value or b"-"
    if not found:
        raise unauthenticated("expected a token: Authorization: Bearer ...", "missing")
    if found[:7].lower() != b"bearer ":
        raise unauthenticated("headers.authorization: expected Bearer and a token")
    return found[7:]


def unauthenticated(message: str, why: str = "malformed") -> status.Refusal:
    """The refusal of one who is not known, with the challenge that HTTP asks for."""
    challenge = _CHALLENGE
    if why != "missing":
        said = re.sub(r"[^ -~]|[\"\\]", "?", message)[:200]
        challenge += b', error="invalid_token", error_description="%s"' % said.encode()
    refused = status.Refusal(401, message, headers=((b"www-authenticate", challenge),))
    refused.why = why
    return refused


def head_of(token: bytes, max_bytes: int) -> Head:
    """The token's own head; TokenFault when it is not one that could ever be believed."""
    if len(token) > max_bytes:
        raise TokenFault(f"expected a token of at most {max_bytes} bytes, found {len(token)}")
    if _COMPACT.fullmatch(token) is None:
        raise TokenFault("expected three base64url parts with dots between")
    first, payload, signature = token.split(b".")
    for part in (payload, signature):
        _decoded(part)
    head = strict_object(_decoded(first), "the head of the token")
    if "crit" in head:
        raise TokenFault("expected a token without critical extensions")
    kind = head.get("typ", "JWT")
    if not isinstance(kind, str) or kind.lower() not in _TYPES:
        raise TokenFault("typ: expected JWT")
    algorithm, kid = head.get("alg"), head.get("kid")
    if not isinstance(algorithm, str) or algorithm not in keys.ALGORITHMS:
        raise TokenFault(f"alg: expected one of {', '.join(keys.ALGORITHMS)}", "algorithm")
    if kid is not None and (not isinstance(kid, str) or not 0 < len(kid) <= _MAX_KID_CHARS):
        raise TokenFault("kid: expected a short text")
    return Head(algorithm, kid)


def payload_of(token: bytes, key: keys.Key) -> dict[str, Any]:
    """The claims, once the key's own algorithm has found the signature good; else TokenFault."""
    try:
        read = _reader.decode_complete(token, key.jwk, algorithms=[key.algorithm])
    except (jwt.PyJWTError, ValueError, TypeError):
        raise TokenFault("the signature does not fit", "signature") from None
    return strict_object(read["payload"], "the claims")


def strict_object(text: bytes, what: str) -> dict[str, Any]:
    """The JSON object in ``text``: each name once, numbers finite; else TokenFault."""
    try:
        found = json.loads(
            text.decode("utf-8"), object_pairs_hook=_once, parse_constant=_no_constant
        )
    except RecursionError:
        raise TokenFault(f"{what}: nested too deeply") from None
    except TokenFault:
        raise
    except ValueError:
        raise TokenFault(f"{what}: expected a JSON object") from None
    if not isinstance(found, dict):
        raise TokenFault(f"{what}: expected a JSON object")
    return found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise TokenFault("expected each name once in an object")
    return found


def _no_constant(word: str) -> Any:
    raise TokenFault(f"expected finite numbers, found {word}")


def _decoded(part: bytes) -> bytes:
    """The bytes of a base64url part; only their one shortest spelling is taken."""
    try:
        data = base64.urlsafe_b64decode(part + b"=" * (-len(part) % 4))
    except binascii.Error:
        raise TokenFault("expected base64url parts") from None
    if base64.urlsafe_b64encode(data).rstrip(b"=") != part:
        raise TokenFault("expected base64url parts without spare bits")
    return data
